//! The end of a file that no program has open for writing any more. The kernel does not wait for it, and no program hears of a
//! failure.

use std::ffi::OsStr;
use std::sync::atomic::Ordering;

use super::{Upload, Writer};
use crate::fuse::failure::Failure;
use crate::fuse::storage::Storage;

impl Writer {
    /// Whether the name of the file, in whichever directory, is this one.
    pub(in crate::fuse) fn is_named(&self, name: &OsStr) -> bool {
        self.key.rsplit('/').next().is_some_and(|last| name == last)
    }

    /// Waits for the end of a file that no program has open any more. `false` if one has.
    pub(in crate::fuse) async fn has_ended(&self) -> bool {
        let is_ending = self.is_ending.load(Ordering::SeqCst);
        if is_ending {
            self.ended.wait().await;
        }
        is_ending
    }

    pub(in crate::fuse) async fn release(&self, storage: &Storage) -> Result<(), Failure> {
        self.is_ending.store(true, Ordering::SeqCst);
        let released = self.release_once(storage).await;
        // A second release finds it set.
        let _ = self.ended.set(()).await;
        released
    }

    async fn release_once(&self, storage: &Storage) -> Result<(), Failure> {
        let mut state = self.state.lock().await;
        let repeated = self.repeat_for_the_last_time(storage, &mut state).await;
        if let Upload::Completing(_) = state.upload {
            // No program asks for it again.
            self.give_up(storage, &mut state);
        }
        match state.upload {
            Upload::Open(upload) | Upload::Published(Some(upload), _) | Upload::Aborted(upload) => {
                let ended = self.end(storage, upload).await;
                repeated.and(ended)
            }
            Upload::Published(None, _) => repeated,
            Upload::Interrupted(_) | Upload::Completing(_) | Upload::Failed => {
                // What opens the files of a predecessor again may come to it after this.
                state.upload = Upload::Failed;
                if self.creates {
                    storage.numbers.not_uploaded(self.ino);
                }
                repeated
            }
        }
    }

    pub(super) async fn end(&self, storage: &Storage, upload: u64) -> Result<(), Failure> {
        let released = storage.files.release(self.ino, upload, 0, None, false).await;
        let is_published = storage.uploads.published(upload).is_some();
        storage.uploads.end(upload);
        if is_published { Ok(()) } else { Ok(released?) }
    }
}
