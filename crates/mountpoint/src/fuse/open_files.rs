//! What programs do with open files and directories.

use std::sync::Arc;

use mountpoint_s3_fs::fs::Opened;

use super::failure::Failure;
use super::handles::{Handle, Handles};
use super::replies::{Names, NamesAndAttributes};
use super::storage::Storage;
use super::writer::Writer;

pub(crate) struct OpenFiles {
    pub(super) storage: Storage,
    handles: Handles,
    /// The library itself continues files, as it can in directory buckets.
    appends: bool,
}

impl OpenFiles {
    pub(crate) fn new(storage: Storage, appends: bool) -> Self {
        Self { storage, handles: Handles::default(), appends }
    }

    pub(super) async fn open(&self, ino: u64, flags: i32, pid: u32) -> Result<Opened, Failure> {
        let Opened { fh, flags } = self.storage.files.open(ino, flags.into(), pid).await?;
        let handle = if self.storage.uploads.writes(fh) && !self.appends {
            Handle::Writer(Arc::new(Writer::new(&self.storage, ino, fh, pid)))
        } else {
            Handle::Plain(fh)
        };
        Ok(Opened { fh: self.handles.insert(handle), flags })
    }

    pub(super) fn is_open_for_writing(&self, ino: u64) -> bool {
        self.handles.any(|handle| matches!(handle, Handle::Writer(writer) if writer.ino == ino))
    }

    /// The library's number of a file that can be read.
    pub(super) fn reader(&self, fh: u64) -> Result<u64, Failure> {
        match self.handles.get(fh)? {
            Handle::Plain(handle) => Ok(handle),
            Handle::Writer(_) | Handle::Directory(_) => Err(Failure::BadHandle),
        }
    }

    pub(super) async fn write(
        &self,
        ino: u64,
        fh: u64,
        offset: i64,
        content: Vec<u8>,
    ) -> Result<u32, Failure> {
        match self.handles.get(fh)? {
            Handle::Plain(handle) => {
                Ok(self.storage.files.write(ino, handle, offset, &content, 0, 0, None).await?)
            }
            Handle::Writer(writer) => writer.write(&self.storage, offset, content).await,
            Handle::Directory(_) => Err(Failure::BadHandle),
        }
    }

    pub(super) async fn sync(&self, ino: u64, fh: u64, datasync: bool) -> Result<(), Failure> {
        match self.handles.get(fh)? {
            Handle::Plain(handle) => Ok(self.storage.files.fsync(ino, handle, datasync).await?),
            Handle::Writer(writer) => writer.sync(&self.storage, datasync).await,
            Handle::Directory(_) => Err(Failure::BadHandle),
        }
    }

    pub(super) async fn flush(&self, ino: u64, fh: u64, lock: u64, pid: u32) -> Result<(), Failure> {
        match self.handles.get(fh)? {
            Handle::Plain(handle) => Ok(self.storage.files.flush(ino, handle, lock, pid).await?),
            Handle::Writer(writer) => writer.flush(&self.storage, pid).await,
            Handle::Directory(_) => Err(Failure::BadHandle),
        }
    }

    pub(super) async fn release(&self, ino: u64, fh: u64, flags: i32) -> Result<(), Failure> {
        match self.handles.remove(fh)? {
            Handle::Plain(handle) => {
                let released = self.storage.files.release(ino, handle, flags, None, false).await;
                self.storage.uploads.end(handle);
                Ok(released?)
            }
            Handle::Writer(writer) => writer.release(&self.storage).await,
            Handle::Directory(_) => Err(Failure::BadHandle),
        }
    }

    pub(super) async fn open_directory(&self, ino: u64, flags: i32) -> Result<Opened, Failure> {
        let Opened { fh, flags } = self.storage.files.opendir(ino, flags).await?;
        Ok(Opened { fh: self.handles.insert(Handle::Directory(fh)), flags })
    }

    pub(super) async fn list(&self, ino: u64, fh: u64, offset: i64, to: Names<'_>) -> Result<(), Failure> {
        Ok(self.storage.files.readdir(ino, self.directory(fh)?, offset, to).await?)
    }

    pub(super) async fn list_plus(
        &self,
        ino: u64,
        fh: u64,
        offset: i64,
        to: NamesAndAttributes<'_>,
    ) -> Result<(), Failure> {
        Ok(self.storage.files.readdirplus(ino, self.directory(fh)?, offset, to).await?)
    }

    /// The library's number of a directory.
    fn directory(&self, fh: u64) -> Result<u64, Failure> {
        match self.handles.get(fh)? {
            Handle::Directory(handle) => Ok(handle),
            Handle::Plain(_) | Handle::Writer(_) => Err(Failure::BadHandle),
        }
    }

    pub(super) async fn release_directory(&self, ino: u64, fh: u64, flags: i32) -> Result<(), Failure> {
        let handle = self.directory(fh)?;
        self.handles.remove(fh)?;
        Ok(self.storage.files.releasedir(ino, handle, flags).await?)
    }
}
