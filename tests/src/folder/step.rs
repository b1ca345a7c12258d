//! What programs and other clients do, and what they get.

use std::collections::BTreeSet;
use std::fmt;

use rustix::io::Errno;

/// The number of an open file. Duplicates have the same.
pub type Id = u32;

/// Shown by its length and its beginning.
#[derive(Clone, PartialEq, Eq)]
pub struct Content(pub Vec<u8>);

/// Bytes of a content that are shown: enough to tell it from others.
const SHOWN: usize = 20;

impl fmt::Debug for Content {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let beginning = String::from_utf8_lossy(&self.0[..self.0.len().min(SHOWN)]);
        write!(formatter, "{} bytes {beginning:?}", self.0.len())
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

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
        content: Content,
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
        content: Content,
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
        content: Content,
    },
    DeleteElsewhere {
        name: String,
    },
}

#[derive(Clone, Debug)]
pub enum Outcome {
    Done,
    Content(Content),
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
