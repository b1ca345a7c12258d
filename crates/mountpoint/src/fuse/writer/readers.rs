//! What programs that read a file get while it is open for writing.

use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::{Upload, Writer};
use crate::fuse::failure::Failure;
use crate::journal::Version;

impl Writer {
    /// Bytes that the kernel may take the file for.
    pub(in crate::fuse) fn length(&self) -> u64 {
        self.length.load(Ordering::Relaxed)
    }

    /// What was written is not the file any more: another program has emptied it since, or its upload has failed. Readers
    /// would else be refused for bytes that no object has.
    pub(in crate::fuse) fn forget_length(&self) {
        self.length.store(0, Ordering::Relaxed);
    }

    /// The same if what it has published is not the object that there is now.
    pub(in crate::fuse) fn forget_replaced(&self, now: Version) {
        if let Some(state) = self.state.try_lock()
            && let Upload::Published(_, object) = &state.upload
            && Version::of(Some(object.etag.as_str())) != now
        {
            self.forget_length();
        }
    }

    /// What the program itself has written, as long as all of it is kept and is the file.
    pub(in crate::fuse) async fn read(&self, offset: u64, size: u32) -> Result<Bytes, Failure> {
        let state = self.state.lock().await;
        if state.spool.length() != state.length || self.length() != state.length {
            return Err(Failure::BadHandle);
        }
        let at_most = usize::try_from(size).unwrap_or(usize::MAX);
        let read = state.spool.read(offset, at_most).map_err(|error| Failure::Spool(error.to_string()))?;
        Ok(read.into())
    }
}
