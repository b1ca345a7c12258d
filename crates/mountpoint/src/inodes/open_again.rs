//! Opens a file for writing that a program has open already: to continue it after a close, or to repeat what a mount process that
//! died had not published. What the mount's options refuse to new writers does not matter here.

use std::ffi::OsStr;

use mountpoint_s3_fs::fs::OpenFlags;
use mountpoint_s3_fs::memory::WriteHandleLimiter;
use mountpoint_s3_fs::metablock::{InodeError, InodeNo, Lookup, Metablock, NewHandle, WriteMode};

use super::{Inodes, renumbered_handle, stale};
use crate::numbers::ROOT;
use crate::reopen::Again;
use crate::uploads::Published;

/// More than programs open for reading in the microseconds between two attempts to open a file for writing.
const MOST_READERS_IN_THE_WAY: u32 = 100;

impl<M: Metablock> Inodes<M> {
    pub(super) async fn open_again(
        &self,
        again: &Again,
        ino: InodeNo,
        fh: u64,
        flags: OpenFlags,
        limiter: Option<&WriteHandleLimiter>,
    ) -> Result<NewHandle, InodeError> {
        match again {
            Again::Continued { object, is_copied } => {
                self.open_to_continue((object, *is_copied), ino, fh, flags, limiter).await
            }
            Again::Repeated { creates } => {
                let opened = self.open_to_repeat(ino, fh, flags, limiter).await;
                let handle = match opened {
                    // Another client has replaced or deleted the object since it was looked up. It was not ours.
                    Err(InodeError::FileDoesNotExist(..) | InodeError::StaleInode { .. }) => {
                        if let Some((library, lookups)) = self.numbers.lose(ino) {
                            self.library.forget(library, lookups).await;
                        }
                        self.open_to_repeat(ino, fh, flags, limiter).await?
                    }
                    opened => opened?,
                };
                self.note_writer(ino, fh, handle, *creates)
            }
        }
    }

    async fn open_to_repeat(
        &self,
        ino: InodeNo,
        fh: u64,
        flags: OpenFlags,
        limiter: Option<&WriteHandleLimiter>,
    ) -> Result<NewHandle, InodeError> {
        let library = self.number(ino).await?;
        let mode = WriteMode { allow_overwrite: true, incremental_upload: false };
        self.open_past_readers(library, ino, fh, (&mode, flags), limiter).await
    }

    /// The library refuses a writer while a file is being read. Those that were open before have to go on: their readers keep
    /// the object that they opened, and get ESTALE if they need more of it than was fetched. A program that opens the file for
    /// reading while the library asks the server is in the way again; without a request in between, hardly any is.
    async fn open_past_readers(
        &self,
        library: InodeNo,
        ino: InodeNo,
        fh: u64,
        (mode, flags): (&WriteMode, OpenFlags),
        limiter: Option<&WriteHandleLimiter>,
    ) -> Result<NewHandle, InodeError> {
        let mut asking = self.asking(flags);
        for _ in 0..MOST_READERS_IN_THE_WAY {
            for reader in self.uploads.readers(ino) {
                self.library.flush_reader(library, reader).await?;
            }
            match self.library.open_handle(library, fh, mode, asking, limiter).await {
                Err(InodeError::InodeNotWritableWhileReading(_)) => asking = flags,
                opened => return opened,
            }
            // The reader may be about to be noted by the thread that opened it.
            std::thread::yield_now();
        }
        self.library.open_handle(library, fh, mode, flags, limiter).await
    }

    /// A listing that the server answered before the file was published, and that arrives afterwards, makes the library take
    /// the file for one of another client: it then knows what was published here by another number.
    async fn open_to_continue(
        &self,
        (object, is_copied): (&Published, bool),
        ino: InodeNo,
        fh: u64,
        flags: OpenFlags,
        limiter: Option<&WriteHandleLimiter>,
    ) -> Result<NewHandle, InodeError> {
        // Opening what has another name now would publish what another program has begun to write there.
        if self.uploads.is_renamed(&object.key) || self.numbers.is_renamed(ino, &object.key) {
            return Err(stale(ino));
        }
        let library = self.number(ino).await?;
        // With `incremental_upload`, the library keeps the size of the file, which it would else set to zero meanwhile.
        let mode = WriteMode { allow_overwrite: true, incremental_upload: true };
        let open =
            async |library, ino| self.open_past_readers(library, ino, fh, (&mode, flags), limiter).await;
        let (handle, number) = match open(library, ino).await {
            Err(InodeError::StaleInode { old_inode, remote_key, new_inode }) => {
                let is_ours = |etag: &str| etag == object.etag.as_str();
                let Some(found) = self.look_up_ours(&old_inode.key, is_ours).await else {
                    return Err(InodeError::StaleInode { old_inode, remote_key, new_inode });
                };
                let known_as = self.numbers.of_library(found.ino());
                // If the kernel no longer knows the file, it does not ask for this lookup to be forgotten.
                let replaced = self.numbers.replace(ino, found.ino()).unwrap_or((found.ino(), 1));
                self.library.forget(replaced.0, replaced.1).await;
                (open(found.ino(), known_as).await?, found.ino())
            }
            opened => (opened?, library),
        };
        let stat = handle.lookup.stat();
        let is_renamed = handle.lookup.s3_location()?.full_key().as_ref() != object.key;
        if !is_renamed && stat.etag.as_deref() == Some(object.etag.as_str()) {
            self.uploads.begin_continuation(fh, ino, object, stat.size, is_copied);
            return Ok(renumbered_handle(handle, ino));
        }
        self.library.finish_writing(number, None, fh).await?;
        let inode = handle.lookup.inode_err();
        Err(InodeError::StaleInode {
            remote_key: object.key.clone(),
            old_inode: inode.clone(),
            new_inode: inode,
        })
    }

    /// Looks up a path once, if it has an object that was published here.
    pub(super) async fn look_up_ours(&self, path: &str, is_ours: impl Fn(&str) -> bool) -> Option<Lookup> {
        let mut found: Option<Lookup> = None;
        for name in path.split('/') {
            let directory = found.as_ref().map_or(ROOT, Lookup::ino);
            let next = self.library.lookup(directory, OsStr::new(name)).await;
            if directory != ROOT {
                self.library.forget(directory, 1).await;
            }
            found = Some(next.ok()?);
        }
        let found = found?;
        if !found.stat().etag.as_deref().is_some_and(is_ours) {
            self.library.forget(found.ino(), 1).await;
            return None;
        }
        Some(found)
    }
}
