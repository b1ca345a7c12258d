//! What programs do with the names of files that may be open.

use std::ffi::OsStr;
use std::sync::Arc;

use mountpoint_s3_fs::fs::{Error, ToErrno as _};
use rustix::io::Errno;

use super::OpenFiles;
use crate::fuse::failure::Failure;
use crate::fuse::inherited::Concerned;
use crate::fuse::origin::Origin;
use crate::fuse::writer::Writer;
use crate::inodes::repeated::repeated;

/// A name in a directory.
type Place<'a> = (u64, &'a OsStr);

impl OpenFiles {
    pub(in crate::fuse) async fn unlink(
        &self,
        parent: u64,
        name: &OsStr,
        origin: Origin,
    ) -> Result<(), Failure> {
        self.reopen_named(parent, name).await;
        let writers = self.writers_named(&[name]);
        let unlink = async || {
            let unlink = self.storage.files.unlink(parent, name);
            if origin.is_repeated { repeated(unlink).await } else { unlink.await }
        };
        let mut removed = unlink().await;
        if is_refused(&removed) && have_ended(writers).await {
            removed = unlink().await;
        }
        origin.removed(removed)
    }

    pub(in crate::fuse) async fn rename(
        &self,
        (parent, name): Place<'_>,
        (new_parent, new_name): Place<'_>,
        flags: u32,
        origin: Origin,
    ) -> Result<(), Error> {
        // A copy that another process finds complete may be of another client, so that the mount does not move meanwhile.
        let _renaming = self.writes.read().await;
        self.reopen_named(parent, name).await;
        self.reopen_named(new_parent, new_name).await;
        let files = &self.storage.files;
        let writers = self.writers_named(&[name, new_name]);
        let rename = async || {
            let rename = files.rename(parent, name, new_parent, new_name, flags.into());
            if origin.is_repeated { repeated(rename).await } else { rename.await }
        };
        let mut renamed = rename().await;
        if is_refused(&renamed) && have_ended(writers).await {
            renamed = rename().await;
        }
        match renamed {
            Err(error) if origin.is_perhaps_done(&error, Errno::NOENT) => {
                // Unless it had been recorded, too.
                let numbers = &self.storage.numbers;
                if numbers.named(parent, name).is_some() {
                    let names = (name.to_string_lossy(), new_name.to_string_lossy());
                    numbers.renamed(parent, &names.0, new_parent, &names.1);
                }
                let moved = files.lookup(new_parent, new_name).await?;
                files.forget(moved.attr.ino, 1).await;
                Ok(())
            }
            renamed => renamed,
        }
    }

    async fn reopen_named(&self, parent: u64, name: &OsStr) {
        self.reopen_writers(Concerned::Named(parent, name)).await;
        if !self.inherited.has_readers() {
            return;
        }
        if let Ok(entry) = self.storage.files.lookup(parent, name).await {
            self.reopen(entry.attr.ino).await;
            self.storage.files.forget(entry.attr.ino, 1).await;
        }
    }

    /// The writers of files with one of these names, in any directory.
    fn writers_named(&self, names: &[&OsStr]) -> Vec<Arc<Writer>> {
        self.handles.writers_that(|writer| names.iter().any(|name| writer.is_named(name)))
    }
}

/// The library refuses to remove or rename a file that is open for writing.
fn is_refused(done: &Result<(), Error>) -> bool {
    done.as_ref().is_err_and(|error| error.to_errno() == Errno::PERM.raw_os_error())
}

/// Waits for the end of those that no program has open any more; whether there were any. Asked after a refusal, because the
/// kernel does not wait for the end of a file: it sends that before the next request, and both may be handled at once.
async fn have_ended(writers: Vec<Arc<Writer>>) -> bool {
    let mut has_any = false;
    for writer in writers {
        has_any |= writer.has_ended().await;
    }
    has_any
}
