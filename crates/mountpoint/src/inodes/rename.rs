//! A file is renamed on servers that cannot do it: its object is copied, and deleted under the old name once the copy is
//! complete. Whatever fails in between leaves both. The server copies the object only as long as it is the one that was looked
//! up, so that no copy is a mixture of two versions.

use std::ffi::OsStr;
use std::time::Instant;

use mountpoint_s3_client::error::{HeadObjectError, ObjectClientError};
use mountpoint_s3_client::types::{ETag, HeadObjectParams, HeadObjectResult};
use mountpoint_s3_client::{ObjectClient as _, S3RequestError};
use mountpoint_s3_fs::metablock::{InodeError, InodeKind, InodeNo, Lookup, Metablock};
use thiserror::Error;

use super::Inodes;
use super::repeated::is_repeated;
use crate::copies::CopyError;
use crate::journal::Version;
use crate::listed::list_name;
use crate::opening::confirm_name;

/// A name in a directory, which is the library's inode.
type Place<'a> = (InodeNo, &'a OsStr);

#[derive(Debug, Error)]
enum RenameError {
    #[error("another client has replaced or deleted the object meanwhile: repeat the operation")]
    Replaced,
    #[error(
        "another client has changed the object while it was copied; both names are kept: delete one of them"
    )]
    ReplacedAfterCopy,
    #[error(transparent)]
    Copy(#[from] CopyError),
}

struct Copied {
    /// What was copied.
    source: ETag,
    /// What it has become.
    version: Version,
}

impl<M: Metablock> Inodes<M> {
    pub(super) async fn rename_by_copy(
        &self,
        ino: InodeNo,
        source: Lookup,
        from: Place<'_>,
        to: Place<'_>,
        replaces: bool,
    ) -> Result<(), InodeError> {
        let existing = match self.find(to).await {
            Ok(existing) => Some(existing),
            Err(InodeError::FileDoesNotExist(..)) => None,
            Err(error) => return Err(error),
        };
        let directory = self.library.getattr(to.0, false).await?;
        let name = to.1.to_string_lossy();
        let (old_key, new_key) = (key(&source)?, format!("{}{name}", key(&directory)?));
        if source.kind() == InodeKind::Directory {
            return Err(InodeError::CannotRenameDirectory(source.inode_err()));
        }
        self.refuse_while_writing(&source, &old_key)?;
        if let Some(existing) = &existing {
            if existing.kind() == InodeKind::Directory {
                return Err(InodeError::IsDirectory(existing.inode_err()));
            }
            self.refuse_while_writing(existing, &new_key)?;
        }
        let before = existing.and_then(|existing| existing.stat().etag.clone());
        let replaces = replaces.then(|| Version::of(before.as_deref()));
        let copied = self.copy(&source, &old_key, &new_key, replaces).await?;
        // The kernel looked the name up, so that the library may still take it for missing.
        list_name(&self.library, to.0, &name).await?;
        let renamed = self.library.lookup(to.0, to.1).await?;
        let deleted = self.delete_old(&source, from, &old_key, &renamed, &copied).await;
        if deleted.is_err() {
            self.library.forget(renamed.ino(), 1).await;
        }
        deleted?;
        self.uploads.rename(&old_key);
        let now = Instant::now();
        for key in [old_key, new_key] {
            self.changes.note(key, now);
        }
        // The kernel knows the file by the same number as before, unless it knows the size of another object by that.
        let is_known = source.stat().etag.as_deref() == Some(copied.source.as_str());
        let former = if is_known { self.numbers.take_over(ino, renamed.ino()) } else { None };
        let (forgotten, lookups) = former.unwrap_or((renamed.ino(), 1));
        self.library.forget(forgotten, lookups).await;
        if is_known {
            self.numbers.uploaded(ino, copied.version);
        }
        Ok(())
    }

    /// Deletes the object under its old name, if that and the copy are still what they were.
    async fn delete_old(
        &self,
        source: &Lookup,
        from: Place<'_>,
        key: &str,
        renamed: &Lookup,
        copied: &Copied,
    ) -> Result<(), InodeError> {
        let bucket = source.s3_location()?.bucket_name();
        // Another program may have begun to write it.
        self.refuse_while_writing(source, key)?;
        let after = self.head_if_exists(bucket, key).await?;
        let is_copy = renamed.kind() == InodeKind::File
            && Version::of(renamed.stat().etag.as_deref()) == copied.version;
        if !is_copy || after.is_some_and(|after| after.etag != copied.source) {
            return Err(cannot_rename(RenameError::ReplacedAfterCopy, bucket, key));
        }
        match self.library.unlink(from.0, from.1).await {
            // It does not matter who has deleted it.
            Err(InodeError::FileDoesNotExist(..)) => Ok(()),
            deleted => deleted,
        }
    }

    /// What the name stands for now.
    pub(super) async fn find(&self, (directory, name): Place<'_>) -> Result<Lookup, InodeError> {
        if self.confirms {
            confirm_name(&self.library, directory, name).await?;
        }
        let found = self.library.lookup(directory, name).await?;
        self.library.forget(found.ino(), 1).await;
        Ok(found)
    }

    /// A published file may still be open: the kernel reports the end of an open file after `close` has returned.
    fn refuse_while_writing(&self, file: &Lookup, key: &str) -> Result<(), InodeError> {
        if file.stat().etag.is_none() || self.uploads.writes_object(key) {
            return Err(InodeError::RenameNotPermittedWhileWriting(file.inode_err()));
        }
        Ok(())
    }

    /// Returns once the copy is complete.
    async fn copy(
        &self,
        source: &Lookup,
        from: &str,
        to: &str,
        replaces: Option<Version>,
    ) -> Result<Copied, InodeError> {
        let bucket = source.s3_location()?.bucket_name();
        let failed = |error: CopyError| cannot_rename(error.into(), bucket, from);
        let Some(object) = self.client.object_to_copy(from).await.map_err(failed)? else {
            return Err(InodeError::FileDoesNotExist(from.to_owned(), source.inode_err()));
        };
        let before = &object.original;
        let is_same = |other: &HeadObjectResult| (&other.etag, other.size) == (&before.etag, before.length);
        let exists = || {
            let (dest_key, src_inode) = (to.to_owned(), source.inode_err());
            Err(InodeError::RenameDestinationExists { dest_key, src_inode })
        };
        let copied = |copy: &HeadObjectResult| {
            let version = Version::of(Some(copy.etag.as_str()));
            Ok(Copied { source: before.etag.clone(), version })
        };
        if replaces.is_none()
            && let Some(existing) = self.head_if_exists(bucket, to).await?
        {
            // By a mount process that died with the same request.
            return if is_repeated() && is_same(&existing) { copied(&existing) } else { exists() };
        }
        let is_refused = match self.client.copy(&object, to, replaces).await {
            Ok(()) => false,
            Err(CopyError::Changed) => true,
            Err(error) => return Err(failed(error)),
        };
        match self.head_if_exists(bucket, to).await? {
            Some(copy) if !is_refused && copy.size == before.length => copied(&copy),
            // The S3 client repeats a request whose answer was lost, and the server refuses the second one because of the first.
            Some(copy) if is_refused && replaces.is_none() && is_same(&copy) => copied(&copy),
            Some(_) if is_refused && replaces.is_none() => exists(),
            _ if is_refused => Err(cannot_rename(RenameError::Replaced, bucket, from)),
            _ => Err(cannot_rename(RenameError::ReplacedAfterCopy, bucket, from)),
        }
    }

    async fn head_if_exists(&self, bucket: &str, key: &str) -> Result<Option<HeadObjectResult>, InodeError> {
        match self.client.head_object(bucket, key, &HeadObjectParams::new()).await {
            Ok(object) => Ok(Some(object)),
            Err(ObjectClientError::ServiceError(HeadObjectError::NotFound)) => Ok(None),
            Err(error) => Err(InodeError::client_error(error, "HeadObject failed", bucket, key)),
        }
    }
}

/// As an error with which the library can describe a request.
fn cannot_rename(error: RenameError, bucket: &str, key: &str) -> InodeError {
    let error = S3RequestError::InternalError(Box::new(error));
    let error = ObjectClientError::<HeadObjectError, _>::ClientError(error);
    InodeError::client_error(error, "cannot rename", bucket, key)
}

fn key(found: &Lookup) -> Result<String, InodeError> {
    Ok(found.s3_location()?.full_key().to_string())
}
