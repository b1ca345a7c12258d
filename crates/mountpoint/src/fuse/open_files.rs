//! What programs do with open files.

mod directories;
mod names;

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use async_lock::{RwLock, RwLockWriteGuard};
use bytes::Bytes;
use fuser::consts::FOPEN_DIRECT_IO;
use futures::FutureExt as _;
use futures::executor::block_on;
use mountpoint_s3_fs::fs::{OpenFlags, Opened};

use super::directory::Directory;
use super::failure::Failure;
use super::handles::{Handle, Handles};
use super::inherited::{Concerned, Inherited};
use super::origin::Origin;
use super::reader::Reader;
use super::storage::Storage;
use super::writer::Writer;
use crate::journal::{Access, Known, Open, Record};
use crate::uploads::ReadObject;

/// How often to check whether a write is still under way.
const LOOK_EVERY: Duration = Duration::from_millis(1);

pub(crate) struct OpenFiles {
    pub(super) storage: Storage,
    handles: Handles,
    /// The library itself continues files, as it can in directory buckets.
    appends: bool,
    inherited: Inherited,
    /// Every write and every rename holds it for reading.
    pub(super) writes: RwLock<()>,
}

impl OpenFiles {
    /// Begins with what was open when a predecessor died.
    pub(crate) fn new(storage: Storage, known: Option<&Known>, appends: bool) -> Self {
        let handles = Handles::after(known.map_or(0, |known| known.highest_handle));
        let (mut inherited, mut writers) = (Inherited::default(), Vec::new());
        for (number, known) in known.into_iter().flat_map(|known| &known.handles) {
            let Open { ino, flags, unique, .. } = known.open;
            let handle = match known.open.access {
                Access::Read => {
                    inherited.add_reader(ino, *number);
                    Handle::Reader(Arc::new(Reader::inherit(*number, known)))
                }
                Access::List => {
                    Handle::Directory(Arc::new(Directory::inherit(ino, flags, known.names.clone())))
                }
                Access::Write | Access::Append if known.is_lost() && known.to_complete().is_none() => {
                    Handle::Lost
                }
                Access::Write | Access::Append => match Writer::inherit(&storage, *number, known) {
                    Ok(writer) => {
                        inherited.add_writer(ino, *number, storage.numbers.place(ino));
                        writers.push(*number);
                        Handle::Writer(Arc::new(writer))
                    }
                    Err(error) => {
                        tracing::error!(%error, key = known.open.key, "cannot open what a file had so far: it is lost");
                        // Also for the next process: it will not find what is removed below.
                        storage.journal.record(&Record::Unspooled(*number));
                        if known.open.creates {
                            storage.numbers.not_uploaded(ino);
                        }
                        Handle::Lost
                    }
                },
            };
            handles.insert(*number, unique, handle);
        }
        if known.is_some() {
            storage.spools.keep_only(&writers);
        }
        Self { storage, handles, appends, inherited, writes: RwLock::new(()) }
    }

    /// Opens every file again that a predecessor was writing, even if no program asks for it, because the library must know
    /// of it when it decides about other programs. No request waits for this.
    pub(crate) fn reopen_in_background(self: Arc<Self>) -> io::Result<()> {
        if !self.inherited.has_writers() {
            return Ok(());
        }
        let reopen = move || block_on(self.inherited.reopen_all_writers(&self.storage, &self.handles));
        thread::Builder::new().name("reopen".to_owned()).spawn(reopen).map(drop)
    }

    /// From now on, all writes wait; `None` if some that were under way did not end in time.
    pub(crate) fn pause_writes(&self, within: Duration) -> Option<RwLockWriteGuard<'_, ()>> {
        let until = Instant::now() + within;
        // Once it was polled, writes that begin later wait for it.
        let mut pause = pin!(self.writes.write());
        loop {
            match pause.as_mut().now_or_never() {
                None if Instant::now() < until => thread::sleep(LOOK_EVERY),
                paused => return paused,
            }
        }
    }

    /// Opens those files again that a predecessor was writing and that a request is about. The library has to know of them
    /// before it says how large they are.
    pub(super) async fn reopen_writers(&self, which: Concerned<'_>) {
        self.inherited.reopen_writers(&self.storage, &self.handles, which).await;
    }

    /// Opens the file again for all that had it open, because the library decides by that who else may use it.
    async fn reopen(&self, ino: u64) {
        self.reopen_writers(Concerned::File(ino)).await;
        self.inherited.reopen_readers(&self.storage, &self.handles, ino).await;
    }

    /// What the request has opened, if a predecessor died with it.
    fn opened_before(&self, origin: Origin, flags: i32) -> Option<Opened> {
        let fh = if origin.is_repeated { self.handles.opened_by(origin.unique)? } else { return None };
        let flags = if OpenFlags::from(flags).direct_io() { FOPEN_DIRECT_IO } else { 0 };
        Some(Opened { fh, flags })
    }

    fn insert(&self, number: u64, open: Open, handle: Handle) {
        self.handles.insert(number, open.unique, handle);
        self.storage.journal.record(&Record::Opened(number, open));
    }

    pub(super) async fn open(
        &self,
        ino: u64,
        flags: i32,
        pid: u32,
        origin: Origin,
    ) -> Result<Opened, Failure> {
        if let Some(opened) = self.opened_before(origin, flags) {
            return Ok(opened);
        }
        let flags_of_open = OpenFlags::from(flags);
        if flags_of_open.intersects(OpenFlags::O_WRONLY | OpenFlags::O_RDWR) {
            // The number of writers is limited by memory, and those that have written already come first.
            self.reopen_writers(Concerned::All).await;
        }
        self.reopen(ino).await;
        let Storage { files, uploads, .. } = &self.storage;
        let opened = files.open(ino, flags_of_open, pid).await?;
        let library = opened.fh;
        let number = self.handles.next_number();
        let open = Open::new(ino, flags, pid, origin.unique);
        let (open, handle) = match uploads.key(library) {
            None => {
                let object = uploads.read_by(ino, library);
                let open = Open { version: ReadObject::version(object.as_ref()), ..open };
                // Of other files, what another client has put there has a number of its own.
                if self.inherited.has_written(ino) {
                    for writer in self.handles.writers(ino) {
                        writer.forget_replaced(open.version);
                    }
                }
                let reader = Reader::new(number, &open, library, object);
                (open, Handle::Reader(Arc::new(reader)))
            }
            Some(key) if self.appends => {
                (Open { access: Access::Append, key, ..open }, Handle::Appender(library))
            }
            Some(key) => {
                let (creates, version) = (uploads.creates(library), uploads.replaces(library));
                let open = Open { access: Access::Write, key, creates, version, ..open };
                let writer = Writer::new(&self.storage, number, &open, library);
                for other in self.handles.writers(ino) {
                    other.forget_length();
                }
                (open, Handle::Writer(Arc::new(writer)))
            }
        };
        self.insert(number, open, handle);
        Ok(Opened { fh: number, ..opened })
    }

    pub(super) fn is_open_for_writing(&self, ino: u64) -> bool {
        !self.handles.writers(ino).is_empty()
    }

    pub(super) async fn read(&self, ino: u64, fh: u64, offset: i64, size: u32) -> Result<Bytes, Failure> {
        // The kernel's offsets are not negative.
        let from = u64::try_from(offset).unwrap_or_default();
        match self.handles.get(fh)? {
            Handle::Reader(reader) => {
                let read = reader.read(&self.storage, from, size).await?;
                // The kernel has one size for all that have the file open, and fills with zeros what a reader's object has not.
                let is_short = read.len() < usize::try_from(size).unwrap_or(usize::MAX);
                if is_short && self.handles.is_longer_than(ino, from + read.len() as u64) {
                    return Err(Failure::Replaced);
                }
                Ok(read)
            }
            // The library says that it cannot be read.
            Handle::Appender(library) => {
                Ok(self.storage.files.read(ino, library, offset, size, 0, None).await?)
            }
            Handle::Writer(writer) => writer.read(from, size).await,
            Handle::Directory(_) | Handle::Lost => Err(Failure::BadHandle),
        }
    }

    pub(super) async fn write(
        &self,
        ino: u64,
        fh: u64,
        offset: i64,
        content: &[u8],
        origin: Origin,
    ) -> Result<u32, Failure> {
        let _passage = self.writes.read().await;
        // A writer that continues excludes others, and others exclude it.
        self.reopen_writers(Concerned::File(ino)).await;
        match self.handles.get(fh)? {
            Handle::Writer(writer) => writer.write(&self.storage, offset, content, origin).await,
            Handle::Appender(library) => {
                Ok(self.storage.files.write(ino, library, offset, content, 0, 0, None).await?)
            }
            Handle::Reader(reader) => {
                // The library says that it cannot be written.
                let library = reader.library(&self.storage).await?;
                Ok(self.storage.files.write(ino, library, offset, content, 0, 0, None).await?)
            }
            Handle::Directory(_) => Err(Failure::BadHandle),
            Handle::Lost => Err(Failure::Lost),
        }
    }

    pub(super) async fn sync(&self, ino: u64, fh: u64, datasync: bool) -> Result<(), Failure> {
        match self.handles.get(fh)? {
            Handle::Writer(writer) => writer.sync(&self.storage, datasync).await,
            Handle::Appender(library) => Ok(self.storage.files.fsync(ino, library, datasync).await?),
            Handle::Reader(_) => Ok(()),
            Handle::Directory(_) => Err(Failure::BadHandle),
            Handle::Lost => Err(Failure::Lost),
        }
    }

    pub(super) async fn flush(&self, ino: u64, fh: u64, lock: u64, pid: u32) -> Result<(), Failure> {
        match self.handles.get(fh)? {
            Handle::Writer(writer) => writer.flush(&self.storage, pid).await,
            Handle::Appender(library) => Ok(self.storage.files.flush(ino, library, lock, pid).await?),
            Handle::Reader(reader) => reader.flush(&self.storage, lock, pid).await,
            Handle::Directory(_) => Err(Failure::BadHandle),
            Handle::Lost => Err(Failure::Lost),
        }
    }

    pub(super) async fn release(&self, ino: u64, fh: u64, flags: i32, origin: Origin) -> Result<(), Failure> {
        let released = match self.handles.get(fh) {
            // A predecessor has done it.
            Err(Failure::BadHandle) if origin.is_repeated => return Ok(()),
            Err(failure) => return Err(failure),
            Ok(Handle::Writer(writer)) => writer.release(&self.storage).await,
            Ok(Handle::Appender(library)) => {
                let released = self.storage.files.release(ino, library, flags, None, false).await;
                self.storage.uploads.end(library);
                released.map_err(Failure::from)
            }
            Ok(Handle::Reader(reader)) => reader.release(&self.storage).await,
            Ok(Handle::Lost) => Ok(()),
            Ok(Handle::Directory(_)) => return Err(Failure::BadHandle),
        };
        self.forget(fh);
        released
    }

    /// Called when the last upload has ended, because a successor does not complete the upload of a file that is not open.
    /// The record comes before the spool goes: otherwise a successor would find a file that nothing was written to.
    pub(super) fn forget(&self, fh: u64) {
        // If it was released twice at the same time, only one finds it.
        if let Ok(handle) = self.handles.remove(fh) {
            self.storage.journal.record(&Record::Closed(fh));
            drop(handle);
        }
    }
}
