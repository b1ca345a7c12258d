//! A file that is open for reading. It is one version of an object, whichever mount process serves it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use futures::lock::Mutex;
use mountpoint_s3_fs::fs::{OpenFlags, ToErrno as _};
use rustix::io::Errno;

use super::failure::Failure;
use super::read_pattern::{Fetch, ReadPattern};
use super::storage::Storage;
use crate::journal::{self, Open, Record, Version};
use crate::server_timeout::Awaited;
use crate::uploads::ReadObject;

/// The library's handles are counted from one.
const NONE: u64 = 0;

pub(super) struct Reader {
    /// As the kernel knows it.
    handle: u64,
    ino: u64,
    pid: u32,
    direct: bool,
    version: Version,
    /// The library's handle, once this process has one, and what it reads.
    library: AtomicU64,
    object: OnceLock<ReadObject>,
    pattern: parking_lot::Mutex<ReadPattern>,
    /// Locked while it is being opened again; whether it was closed for good.
    is_released: Mutex<bool>,
    /// A program has closed it since it was last read. Then the library lets others write the file.
    is_idle: AtomicBool,
}

impl Reader {
    pub(super) fn new(handle: u64, open: &Open, library: u64, object: Option<ReadObject>) -> Self {
        Self {
            handle,
            ino: open.ino,
            pid: open.pid,
            direct: OpenFlags::from(open.flags).direct_io(),
            version: open.version,
            library: AtomicU64::new(library),
            object: object.map_or_else(OnceLock::new, OnceLock::from),
            pattern: parking_lot::Mutex::default(),
            is_released: Mutex::default(),
            is_idle: AtomicBool::new(false),
        }
    }

    /// Opened by a predecessor.
    pub(super) fn inherit(handle: u64, known: &journal::Handle) -> Self {
        let is_idle = AtomicBool::new(known.is_idle);
        Self { is_idle, ..Self::new(handle, &known.open, NONE, None) }
    }

    pub(super) async fn read(&self, storage: &Storage, offset: u64, size: u32) -> Result<Bytes, Failure> {
        let was_idle = self.is_idle.load(Ordering::Relaxed) && self.is_idle.swap(false, Ordering::SeqCst);
        if was_idle {
            storage.journal.record(&Record::Busy(self.handle));
        }
        let library = self.library(storage).await?;
        let fetch = self.pattern.lock().read(offset, size.into());
        // A reader that was idle may have lost the file to a writer, which the library knows.
        let exactly = fetch == Fetch::Exactly && !was_idle && storage.fetches_exactly();
        let object = self.object.get().filter(|_| exactly);
        // The client does not end a download that stalls. A reader can fail at any time: the library keeps count of what was
        // read from the download, and the next reader continues from there.
        let content = storage.server_timeout.limit(Awaited::Transfer, async {
            if let Some(object) = object
                && let Some(content) = read_exactly(storage, object, offset, size).await
            {
                return Ok(content);
            }
            let offset = i64::try_from(offset).unwrap_or(i64::MAX);
            match storage.files.read(self.ino, library, offset, size, 0, None).await {
                // A program has closed it once, and another has replaced or renamed the file since.
                Err(error) if error.to_errno() == Errno::BADF.raw_os_error() => Err(Failure::Replaced),
                content => Ok(content?),
            }
        });
        content.await?
    }

    pub(super) async fn flush(&self, storage: &Storage, lock: u64, pid: u32) -> Result<(), Failure> {
        if !self.is_idle.swap(true, Ordering::SeqCst) {
            storage.journal.record(&Record::Idle(self.handle));
        }
        match self.opened() {
            Some(library) => Ok(storage.files.flush(self.ino, library, lock, pid).await?),
            None => Ok(()),
        }
    }

    /// The library's handle, which is opened when it is first needed, because most open files are not being read.
    pub(super) async fn library(&self, storage: &Storage) -> Result<u64, Failure> {
        if let Some(library) = self.opened() {
            return Ok(library);
        }
        let is_released = self.is_released.lock().await;
        if *is_released {
            return Err(Failure::BadHandle);
        }
        if let Some(library) = self.opened() {
            return Ok(library);
        }
        let flags = if self.direct { OpenFlags::O_DIRECT } else { OpenFlags::empty() };
        let library = storage.files.open(self.ino, flags, self.pid).await?.fh;
        let object = storage.uploads.read_by(self.ino, library);
        if ReadObject::version(object.as_ref()) != self.version {
            storage.files.release(self.ino, library, 0, None, false).await?;
            return Err(Failure::Replaced);
        }
        if let Some(object) = object {
            // If it was set before, it was to the same version.
            let _ = self.object.set(object);
        }
        self.library.store(library, Ordering::SeqCst);
        // Checked after the handle is stored, so that a close at this moment is either noticed here or finds the handle.
        if self.is_idle.load(Ordering::SeqCst) {
            storage.files.flush(self.ino, library, 0, self.pid).await?;
        }
        Ok(library)
    }

    /// Waits while the file is being opened again for another program. Otherwise the library would never learn of the close,
    /// and refuse every writer of the file.
    pub(super) async fn release(&self, storage: &Storage) -> Result<(), Failure> {
        let mut is_released = self.is_released.lock().await;
        *is_released = true;
        match self.opened() {
            Some(library) => Ok(storage.files.release(self.ino, library, 0, None, false).await?),
            None => Ok(()),
        }
    }

    /// The library's handle, if this process has one.
    fn opened(&self) -> Option<u64> {
        Some(self.library.load(Ordering::SeqCst)).filter(|library| *library != NONE)
    }
}

/// `None` if the library must try it, because it knows how to report what is wrong.
async fn read_exactly(storage: &Storage, object: &ReadObject, offset: u64, size: u32) -> Option<Bytes> {
    let end = object.length.min(offset.saturating_add(size.into()));
    if offset >= end {
        return None;
    }
    let fetched = storage.fetch(&object.key, &object.etag, offset..end).await;
    fetched.inspect_err(|reason| tracing::debug!(reason, "cannot read a part of an object by itself")).ok()
}
