//! Judges what the programs recorded: everything once, by the fault that was going on at the time.

use std::collections::BTreeMap;

use xtask::witness::{self, Entry, Outcome};

use super::matrix::Fault;

#[derive(Debug, Default)]
pub(super) struct Judge {
    /// Bytes of each pod's record that have been judged.
    judged: BTreeMap<String, usize>,
    periods: Vec<Period>,
}

/// From a fault to the end of the recovery, in milliseconds since 1970.
#[derive(Debug)]
struct Period {
    fault: Fault,
    from: i64,
    to: i64,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The file's close succeeded: it must be in the bucket.
    Acknowledged(String),
    /// Wrong bytes, or an error that no page announces for that fault, or for times without any.
    Undocumented(String),
}

impl Judge {
    pub(super) fn begin(&mut self, fault: Fault, at: i64) {
        self.periods.push(Period { fault, from: at, to: i64::MAX });
    }

    /// Everything goes on again. Without this call, the fault lasts.
    pub(super) fn recovered(&mut self, at: i64) {
        if let Some(period) = self.periods.last_mut() {
            period.to = at;
        }
    }

    /// Judges what was added to the pod's record since the last call. A line that is being written is left for the next.
    pub(super) fn judge(&mut self, pod: &str, record: &str) -> Vec<Verdict> {
        let from = self.judged.get(pod).copied().unwrap_or_default();
        let to = record.rfind('\n').map_or(from, |end| end + 1);
        self.judged.insert(pod.to_owned(), to);
        let added = record.get(from..to).unwrap_or_default();
        added.lines().filter_map(Entry::parse).filter_map(|entry| self.verdict(pod, &entry)).collect()
    }

    fn verdict(&self, pod: &str, entry: &Entry) -> Option<Verdict> {
        let is_during = |period: &&Period| (period.from..=period.to).contains(&entry.at);
        let fault = self.periods.iter().find(is_during).map(|period| period.fault);
        let undocumented = || {
            let during = fault.map_or("without a fault".to_owned(), |fault| fault.to_string());
            Some(Verdict::Undocumented(format!("{during}: {pod} recorded {entry:?}")))
        };
        match &entry.what {
            Outcome::Done(_) if reads(pod) => None,
            Outcome::Done(name) => Some(Verdict::Acknowledged(name.clone())),
            Outcome::Failed(error, name) => {
                let written = witness::length(name).filter(|_| !reads(pod));
                let documented = fault.is_some_and(|fault| fault.documented_errors(written).contains(error));
                if documented { None } else { undocumented() }
            }
            Outcome::Wrong(_) => undocumented(),
        }
    }
}

/// All others write.
pub(super) fn reads(pod: &str) -> bool {
    ["reader", "idle", "sharer"].contains(&pod)
}

#[cfg(test)]
mod tests {
    use super::super::matrix::{How, Moment, Part};
    use super::*;

    const EIO: i32 = 5;

    /// The S3 server fails, which programs see as EIO, from 100 to 200.
    fn judge() -> Judge {
        let fault = Fault { part: Part::S3Server, moment: Moment::Reading, how: How::Kill, after_ms: 0 };
        let mut judge = Judge::default();
        judge.begin(fault, 100);
        judge.recovered(200);
        judge
    }

    fn acknowledged(names: &[&str]) -> Vec<Verdict> {
        names.iter().map(|name| Verdict::Acknowledged((*name).to_owned())).collect()
    }

    #[test]
    fn every_entry_is_judged_once_whenever_it_was_recorded() {
        let mut judge = judge();
        let mut record = "50 done a-1\n150 done b-9437184\n".to_owned();
        assert_eq!(judge.judge("writer", &record), acknowledged(&["a-1", "b-9437184"]));
        assert_eq!(judge.judge("writer", &record), []);
        record += "250 done c-9437184\n260 do";
        assert_eq!(judge.judge("writer", &record), acknowledged(&["c-9437184"]), "between two faults");
        record += "ne d-2\n";
        assert_eq!(judge.judge("other", "255 done e-3\n"), acknowledged(&["e-3"]), "each has its own place");
        assert_eq!(judge.judge("writer", &record), acknowledged(&["d-2"]), "it was half-written");
        assert_eq!(judge.judge("reader", "260 done a-1\n"), [], "it was compared when it was read");
    }

    #[test]
    fn errors_are_documented_while_their_fault_lasts() {
        let mut judge = judge();
        for (at, expected) in [(99, 1), (100, 0), (200, 0), (201, 1)] {
            let verdicts = judge.judge(&format!("writer-{at}"), &format!("{at} failed {EIO} a-1\n"));
            assert_eq!(verdicts.len(), expected, "{at}: {verdicts:?}");
        }
        let mut judge = self::judge();
        judge.begin(judge.periods[0].fault, 300);
        assert_eq!(judge.judge("reader", &format!("400 failed {EIO} a-1\n")), [], "it was never over");
        assert_eq!(judge.judge("reader", &format!("400 failed {EIO} a-1\n400 failed 107 a-1\n")).len(), 1);
    }

    #[test]
    fn wrong_bytes_are_never_documented() {
        for at in [50, 150, 250] {
            let verdicts = judge().judge("idle", &format!("{at} wrong a-1\n"));
            assert!(matches!(&verdicts[..], [Verdict::Undocumented(_)]), "{at}: {verdicts:?}");
        }
    }
}
