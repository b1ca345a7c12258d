//! What the library's file system asks for, by the kernel's numbers.

use std::ffi::OsStr;
use std::time::Instant;

use async_trait::async_trait;
use mountpoint_s3_client::types::ETag;
use mountpoint_s3_fs::fs::OpenFlags;
use mountpoint_s3_fs::memory::WriteHandleLimiter;
use mountpoint_s3_fs::metablock::{
    AddDirEntry, InodeError, InodeKind, InodeNo, Lookup, Metablock, NewHandle, PendingUploadHook,
    ReadWriteMode, S3Location, WriteMode,
};
use time::OffsetDateTime;

use super::repeated::is_repeated;
use super::{Inodes, gone, read_object, renumbered, renumbered_handle, stale};
use crate::client::Renames;
use crate::journal::Version;
use crate::listed::Answered;
use crate::opening::{confirm_name, confirmed, looked_up_again};
use crate::reopen::opened_again;

#[async_trait]
impl<M: Metablock> Metablock for Inodes<M> {
    async fn lookup(&self, parent: InodeNo, name: &OsStr) -> Result<Lookup, InodeError> {
        let directory = self.number(parent).await?;
        self.remake_locals(parent, Some(name)).await;
        let known = name.to_str().zip(self.known_for);
        if let Some((name, known_for)) = known {
            self.renew(directory, name, known_for).await?;
        }
        let asked = Instant::now();
        let mut found = self.look_up(directory, name).await?;
        if self.known_for.is_some()
            && self.changes.is_changed_since(found.s3_location()?.full_key().as_ref(), asked)
        {
            self.library.forget(found.ino(), 1).await;
            confirm_name(&self.library, directory, name).await?;
            found = self.library.lookup(directory, name).await?;
        }
        if let (Some((name, known_for)), Some(listings)) = (known, self.client.listings()) {
            listings.note_found(directory, name, known_for);
        }
        Ok(self.record_lookup(parent, name, &found, false))
    }

    async fn getattr(&self, ino: InodeNo, revalidate: bool) -> Result<Lookup, InodeError> {
        let found = match self.library.getattr(self.number(ino).await?, revalidate).await {
            // See `open_to_continue`.
            Err(InodeError::StaleInode { old_inode, remote_key, new_inode }) => {
                let is_ours = |etag: &str| self.uploads.has_published(ino, etag);
                match self.look_up_ours(&old_inode.key, is_ours).await {
                    Some(found) => {
                        self.library.forget(found.ino(), 1).await;
                        Ok(found)
                    }
                    None => Err(InodeError::StaleInode { old_inode, remote_key, new_inode }),
                }
            }
            found => found,
        };
        Ok(renumbered(&found.map_err(|error| gone(error, ino))?, ino))
    }

    async fn setattr(
        &self,
        ino: InodeNo,
        atime: Option<OffsetDateTime>,
        mtime: Option<OffsetDateTime>,
    ) -> Result<Lookup, InodeError> {
        let found = self.library.setattr(self.number(ino).await?, atime, mtime).await?;
        Ok(renumbered(&found, ino))
    }

    async fn create(&self, dir: InodeNo, name: &OsStr, kind: InodeKind) -> Result<Lookup, InodeError> {
        let created = self.library.create(self.number(dir).await?, name, kind).await?;
        Ok(self.record_lookup(dir, name, &created, true))
    }

    async fn forget(&self, ino: InodeNo, lookups: u64) {
        if let Some((library, lookups)) = self.numbers.forget(ino, lookups) {
            self.library.forget(library, lookups).await;
            if let Some(listings) = self.client.listings() {
                listings.forget(library);
            }
        }
    }

    async fn open_handle(
        &self,
        ino: InodeNo,
        fh: u64,
        mode: &WriteMode,
        flags: OpenFlags,
        limiter: Option<&WriteHandleLimiter>,
    ) -> Result<NewHandle, InodeError> {
        if let Some(again) = opened_again() {
            return self.open_again(&again, ino, fh, flags, limiter).await;
        }
        let library = self.number(ino).await?;
        let flags = if self.confirms {
            confirmed(&self.library, &self.client, library, fh, flags).await.map_err(looked_up_again)?
        } else {
            flags
        };
        let opened = self.library.open_handle(library, fh, mode, flags, limiter).await;
        let handle = opened.inspect_err(|_| self.client.end_reading(fh)).map_err(looked_up_again)?;
        match handle.mode {
            ReadWriteMode::Read
                if self.numbers.is_outdated(ino, Version::of(handle.lookup.stat().etag.as_deref())) =>
            {
                self.client.end_reading(fh);
                self.library.finish_reading(library, fh).await?;
                // The kernel looks the name up again, and learns the size.
                Err(stale(ino))
            }
            ReadWriteMode::Read => {
                self.uploads.add_reader(ino, fh, read_object(&handle.lookup));
                Ok(renumbered_handle(handle, ino))
            }
            ReadWriteMode::Write => {
                let creates = handle.lookup.stat().etag.is_none();
                self.note_writer(ino, fh, handle, creates)
            }
        }
    }

    async fn inc_file_size(&self, ino: InodeNo, len: usize) -> Result<usize, InodeError> {
        self.library.inc_file_size(self.number(ino).await?, self.uploads.added(ino, len)).await
    }

    async fn finish_writing(&self, ino: InodeNo, etag: Option<ETag>, fh: u64) -> Result<Lookup, InodeError> {
        self.uploads.end_replay(ino);
        let etag = etag.or_else(|| self.uploads.became(fh));
        let library = self.number(ino).await?;
        let finished = self.library.finish_writing(library, etag.clone(), fh).await?;
        match etag {
            Some(etag) => {
                self.numbers.uploaded(ino, Version::of(Some(etag.as_str())));
                self.note_published(fh, etag);
            }
            None if self.uploads.creates(fh) => self.numbers.not_uploaded(ino),
            None => {}
        }
        Ok(renumbered(&finished, ino))
    }

    async fn finish_reading(&self, ino: InodeNo, fh: u64) -> Result<(), InodeError> {
        self.uploads.remove_reader(ino, fh);
        self.client.end_reading(fh);
        self.library.finish_reading(self.number(ino).await?, fh).await
    }

    async fn flush_reader(&self, ino: InodeNo, fh: u64) -> Result<(), InodeError> {
        self.library.flush_reader(self.number(ino).await?, fh).await
    }

    async fn flush_writer(
        &self,
        ino: InodeNo,
        fh: u64,
        pending: PendingUploadHook,
    ) -> Result<Option<PendingUploadHook>, InodeError> {
        self.library.flush_writer(self.number(ino).await?, fh, pending).await
    }

    async fn release_writer(
        &self,
        ino: InodeNo,
        fh: u64,
        pending: PendingUploadHook,
        location: &S3Location,
    ) -> Result<(), InodeError> {
        self.library.release_writer(self.number(ino).await?, fh, pending, location).await
    }

    async fn try_reactivate_handle(
        &self,
        ino: InodeNo,
        fh: u64,
        mode: ReadWriteMode,
    ) -> Result<bool, InodeError> {
        self.library.try_reactivate_handle(self.number(ino).await?, fh, mode).await
    }

    async fn new_readdir_handle(&self, dir: InodeNo) -> Result<u64, InodeError> {
        let library = self.number(dir).await?;
        self.remake_locals(dir, None).await;
        let handle = self.library.new_readdir_handle(library).await?;
        self.listed().insert(handle, Answered::default());
        Ok(handle)
    }

    async fn readdir<'a>(
        &self,
        parent: InodeNo,
        fh: u64,
        offset: i64,
        is_readdirplus: bool,
        add: AddDirEntry<'a>,
    ) -> Result<(), InodeError> {
        self.list((parent, fh), offset, is_readdirplus, add).await
    }

    async fn releasedir(&self, fh: u64) -> Result<(), InodeError> {
        self.listed().remove(&fh);
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
        self.remake_locals(parent, Some(name)).await;
        self.remake_locals(new_parent, Some(new_name)).await;
        let (from, to) = (self.number(parent).await?, self.number(new_parent).await?);
        if self.client.renames() == Renames::ByCopy {
            let source = self.find((from, name)).await?;
            self.refuse_replaced(parent, name, &source)?;
            // A successor has perhaps not looked it up yet.
            let inherited = self.numbers.named(parent, name);
            let ino = inherited.unwrap_or_else(|| self.numbers.of_library(source.ino()));
            self.rename_by_copy(ino, source, (from, name), (to, new_name), allow_overwrite).await?;
        } else {
            self.library.rename(from, name, to, new_name, allow_overwrite).await?;
        }
        self.numbers.renamed(parent, &name.to_string_lossy(), new_parent, &new_name.to_string_lossy());
        Ok(())
    }

    async fn rmdir(&self, parent: InodeNo, name: &OsStr) -> Result<(), InodeError> {
        self.remake_locals(parent, Some(name)).await;
        if let Some(folder) = self.numbers.named(parent, name) {
            // Otherwise the library would take the folder for empty.
            self.remake_locals(folder, None).await;
        }
        let directory = self.number(parent).await?;
        let removed = match self.library.rmdir(directory, name).await {
            // It may have ended with its last object, which the library does not know for as long as it believes its lookups.
            Err(InodeError::CannotRemoveRemoteDirectory(inode)) => {
                let confirmed = confirm_name(&self.library, directory, name).await;
                confirmed.and(Err(InodeError::CannotRemoveRemoteDirectory(inode)))
            }
            removed => removed,
        };
        if let Err(InodeError::FileDoesNotExist(..)) = removed {
            let parent = self.library.getattr(directory, false).await?;
            let prefix = format!("{}{}/", parent.s3_location()?.full_key(), name.to_string_lossy());
            if self.uploads.writes_below(&prefix) {
                return Err(InodeError::DirectoryNotEmpty(parent.inode_err()));
            }
        } else {
            removed?;
        }
        self.numbers.removed(parent, &name.to_string_lossy());
        Ok(())
    }

    async fn unlink(&self, parent: InodeNo, name: &OsStr) -> Result<(), InodeError> {
        self.remake_locals(parent, Some(name)).await;
        let directory = self.number(parent).await?;
        let mut key = None;
        if self.known_for.is_some() {
            key = Some(self.find((directory, name)).await?.s3_location()?.full_key().to_string());
        }
        if is_repeated() {
            let found = self.library.lookup(directory, name).await?;
            self.library.forget(found.ino(), 1).await;
            self.refuse_replaced(parent, name, &found)?;
        }
        self.library.unlink(directory, name).await?;
        if let Some(key) = key {
            self.changes.note(key, Instant::now());
        }
        self.numbers.removed(parent, &name.to_string_lossy());
        Ok(())
    }
}
