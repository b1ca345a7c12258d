//! What programs do with open directories.

use std::sync::Arc;

use mountpoint_s3_fs::fs::{DirectoryReplier, Opened};

use super::OpenFiles;
use crate::fuse::directory::Directory;
use crate::fuse::failure::Failure;
use crate::fuse::handles::Handle;
use crate::fuse::inherited::Concerned;
use crate::fuse::origin::Origin;
use crate::journal::{Access, Open, Record};

impl OpenFiles {
    pub(in crate::fuse) async fn open_directory(
        &self,
        ino: u64,
        flags: i32,
        origin: Origin,
    ) -> Result<Opened, Failure> {
        if let Some(opened) = self.opened_before(origin, 0) {
            return Ok(opened);
        }
        // When a directory is opened, the library notes its new files with their sizes.
        self.reopen_writers(Concerned::In(ino)).await;
        let opened = self.storage.files.opendir(ino, flags).await?;
        let number = self.handles.next_number();
        let open = Open { access: Access::List, ..Open::new(ino, flags, 0, origin.unique) };
        self.insert(number, open, Handle::Directory(Arc::new(Directory::new(ino, flags, opened.fh))));
        Ok(Opened { fh: number, ..opened })
    }

    pub(in crate::fuse) async fn list(
        &self,
        fh: u64,
        offset: i64,
        with_attributes: bool,
        to: impl DirectoryReplier + Send + Sync,
    ) -> Result<(), Failure> {
        let Handle::Directory(directory) = self.handles.get(fh)? else { return Err(Failure::BadHandle) };
        self.reopen_writers(Concerned::In(directory.ino)).await;
        let added = directory.list(&self.storage, offset, with_attributes, to).await?;
        if !added.names.is_empty() {
            let offset = u64::try_from(offset).unwrap_or_default();
            self.storage.journal.record(&Record::Listed(fh, offset, added.names));
        }
        Ok(())
    }

    pub(in crate::fuse) async fn release_directory(&self, fh: u64, origin: Origin) -> Result<(), Failure> {
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
