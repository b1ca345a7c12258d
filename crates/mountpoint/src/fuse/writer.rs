//! A file that is open for writing. Several programs may hold it, and each of them closes it: every close publishes what was
//! written so far, because only then the program that closes hears of a failure, and a later write continues from there.

use futures::lock::Mutex;
use mountpoint_s3_fs::fs::OpenFlags;

use super::failure::Failure;
use super::spool::Spool;
use super::storage::Storage;
use crate::uploads::{Published, continuing};

/// An offset that no file reaches.
const NOWHERE: i64 = i64::MAX;

pub(super) struct Writer {
    pub(super) ino: u64,
    /// The process that opened it. In a pod all processes have the number 0.
    opened_by: u32,
    state: Mutex<State>,
}

struct State {
    upload: Upload,
    /// Bytes written.
    length: u64,
    /// It was closed once before anything was written.
    closed_empty: bool,
    spool: Spool,
}

enum Upload {
    /// The library's handle of an upload that is in progress, or has failed.
    Open(u64),
    /// Everything written so far is this object. The library's handle is kept for its share of the memory, so that other
    /// writers cannot keep this one from continuing.
    Published(Option<u64>, Published),
}

impl Writer {
    pub(super) fn new(storage: &Storage, ino: u64, handle: u64, opened_by: u32) -> Self {
        let spool = Spool::new(storage.spools.clone());
        let state = State { upload: Upload::Open(handle), length: 0, closed_empty: false, spool };
        Self { ino, opened_by, state: Mutex::new(state) }
    }

    pub(super) async fn write(
        &self,
        storage: &Storage,
        offset: i64,
        content: Vec<u8>,
    ) -> Result<u32, Failure> {
        let mut state = self.state.lock().await;
        state.note_published(storage);
        let upload = match &state.upload {
            Upload::Open(upload) => *upload,
            Upload::Published(..) if u64::try_from(offset) != Ok(state.length) => {
                return Err(Failure::OutOfOrder { offset, length: state.length });
            }
            Upload::Published(..) => self.resume(storage, &mut state).await?,
        };
        let written = storage.files.write(self.ino, upload, offset, &content, 0, 0, None).await?;
        state.length += u64::from(written);
        state.spool.append(content);
        Ok(written)
    }

    pub(super) async fn flush(&self, storage: &Storage, pid: u32) -> Result<(), Failure> {
        let mut state = self.state.lock().await;
        state.note_published(storage);
        let Upload::Open(upload) = state.upload else { return Ok(()) };
        // As long as nothing is written, the library would leave the upload to the last close, where no program hears of a
        // failure. That is right for the first close of a file that replaces another: shells close a duplicate before
        // they start the program that writes, and until it has written, the old content stays.
        if state.length == 0
            && (storage.uploads.creates(upload) || std::mem::replace(&mut state.closed_empty, true))
        {
            storage.files.fsync(self.ino, upload, false).await?;
        } else {
            // The library leaves the upload to the last close if it is given another process than the one that opened the
            // file. Only a large file is worth that: a process that starts others closes its files in each of them.
            let closed_by = if state.spool.pieces().is_some() { self.opened_by } else { pid };
            storage.files.flush(self.ino, upload, 0, closed_by).await?;
        }
        state.note_published(storage);
        Ok(())
    }

    pub(super) async fn sync(&self, storage: &Storage, datasync: bool) -> Result<(), Failure> {
        let mut state = self.state.lock().await;
        state.note_published(storage);
        let Upload::Open(upload) = state.upload else { return Ok(()) };
        storage.files.fsync(self.ino, upload, datasync).await?;
        state.note_published(storage);
        Ok(())
    }

    pub(super) async fn release(&self, storage: &Storage) -> Result<(), Failure> {
        let state = self.state.lock().await;
        match state.upload {
            Upload::Open(upload) | Upload::Published(Some(upload), _) => self.end(storage, upload).await,
            Upload::Published(None, _) => Ok(()),
        }
    }

    async fn end(&self, storage: &Storage, upload: u64) -> Result<(), Failure> {
        let released = storage.files.release(self.ino, upload, 0, None, false).await;
        storage.uploads.end(upload);
        Ok(released?)
    }

    /// Begins another upload with everything that was published, and returns its handle.
    async fn resume(&self, storage: &Storage, state: &mut State) -> Result<u64, Failure> {
        let State { upload, length, spool, .. } = state;
        let Upload::Published(previous, object) = upload else { return Err(Failure::BadHandle) };
        let object = object.clone();
        if let Some(previous) = previous.take() {
            self.end(storage, previous).await?;
        }
        let open = storage.files.open(self.ino, OpenFlags::O_WRONLY, self.opened_by);
        let handle = continuing(&object, open).await?.fh;
        *upload = Upload::Open(handle);
        if let Err(failure) = self.replay(storage, handle, &object, *length, spool).await {
            // What was replayed is not the file. A write that cannot be makes the library abort the upload.
            let _ = storage.files.write(self.ino, handle, NOWHERE, &[], 0, 0, None).await;
            return Err(failure);
        }
        Ok(handle)
    }

    async fn replay(
        &self,
        storage: &Storage,
        upload: u64,
        object: &Published,
        length: u64,
        spool: &Spool,
    ) -> Result<(), Failure> {
        let Some(pieces) = spool.pieces() else {
            tracing::info!(key = object.key, bytes = length, "reading back a large file to continue it");
            return storage.copy(object, length, self.ino, upload).await;
        };
        let mut offset = 0;
        for piece in pieces {
            offset += i64::from(storage.files.write(self.ino, upload, offset, piece, 0, 0, None).await?);
        }
        Ok(())
    }
}

impl State {
    /// Also a program that opens the file after a close makes the library complete the upload.
    fn note_published(&mut self, storage: &Storage) {
        if let Upload::Open(upload) = self.upload
            && let Some(object) = storage.uploads.published(upload)
        {
            self.upload = Upload::Published(Some(upload), object);
        }
    }
}
