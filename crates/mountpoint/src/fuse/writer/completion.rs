//! A file whose upload was being completed when a mount process died. The server has all of it, perhaps.

use mountpoint_s3_client::types::ETag;

use super::{State, Upload, Writer};
use crate::fuse::failure::Failure;
use crate::fuse::storage::Storage;
use crate::journal::Version;

impl Writer {
    /// Completes the upload. What fails for now is tried again when a program asks for it, which it does: the kernel sends the
    /// close again.
    pub(super) async fn finish(&self, storage: &Storage, state: &mut State) -> Result<(), Failure> {
        let Upload::Completing(completion) = &state.upload else { return Ok(()) };
        let (key, finished) = (&self.key, storage.finish(&self.key, completion).await);
        match finished {
            Ok(etag) => {
                tracing::info!(
                    key,
                    "completed the upload of a file that a mount process was closing when it died"
                );
                self.note_complete(storage, state, &etag);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(key, %error, "cannot complete the upload of a file that a mount process was closing when it died");
                if error.is_final() {
                    self.give_up(storage, state);
                }
                Err(error.into())
            }
        }
    }

    /// Everything that was written is this object.
    pub(super) fn note_complete(&self, storage: &Storage, state: &mut State, etag: &ETag) {
        let object = storage.published(&self.key, etag);
        storage.numbers.uploaded(self.ino, Version::of(Some(etag.as_str())));
        storage.journal.record(&object.record(self.handle, state.length));
        (state.upload, state.unspooled) = (Upload::Published(None, object), false);
    }
}
