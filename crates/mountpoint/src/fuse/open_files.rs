//! What programs do with open files and directories.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_lock::{RwLock, RwLockWriteGuard};
use fuser::consts::FOPEN_DIRECT_IO;
use futures::FutureExt as _;
use futures::future::join_all;
use futures::lock::Mutex;
use mountpoint_s3_fs::fs::{DirectoryReplier, OpenFlags, Opened};

use super::directory::Directory;
use super::failure::Failure;
use super::handles::{Handle, Handles};
use super::origin::Origin;
use super::reader::Reader;
use super::storage::Storage;
use super::writer::Writer;
use crate::journal::{Access, Known, Open, Record};

/// Between looks whether a write is under way.
const LOOK_EVERY: Duration = Duration::from_millis(1);

pub(crate) struct OpenFiles {
    pub(super) storage: Storage,
    handles: Handles,
    /// The library itself continues files, as it can in directory buckets.
    appends: bool,
    /// Files that a predecessor had opened for reading, by inode, until they matter.
    inherited_readers: HashMap<u64, Mutex<Vec<u64>>>,
    /// Files that it had opened for writing, until the first request that they matter to.
    inherited_writers: Mutex<Vec<u64>>,
    has_inherited_writers: AtomicBool,
    /// Every write holds it for reading.
    writes: RwLock<()>,
}

impl OpenFiles {
    /// With what was open when a predecessor died.
    pub(crate) fn new(storage: Storage, known: Option<&Known>, appends: bool) -> Self {
        let handles = Handles::after(known.map_or(0, |known| known.highest_handle));
        let mut readers = HashMap::<u64, Mutex<Vec<u64>>>::new();
        let mut writers = Vec::new();
        for (number, known) in known.into_iter().flat_map(|known| &known.handles) {
            let Open { ino, flags, unique, .. } = known.open;
            let handle = match known.open.access {
                Access::Read => Handle::Reader(Arc::new(Reader::inherit(*number, known))),
                Access::List => {
                    Handle::Directory(Arc::new(Directory::inherit(ino, flags, known.names.clone())))
                }
                Access::Write | Access::Append if known.is_lost() => Handle::Lost,
                Access::Write | Access::Append => {
                    Handle::Writer(Arc::new(Writer::inherit(&storage, *number, known)))
                }
            };
            match handle {
                Handle::Reader(_) => readers.entry(ino).or_default().get_mut().push(*number),
                Handle::Writer(_) => writers.push(*number),
                Handle::Appender(_) | Handle::Directory(_) | Handle::Lost => {}
            }
            handles.insert(*number, unique, handle);
        }
        if known.is_some() {
            storage.spools.keep_only(&writers);
        }
        Self {
            storage,
            handles,
            appends,
            inherited_readers: readers,
            has_inherited_writers: AtomicBool::new(!writers.is_empty()),
            inherited_writers: Mutex::new(writers),
            writes: RwLock::new(()),
        }
    }

    /// From now on, all writes wait; `None` if some that were under way did not end in time.
    pub(crate) fn pause_writes(&self, within: Duration) -> Option<RwLockWriteGuard<'_, ()>> {
        let until = Instant::now() + within;
        // Polled once, it comes before writes that begin later.
        let mut pause = pin!(self.writes.write());
        loop {
            match pause.as_mut().now_or_never() {
                None if Instant::now() < until => std::thread::sleep(LOOK_EVERY),
                paused => return paused,
            }
        }
    }

    /// The library has to know what a predecessor had opened for writing before it tells anyone the size of a file, which is
    /// that of what was written. What cannot be opened now is tried again when it is used, and fails then.
    pub(super) async fn reopen_writers(&self) {
        if !self.has_inherited_writers.load(Ordering::Acquire) {
            return;
        }
        let mut inherited = self.inherited_writers.lock().await;
        let writers = inherited.drain(..).filter_map(|number| match self.handles.get(number) {
            Ok(Handle::Writer(writer)) => Some(writer),
            _ => None,
        });
        join_all(writers.map(async |writer| drop(writer.reopen(&self.storage).await))).await;
        self.has_inherited_writers.store(false, Ordering::Release);
    }

    /// The library decides who else may use a file, and for that has to know who has it open. Most of what a predecessor had
    /// opened does not matter to anyone else, and is opened again when it is used.
    pub(super) async fn reopen(&self, ino: u64) {
        self.reopen_writers().await;
        let Some(inherited) = self.inherited_readers.get(&ino) else { return };
        let mut inherited = inherited.lock().await;
        for number in inherited.drain(..) {
            if let Ok(Handle::Reader(reader)) = self.handles.get(number) {
                // As above.
                let _ = reader.library(&self.storage).await;
            }
        }
    }

    pub(super) async fn reopen_named(&self, parent: u64, name: &OsStr) {
        self.reopen_writers().await;
        if self.inherited_readers.is_empty() {
            return;
        }
        if let Ok(entry) = self.storage.files.lookup(parent, name).await {
            self.reopen(entry.attr.ino).await;
            self.storage.files.forget(entry.attr.ino, 1).await;
        }
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
        self.reopen(ino).await;
        let Storage { files, uploads, .. } = &self.storage;
        let opened = files.open(ino, flags.into(), pid).await?;
        let library = opened.fh;
        let number = self.handles.next_number();
        let open = Open::new(ino, flags, pid, origin.unique);
        let (open, handle) = match uploads.key(library) {
            None => {
                let open = Open { version: uploads.read_by(ino, library), ..open };
                let reader = Reader::new(number, &open, library);
                (open, Handle::Reader(Arc::new(reader)))
            }
            Some(key) if self.appends => {
                (Open { access: Access::Append, key, ..open }, Handle::Appender(library))
            }
            Some(key) => {
                let open = Open { access: Access::Write, key, creates: uploads.creates(library), ..open };
                let writer = Writer::new(&self.storage, number, &open, library);
                (open, Handle::Writer(Arc::new(writer)))
            }
        };
        self.insert(number, open, handle);
        Ok(Opened { fh: number, ..opened })
    }

    pub(super) fn is_open_for_writing(&self, ino: u64) -> bool {
        !self.handles.writers(ino).is_empty()
    }

    /// The library's number of a file that can be read.
    pub(super) async fn reader(&self, fh: u64) -> Result<u64, Failure> {
        match self.handles.get(fh)? {
            Handle::Reader(reader) => reader.read(&self.storage).await,
            // The library says that it cannot be read.
            Handle::Appender(library) => Ok(library),
            Handle::Writer(_) | Handle::Directory(_) | Handle::Lost => Err(Failure::BadHandle),
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
        self.reopen_writers().await;
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

    /// Not before its last upload has ended: a successor would not complete it. And before its spool goes: a successor would
    /// take it for a file that nothing was written to.
    fn forget(&self, fh: u64) {
        // Of all who may release it only one has.
        if let Ok(handle) = self.handles.remove(fh) {
            self.storage.journal.record(&Record::Closed(fh));
            drop(handle);
        }
    }

    pub(super) async fn open_directory(
        &self,
        ino: u64,
        flags: i32,
        origin: Origin,
    ) -> Result<Opened, Failure> {
        if let Some(opened) = self.opened_before(origin, 0) {
            return Ok(opened);
        }
        // The library keeps what it knows of the new files in a directory when that is opened, with their sizes.
        self.reopen_writers().await;
        let opened = self.storage.files.opendir(ino, flags).await?;
        let number = self.handles.next_number();
        let open = Open { access: Access::List, ..Open::new(ino, flags, 0, origin.unique) };
        self.insert(number, open, Handle::Directory(Arc::new(Directory::new(ino, flags, opened.fh))));
        Ok(Opened { fh: number, ..opened })
    }

    pub(super) async fn list(
        &self,
        fh: u64,
        offset: i64,
        with_attributes: bool,
        to: impl DirectoryReplier + Send + Sync,
    ) -> Result<(), Failure> {
        self.reopen_writers().await;
        let Handle::Directory(directory) = self.handles.get(fh)? else { return Err(Failure::BadHandle) };
        let added = directory.list(&self.storage, offset, with_attributes, to).await?;
        if !added.names.is_empty() {
            let offset = u64::try_from(offset).unwrap_or_default();
            self.storage.journal.record(&Record::Listed(fh, offset, added.names));
        }
        Ok(())
    }

    pub(super) async fn release_directory(&self, fh: u64, origin: Origin) -> Result<(), Failure> {
        match self.handles.get(fh) {
            Err(Failure::BadHandle) if origin.is_repeated => Ok(()),
            Err(failure) => Err(failure),
            Ok(Handle::Directory(directory)) => {
                self.forget(fh);
                directory.close(&self.storage).await
            }
            Ok(_) => Err(Failure::BadHandle),
        }
    }
}
