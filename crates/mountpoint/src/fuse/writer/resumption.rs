//! How a file that was published goes on: as another upload that begins with the same bytes.

use mountpoint_s3_fs::fs::OpenFlags;

use super::{NOWHERE, Spool, State, Upload, Writer};
use crate::fuse::failure::Failure;
use crate::fuse::spool::PIECE;
use crate::fuse::storage::Storage;
use crate::reopen::{Again, again};
use crate::uploads::Published;

impl Writer {
    /// Begins another upload with everything that was written so far, to replace this object, and returns its handle. If it
    /// cannot begin, what the file was before stays.
    pub(super) async fn resume(
        &self,
        storage: &Storage,
        state: &mut State,
        object: &Published,
    ) -> Result<u64, Failure> {
        if let Upload::Published(previous, _) = &mut state.upload
            && let Some(previous) = previous.take()
        {
            self.end(storage, previous).await?;
        }
        let is_spooled = state.spool.is_kept() && state.spool.length() == state.length;
        if !is_spooled && storage.copies(state.length) {
            let handle = self.open_again(storage, state, object, true).await?;
            // Nothing is written, but what writes waits until the server has copied the file.
            let copied = storage.files.write(self.ino, handle, 0, &[], 0, 0, None).await;
            match copied {
                Err(_) if storage.uploads.take_refused_copy(&object.key) => {
                    // It has failed, and its end says so again.
                    let _ = self.end(storage, handle).await;
                    state.upload = Upload::Published(None, object.clone());
                }
                copied => {
                    copied?;
                    return Ok(handle);
                }
            }
        }
        let handle = self.open_again(storage, state, object, false).await?;
        let replayed = if is_spooled {
            replay(storage, self.ino, handle, &state.spool).await
        } else {
            tracing::info!(
                key = object.key,
                bytes = state.length,
                "reading back a large file to continue it"
            );
            storage.copy(object, state.length, self.ino, handle).await
        };
        self.abort_unless(storage, state, handle, replayed).await?;
        Ok(handle)
    }

    /// Returns the handle of an upload that is to replace this object.
    async fn open_again(
        &self,
        storage: &Storage,
        state: &mut State,
        object: &Published,
        is_copied: bool,
    ) -> Result<u64, Failure> {
        let open = storage.files.open(self.ino, OpenFlags::O_WRONLY, self.opened_by);
        let handle = again(&Again::Continued { object: object.clone(), is_copied }, open).await?.fh;
        state.upload = Upload::Open(handle);
        state.copied = if is_copied { state.length } else { 0 };
        storage.uploads.has_bytes_of(handle, self.handle, state.length);
        Ok(handle)
    }

    /// What was replayed in part is not the file.
    pub(super) async fn abort_unless(
        &self,
        storage: &Storage,
        state: &mut State,
        upload: u64,
        replayed: Result<(), Failure>,
    ) -> Result<(), Failure> {
        if replayed.is_err() {
            self.abort(storage, upload).await;
            state.upload = Upload::Aborted(upload);
        }
        replayed
    }

    /// A write that cannot be makes the library abort the upload.
    pub(super) async fn abort(&self, storage: &Storage, upload: u64) {
        let _ = storage.files.write(self.ino, upload, NOWHERE, &[], 0, 0, None).await;
    }
}

/// Writes what the spool has to the beginning of an upload.
pub(super) async fn replay(storage: &Storage, ino: u64, upload: u64, spool: &Spool) -> Result<(), Failure> {
    let mut offset = 0;
    while offset < spool.length() {
        let piece = spool.read(offset, PIECE).map_err(|error| Failure::Spool(error.to_string()))?;
        let at = i64::try_from(offset).unwrap_or(i64::MAX);
        offset += u64::from(storage.files.write(ino, upload, at, &piece, 0, 0, None).await?);
    }
    Ok(())
}
