//! A file that is open for writing. Several programs may hold it, and each of them closes it: every close publishes what was
//! written so far, because only then the program that closes hears of a failure, and a later write continues from there.

mod completion;
mod ending;
mod readers;
mod resumption;
mod succession;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_lock::OnceCell;
use futures::lock::Mutex;
use mountpoint_s3_fs::fs::{Error, OpenFlags, ToErrno as _};
use rustix::io::Errno;

use super::failure::Failure;
use super::origin::Origin;
use super::spool::Spool;
use super::storage::Storage;
use crate::journal::{Completion, Open, Record, Version};
use crate::uploads::Published;

/// An offset that no file reaches.
const NOWHERE: i64 = i64::MAX;

pub(super) struct Writer {
    /// As the kernel knows it.
    handle: u64,
    pub(super) ino: u64,
    key: String,
    /// There was no object when it was opened.
    creates: bool,
    /// The object that there was.
    replaces: Version,
    /// By a mount process that died.
    is_inherited: bool,
    flags: OpenFlags,
    /// The process that opened it. In a pod all processes have the number 0.
    opened_by: u32,
    /// Bytes written, for those that must not wait for the state.
    length: AtomicU64,
    /// No program has it open any more.
    is_ending: AtomicBool,
    ended: OnceCell<()>,
    state: Mutex<State>,
}

struct State {
    upload: Upload,
    /// Bytes written.
    length: u64,
    /// Bytes at the beginning of the upload that the server has copied, so that the library does not know of them.
    copied: u64,
    /// It was closed once before anything was written.
    closed_empty: bool,
    spool: Spool,
    /// The journal says that the spool does not have everything that is not published.
    unspooled: bool,
}

enum Upload {
    /// The library's handle of an upload that is in progress, or has failed.
    Open(u64),
    /// Everything written so far is this object. The library's handle is kept for its share of the memory, so that other
    /// writers cannot keep this one from continuing.
    Published(Option<u64>, Published),
    /// A mount process died with the upload. It was to replace this object, if the file had been published before.
    Interrupted(Option<Published>),
    /// A mount process died while it completed the upload, of which nothing else is kept.
    Completing(Box<Completion>),
    /// What had been written could not be written to this upload again.
    Aborted(u64),
    /// It could not be repeated when a program needed it.
    Failed,
}

impl Writer {
    pub(super) fn new(storage: &Storage, handle: u64, open: &Open, library: u64) -> Self {
        storage.uploads.has_bytes_of(library, handle, 0);
        let spool = Spool::new(storage.spools.clone(), handle);
        let state = State {
            upload: Upload::Open(library),
            length: 0,
            copied: 0,
            closed_empty: false,
            spool,
            unspooled: false,
        };
        Self::with(handle, open, state, false)
    }

    fn with(handle: u64, open: &Open, state: State, is_inherited: bool) -> Self {
        let Open { ino, flags, pid: opened_by, creates, version: replaces, .. } = *open;
        Self {
            handle,
            ino,
            key: open.key.clone(),
            creates,
            replaces,
            is_inherited,
            flags: flags.into(),
            opened_by,
            length: AtomicU64::new(state.length),
            is_ending: AtomicBool::new(false),
            ended: OnceCell::new(),
            state: Mutex::new(state),
        }
    }

    pub(super) async fn write(
        &self,
        storage: &Storage,
        offset: i64,
        content: &[u8],
        origin: Origin,
    ) -> Result<u32, Failure> {
        let mut state = self.state.lock().await;
        // What a mount process had kept that died before the kernel got the answer.
        let kept = if origin.is_repeated { state.kept(offset, content)? } else { 0 };
        let (offset, rest) = (offset.saturating_add_unsigned(kept as u64), &content[kept..]);
        if !rest.is_empty() || kept == 0 {
            let written = self.write_to(storage, &mut state, offset, rest).await;
            self.fail_unless(storage, &mut state, written)?;
        }
        Ok(u32::try_from(content.len()).unwrap_or(u32::MAX))
    }

    async fn write_to(
        &self,
        storage: &Storage,
        state: &mut State,
        offset: i64,
        content: &[u8],
    ) -> Result<(), Failure> {
        state.note_published(storage);
        self.repeat(storage, state).await?;
        let upload = match &state.upload {
            Upload::Open(upload) => *upload,
            Upload::Published(..) if u64::try_from(offset) != Ok(state.length) => {
                return Err(Failure::OutOfOrder { offset, length: state.length });
            }
            Upload::Published(_, object) => {
                let object = object.clone();
                self.resume(storage, state, &object).await?
            }
            Upload::Aborted(_) => return Err(Failure::Aborted),
            Upload::Interrupted(_) | Upload::Completing(_) | Upload::Failed => return Err(Failure::Lost),
        };
        let write = async |upload, copied| {
            let offset = offset.saturating_sub_unsigned(copied);
            storage.files.write(self.ino, upload, offset, content, 0, 0, None).await
        };
        let (upload, written) = match write(upload, state.copied).await {
            // Its upload was left to a later close, and the library is completing it for another program that has opened the
            // file since.
            Err(error) if error.to_errno() == Errno::BADF.raw_os_error() => {
                storage.files.fsync(self.ino, upload, false).await?;
                state.note_published(storage);
                let Upload::Published(_, object) = &state.upload else { return Err(error.into()) };
                let object = object.clone();
                let upload = self.resume(storage, state, &object).await?;
                (upload, write(upload, state.copied).await?)
            }
            written => (upload, written?),
        };
        state.length += u64::from(written);
        self.length.store(state.length, Ordering::Relaxed);
        storage.uploads.has_bytes_of(upload, self.handle, state.length);
        if !state.spool.append(content) {
            // Before it goes: a successor would take an empty spool for all that was written.
            self.note_unspooled(storage, state);
            state.spool.give_up();
        }
        Ok(())
    }

    /// Once a program has got an error, the file must not be published without what it could not write: not by a later
    /// close, and not by a successor.
    fn fail_unless(
        &self,
        storage: &Storage,
        state: &mut State,
        done: Result<(), Failure>,
    ) -> Result<(), Failure> {
        match state.upload {
            _ if done.is_ok() => {}
            // There is nothing to publish, or the library remembers that it has failed.
            Upload::Published(..) | Upload::Failed => {}
            Upload::Open(_) | Upload::Aborted(_) => self.note_failure(storage, state),
            Upload::Interrupted(_) | Upload::Completing(_) => self.give_up(storage, state),
        }
        done
    }

    /// It cannot be published any more.
    fn give_up(&self, storage: &Storage, state: &mut State) {
        if let Upload::Completing(completion) = std::mem::replace(&mut state.upload, Upload::Failed) {
            storage.abort(&completion.upload);
        }
        self.note_failure(storage, state);
    }

    /// Also if it was recorded before: the upload may have been about to be completed since.
    fn note_failure(&self, storage: &Storage, state: &mut State) {
        self.forget_length();
        state.unspooled = false;
        self.note_unspooled(storage, state);
    }

    fn note_unspooled(&self, storage: &Storage, state: &mut State) {
        if !std::mem::replace(&mut state.unspooled, true) {
            storage.journal.record(&Record::Unspooled(self.handle));
        }
    }

    pub(super) async fn flush(&self, storage: &Storage, pid: u32) -> Result<(), Failure> {
        let mut state = self.state.lock().await;
        let flushed = self.publish(storage, &mut state, async |state, upload| {
            // As long as nothing is written, the library would leave the upload to the last close, where no program hears
            // of a failure. That is right for the first close of a file that replaces another: shells close a duplicate
            // before they start the program that writes, and until it has written, the old content stays.
            if state.length == 0 && (self.creates || std::mem::replace(&mut state.closed_empty, true)) {
                return storage.files.fsync(self.ino, upload, false).await;
            }
            if state.length == 0 {
                storage.journal.record(&Record::Idle(self.handle));
            }
            // The library leaves the upload to the last close if it is given another process than the one that opened the
            // file. Only a large file is worth that: a process that starts others closes its files in each of them.
            // Nor is what the server copies, which is small then.
            let closed_by = if state.spool.is_kept() || state.copied > 0 { self.opened_by } else { pid };
            storage.files.flush(self.ino, upload, 0, closed_by).await
        });
        let flushed = flushed.await;
        self.fail_unless(storage, &mut state, flushed)
    }

    pub(super) async fn sync(&self, storage: &Storage, datasync: bool) -> Result<(), Failure> {
        let mut state = self.state.lock().await;
        let synced = self.publish(storage, &mut state, async |_, upload| {
            storage.files.fsync(self.ino, upload, datasync).await
        });
        let synced = synced.await;
        self.fail_unless(storage, &mut state, synced)
    }

    /// Has the library publish what is not, if anything is.
    async fn publish(
        &self,
        storage: &Storage,
        state: &mut State,
        publish: impl AsyncFnOnce(&mut State, u64) -> Result<(), Error>,
    ) -> Result<(), Failure> {
        state.note_published(storage);
        self.repeat(storage, state).await?;
        let upload = match state.upload {
            Upload::Open(upload) => upload,
            Upload::Published(..) => return Ok(()),
            Upload::Aborted(_) => return Err(Failure::Aborted),
            Upload::Interrupted(_) | Upload::Completing(_) | Upload::Failed => return Err(Failure::Lost),
        };
        let published = publish(state, upload).await;
        state.note_published(storage);
        match state.upload {
            // Whatever the library says: it takes what the server has copied for failed.
            Upload::Published(..) => Ok(()),
            _ => Ok(published?),
        }
    }
}

impl State {
    /// Also a program that opens the file after a close makes the library complete the upload.
    fn note_published(&mut self, storage: &Storage) {
        if let Upload::Open(upload) = self.upload
            && let Some(object) = storage.uploads.published(upload)
        {
            self.upload = Upload::Published(Some(upload), object);
            self.unspooled = false;
        }
    }
}
