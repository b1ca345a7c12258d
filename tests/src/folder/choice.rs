//! Which step is next: at random, and one that the open files allow. The same seed and the same outcomes make the same steps.

use super::Folder;
use super::step::{Content, Id, Step};

const NAMES: [&str; 3] = ["a", "b", "c"];
/// Open files of one folder, at most: they must meet on the few names, and the mount process has memory for so many writers.
const OPEN: usize = 5;
/// Bytes that the mount process keeps of a file to continue it.
const KEPT: usize = 8 << 20;
const LARGE: usize = KEPT + (1 << 20);
/// Bytes: more than one request of the kernel.
const MEDIUM: usize = 300 << 10;
/// Bytes of a program's argument: far below the kernel's limit.
const ARGUMENT: usize = 2000;

/// `SplitMix64`, so that a seed means the same steps with every version of every crate.
pub struct Random {
    state: u64,
    has_other_client: bool,
    /// Then there are no files that are too large to be kept.
    processes_die: bool,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { state: seed, has_other_client: true, processes_die: false }
    }

    /// For a mount whose processes die.
    pub fn among_deaths(seed: u64) -> Self {
        Self { processes_die: true, ..Self::new(seed) }
    }

    /// No other client uses the bucket.
    #[must_use]
    pub fn without_other_client(self) -> Self {
        Self { has_other_client: false, ..self }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut value = self.state;
        value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(limit).unwrap()).unwrap()
    }

    pub fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// A file that a program has emptied and not written to is left alone if mount processes die: when it is closed, the process
    /// that opened it empties what another client put there, and a successor does not.
    fn may_interfere(&self, folder: &Folder, name: &str) -> bool {
        let may_be_emptied = folder.writers_of(name).any(|it| it.content.is_empty() && !it.creates);
        self.has_other_client && !(self.processes_die && may_be_emptied)
    }

    /// Different from all others, and readable: mostly a line, seldom large.
    fn content(&mut self) -> Content {
        let size = match self.below(100) {
            0 if !self.processes_die => LARGE,
            0..5 => MEDIUM,
            _ => 1 + self.below(200),
        };
        let line = format!("{:016x}\n", self.next()).into_bytes();
        Content(line.iter().copied().cycle().take(size.max(line.len())).collect())
    }
}

/// The next step, and which of the programs does it. A file that it opens gets this number.
pub fn choose(random: &mut Random, folder: &Folder, actors: usize, number: Id) -> (usize, Step) {
    let actor = random.below(actors);
    let held = folder.held_by(actor);
    if held.is_empty() || random.below(100) < 45 {
        return (actor, with_name(random, folder, actor, number));
    }
    let (file, writes) = *random.of(&held);
    let step = if writes {
        with_writer(random, folder, actor, file)
    } else if random.below(2) == 0 {
        Step::ReadOpen { file }
    } else {
        Step::Close { actor, file }
    };
    (actor, step)
}

fn with_name(random: &mut Random, folder: &Folder, actor: usize, file: Id) -> Step {
    let name = (*random.of(&NAMES)).to_owned();
    match random.below(100) {
        0..35 if folder.files.len() < OPEN => Step::Open { actor, file, name, write: random.below(10) < 7 },
        0..55 => Step::Read { name },
        55..65 => Step::List,
        65..73 => Step::Remove { name },
        73..76 => {
            let to = (*random.of(&NAMES)).to_owned();
            Step::Rename { to: if to == name { "d".to_owned() } else { to }, name }
        }
        79.. if !random.may_interfere(folder, &name) => Step::Read { name },
        76..79 => Step::Truncate { name, length: u64::try_from(random.below(5)).unwrap() },
        79..91 => Step::PutElsewhere { name, content: random.content() },
        _ => Step::DeleteElsewhere { name },
    }
}

fn with_writer(random: &mut Random, folder: &Folder, actor: usize, file: Id) -> Step {
    match random.below(100) {
        0..35 => Step::Write { file, content: random.content() },
        35..45 => Step::Duplicate { actor, file },
        45..75 => Step::Close { actor, file },
        75..83 => Step::Sync { file },
        83..87 => {
            let length = folder.length(file).saturating_sub(random.below(2));
            Step::Cut { file, length: u64::try_from(length).unwrap() }
        }
        // The model does not know that a program which is started does not publish the large files of its parent.
        _ if folder.held_by(actor).iter().any(|(file, _)| folder.length(*file) > KEPT) => Step::Sync { file },
        _ => {
            let Content(mut content) = random.content();
            content.truncate(ARGUMENT);
            Step::Echo { actor, file, content: Content(content) }
        }
    }
}

/// Closes one of the files that are still open.
pub fn close(folder: &Folder) -> Option<(usize, Step)> {
    let (id, file) = folder.files.first_key_value()?;
    let actor = *file.holders.first()?;
    Some((actor, Step::Close { actor, file: *id }))
}
