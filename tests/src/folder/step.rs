//! What programs and other clients do, and what they get.

use std::collections::BTreeSet;

use rustix::io::Errno;

/// The number of an open file. Duplicates have the same.
pub type Id = u32;

#[derive(Clone, Debug)]
pub enum Step {
    Open {
        actor: usize,
        file: Id,
        name: String,
        write: bool,
    },
    Write {
        file: Id,
        content: Vec<u8>,
    },
    Duplicate {
        actor: usize,
        file: Id,
    },
    Close {
        actor: usize,
        file: Id,
    },
    Sync {
        file: Id,
    },
    Cut {
        file: Id,
        length: u64,
    },
    /// A program that the actor starts inherits its files, writes to this one, and ends.
    Echo {
        actor: usize,
        file: Id,
        content: Vec<u8>,
    },
    ReadOpen {
        file: Id,
    },
    Read {
        name: String,
    },
    List,
    Remove {
        name: String,
    },
    Rename {
        name: String,
        to: String,
    },
    Truncate {
        name: String,
        length: u64,
    },
    /// By another client of the bucket.
    PutElsewhere {
        name: String,
        content: Vec<u8>,
    },
    DeleteElsewhere {
        name: String,
    },
}

#[derive(Clone, Debug)]
pub enum Outcome {
    Done,
    Content(Vec<u8>),
    Names(BTreeSet<String>),
    /// The error number, or 0 if only the failure is known.
    Failed(i32),
}

impl Outcome {
    pub(super) fn is_error(&self, errno: Errno) -> bool {
        matches!(self, Self::Failed(number) if *number == errno.raw_os_error())
    }

    pub(super) fn failed(&self) -> bool {
        matches!(self, Self::Failed(_))
    }
}
