//! The library's inodes, watched: what its handles write and read is recorded, and a file that this process has published can
//! be opened again to be continued, whatever else the mount's options allow.

use std::ffi::OsStr;
use std::sync::Arc;

use async_trait::async_trait;
use mountpoint_s3_client::types::ETag;
use mountpoint_s3_fs::fs::OpenFlags;
use mountpoint_s3_fs::memory::WriteHandleLimiter;
use mountpoint_s3_fs::metablock::{
    AddDirEntry, InodeError, InodeKind, InodeNo, Lookup, Metablock, NewHandle, PendingUploadHook,
    ReadWriteMode, S3Location, WriteMode,
};
use time::OffsetDateTime;

use crate::uploads::{Published, Uploads, continued};

pub(crate) struct Inodes<M> {
    library: M,
    uploads: Arc<Uploads>,
}

impl<M: Metablock> Inodes<M> {
    pub(crate) fn new(library: M, uploads: Arc<Uploads>) -> Self {
        Self { library, uploads }
    }

    async fn open_to_continue(
        &self,
        object: &Published,
        ino: InodeNo,
        fh: u64,
        flags: OpenFlags,
        limiter: Option<&WriteHandleLimiter>,
    ) -> Result<NewHandle, InodeError> {
        // The library refuses a writer while a file is being read. This one has to go on: its readers keep the object that
        // they opened, and get ESTALE if they need more of it than was fetched.
        for reader in self.uploads.readers(ino) {
            self.library.flush_reader(ino, reader).await?;
        }
        // With `incremental_upload`, the library keeps the size of the file, which it would else set to zero meanwhile.
        let mode = WriteMode { allow_overwrite: true, incremental_upload: true };
        let handle = self.library.open_handle(ino, fh, &mode, flags, limiter).await?;
        let stat = handle.lookup.stat();
        if stat.etag.as_deref() == Some(object.etag.as_str()) {
            self.uploads.begin_continuation(fh, ino, object, stat.size);
            return Ok(handle);
        }
        self.library.finish_writing(ino, None, fh).await?;
        let inode = handle.lookup.inode_err();
        Err(InodeError::StaleInode {
            remote_key: object.key.clone(),
            old_inode: inode.clone(),
            new_inode: inode,
        })
    }
}

#[async_trait]
impl<M: Metablock> Metablock for Inodes<M> {
    async fn lookup(&self, parent: InodeNo, name: &OsStr) -> Result<Lookup, InodeError> {
        self.library.lookup(parent, name).await
    }

    async fn getattr(&self, ino: InodeNo, revalidate: bool) -> Result<Lookup, InodeError> {
        self.library.getattr(ino, revalidate).await
    }

    async fn setattr(
        &self,
        ino: InodeNo,
        atime: Option<OffsetDateTime>,
        mtime: Option<OffsetDateTime>,
    ) -> Result<Lookup, InodeError> {
        self.library.setattr(ino, atime, mtime).await
    }

    async fn create(&self, dir: InodeNo, name: &OsStr, kind: InodeKind) -> Result<Lookup, InodeError> {
        self.library.create(dir, name, kind).await
    }

    async fn forget(&self, ino: InodeNo, lookups: u64) {
        self.library.forget(ino, lookups).await;
    }

    async fn open_handle(
        &self,
        ino: InodeNo,
        fh: u64,
        mode: &WriteMode,
        flags: OpenFlags,
        limiter: Option<&WriteHandleLimiter>,
    ) -> Result<NewHandle, InodeError> {
        if let Some(object) = continued() {
            return self.open_to_continue(&object, ino, fh, flags, limiter).await;
        }
        let handle = self.library.open_handle(ino, fh, mode, flags, limiter).await?;
        match handle.mode {
            ReadWriteMode::Read => self.uploads.add_reader(ino, fh),
            ReadWriteMode::Write => {
                let (location, stat) = (handle.lookup.s3_location()?, handle.lookup.stat());
                let key = location.full_key();
                self.uploads.begin(fh, location.bucket_name(), key.as_ref(), stat.etag.is_none());
            }
        }
        Ok(handle)
    }

    async fn inc_file_size(&self, ino: InodeNo, len: usize) -> Result<usize, InodeError> {
        let added = if self.uploads.is_replayed(ino, len) { 0 } else { len };
        self.library.inc_file_size(ino, added).await
    }

    async fn finish_writing(&self, ino: InodeNo, etag: Option<ETag>, fh: u64) -> Result<Lookup, InodeError> {
        self.uploads.end_replay(ino);
        let finished = self.library.finish_writing(ino, etag.clone(), fh).await?;
        if let Some(etag) = etag {
            self.uploads.publish(fh, etag);
        }
        Ok(finished)
    }

    async fn finish_reading(&self, ino: InodeNo, fh: u64) -> Result<(), InodeError> {
        self.uploads.remove_reader(ino, fh);
        self.library.finish_reading(ino, fh).await
    }

    async fn flush_reader(&self, ino: InodeNo, fh: u64) -> Result<(), InodeError> {
        self.library.flush_reader(ino, fh).await
    }

    async fn flush_writer(
        &self,
        ino: InodeNo,
        fh: u64,
        pending: PendingUploadHook,
    ) -> Result<Option<PendingUploadHook>, InodeError> {
        self.library.flush_writer(ino, fh, pending).await
    }

    async fn release_writer(
        &self,
        ino: InodeNo,
        fh: u64,
        pending: PendingUploadHook,
        location: &S3Location,
    ) -> Result<(), InodeError> {
        self.library.release_writer(ino, fh, pending, location).await
    }

    async fn try_reactivate_handle(
        &self,
        ino: InodeNo,
        fh: u64,
        mode: ReadWriteMode,
    ) -> Result<bool, InodeError> {
        self.library.try_reactivate_handle(ino, fh, mode).await
    }

    async fn new_readdir_handle(&self, dir: InodeNo) -> Result<u64, InodeError> {
        self.library.new_readdir_handle(dir).await
    }

    async fn readdir<'a>(
        &self,
        parent: InodeNo,
        fh: u64,
        offset: i64,
        is_readdirplus: bool,
        add: AddDirEntry<'a>,
    ) -> Result<(), InodeError> {
        self.library.readdir(parent, fh, offset, is_readdirplus, add).await
    }

    async fn releasedir(&self, fh: u64) -> Result<(), InodeError> {
        self.library.releasedir(fh).await
    }

    async fn rename(
        &self,
        parent: InodeNo,
        name: &OsStr,
        new_parent: InodeNo,
        new_name: &OsStr,
        allow_overwrite: bool,
    ) -> Result<(), InodeError> {
        self.library.rename(parent, name, new_parent, new_name, allow_overwrite).await
    }

    async fn rmdir(&self, parent: InodeNo, name: &OsStr) -> Result<(), InodeError> {
        self.library.rmdir(parent, name).await
    }

    async fn unlink(&self, parent: InodeNo, name: &OsStr) -> Result<(), InodeError> {
        self.library.unlink(parent, name).await
    }
}
