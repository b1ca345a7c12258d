//! How a program reads a file, which decides how much to fetch. The library fetches more and more ahead, which helps a
//! program that reads on. A program that reads at random places would wait for bytes that it does not use.

/// A read this many bytes after the end of the last one still continues it, because the kernel reads ahead with several
/// requests at a time, which arrive in any order.
const NEAR: u64 = 1024 * 1024;

#[derive(Debug, Default)]
pub(super) struct ReadPattern {
    /// Where the last read ended.
    end: u64,
    /// Since the last read that was elsewhere, another one has continued it.
    continues: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetch {
    /// What is read and no more.
    Exactly,
    Ahead,
}

impl ReadPattern {
    /// A program that has read on from the last place will probably do so here.
    pub(super) fn read(&mut self, offset: u64, size: u64) -> Fetch {
        let is_near = offset.abs_diff(self.end) <= NEAR;
        self.end = offset.saturating_add(size);
        let reads_on = is_near || self.continues;
        self.continues = is_near;
        if reads_on { Fetch::Ahead } else { Fetch::Exactly }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn fetched(places: &[u64]) -> Vec<Fetch> {
        let mut pattern = ReadPattern::default();
        places.iter().map(|place| pattern.read(place * MIB, MIB / 4)).collect()
    }

    #[test]
    fn a_program_that_reads_here_and_there_gets_what_it_reads() {
        assert_eq!(fetched(&[17, 3, 90, 40]), [Fetch::Exactly; 4]);
    }

    #[test]
    fn a_program_that_reads_on_gets_more() {
        assert_eq!(fetched(&[0, 1, 2, 2, 3]), [Fetch::Ahead; 5]);
        assert_eq!(fetched(&[50, 50, 51]), [Fetch::Exactly, Fetch::Ahead, Fetch::Ahead]);
    }

    #[test]
    fn what_followed_one_seek_is_expected_after_the_next() {
        let pattern = fetched(&[50, 51, 10, 11, 90, 30]);
        assert_eq!(pattern[2..5], [Fetch::Ahead; 3], "it has read on each time");
        assert_eq!(pattern[5], Fetch::Exactly, "it has not, the last time");
    }
}
