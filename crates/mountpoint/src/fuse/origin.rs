//! Where a request comes from: a program, or the death of the mount process that was handling it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use fuser::Request;
use mountpoint_s3_fs::fs::{Error, ToErrno as _};
use rustix::io::Errno;

use super::failure::Failure;
use crate::journal::{Journal, Record};

/// Set in the number of a request that the kernel sends again.
const REPEATED: u64 = 1 << 63;
/// Deaths of mount processes after which a request is refused: it may be what they died of. Others that were under way each
/// time are refused with it, so that it must not be the first death.
const MOST_DEATHS: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// The number of the request, the same each time.
    pub(super) unique: u64,
    /// A mount process died with it, which may have done it or a part of it.
    pub(super) is_repeated: bool,
}

impl Origin {
    /// Whether a request failed because it had been carried out before.
    pub(super) fn has_done(self, error: &Error, with: Errno) -> bool {
        self.is_repeated && error.to_errno() == with.raw_os_error()
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
            let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
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
