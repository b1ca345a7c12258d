//! Where a request comes from: a program, or the death of the mount process that was handling it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::Arc;

use fuser::Request;
use mountpoint_s3_fs::fs::{Entry, Error, ToErrno as _};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::failure::Failure;
use super::storage::Storage;
use crate::journal::{Journal, Record};

/// Set in the number of a request that the kernel sends again.
const REPEATED: u64 = 1 << 63;
/// Deaths of mount processes after which a request is refused, because they may have died of it. Other requests that were
/// under way each time are refused, too, so one death is not enough.
const MOST_DEATHS: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// The number of the request, the same each time.
    pub(super) unique: u64,
    /// A mount process died before it answered the request, and may have carried out all or a part of it.
    pub(super) is_repeated: bool,
}

impl Origin {
    /// Whether a request failed as it does when a predecessor has carried it out.
    pub(super) fn is_perhaps_done(self, error: &Error, with: Errno) -> bool {
        self.is_repeated && error.to_errno() == with.raw_os_error()
    }

    /// The result of a request to create a name. One that exists is the program's own only if the journal says so: otherwise
    /// a program would take the lock file of another client for its own.
    pub(super) async fn created(
        self,
        created: Result<Entry, Error>,
        Storage { files, numbers, .. }: &Storage,
        parent: u64,
        name: &OsStr,
    ) -> Result<Entry, Error> {
        match created {
            Err(error) if self.is_perhaps_done(&error, Errno::EXIST) && numbers.is_local(parent, name) => {
                files.lookup(parent, name).await
            }
            created => created,
        }
    }

    /// The result of a request to remove a name. It does not matter who has removed it.
    pub(super) fn removed(self, removed: Result<(), Error>) -> Result<(), Failure> {
        match removed {
            Err(error) if self.is_perhaps_done(&error, Errno::NOENT) => Ok(()),
            removed => Ok(removed?),
        }
    }
}

/// How often requests were repeated.
pub(crate) struct Repetitions {
    journal: Arc<Journal>,
    times: Mutex<HashMap<u64, u32>>,
}

impl Repetitions {
    pub(crate) fn new(journal: Arc<Journal>, times: HashMap<u64, u32>) -> Self {
        Self { journal, times: Mutex::new(times) }
    }

    pub(super) fn admit(&self, request: &Request<'_>) -> Result<Origin, Failure> {
        self.admit_number(request.unique())
    }

    fn admit_number(&self, number: u64) -> Result<Origin, Failure> {
        let origin = Origin { unique: number & !REPEATED, is_repeated: number & REPEATED != 0 };
        if origin.is_repeated {
            let mut times = self.times.lock();
            let deaths = times.entry(origin.unique).or_default();
            *deaths += 1;
            if *deaths > MOST_DEATHS {
                return Err(Failure::Deadly { deaths: *deaths });
            }
            self.journal.record(&Record::Retried(origin.unique));
        }
        Ok(origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Begin;

    #[test]
    fn a_request_that_ends_process_after_process_is_refused_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        Journal::open(folder.path()).unwrap().0.begin(Begin::default()).unwrap();
        for death in 0..10 {
            let (journal, known) = Journal::open(folder.path()).unwrap();
            let repetitions = Repetitions::new(Arc::new(journal), known.unwrap().retries);
            let new = Origin { unique: 100 + death, is_repeated: false };
            assert_eq!(repetitions.admit_number(100 + death).ok(), Some(new));
            let other = Origin { unique: 50 + death, is_repeated: true };
            assert_eq!(repetitions.admit_number(REPEATED | (50 + death)).ok(), Some(other));
            let deadly = repetitions.admit_number(REPEATED | 8);
            assert_eq!(deadly.is_ok(), death < u64::from(MOST_DEATHS), "after {death} deaths");
        }
    }
}
