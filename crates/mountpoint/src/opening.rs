//! A file is opened as the object is at that moment, whatever is known about it from a lookup or a listing. What is known saves
//! requests: the library asks for the object and for a folder of that name, where one request can tell whether the object
//! is still the known one.

use std::ffi::OsStr;

use async_trait::async_trait;
use mountpoint_s3_client::types::ETag;
use mountpoint_s3_fs::fs::OpenFlags;
use mountpoint_s3_fs::metablock::{InodeError, InodeKind, InodeNo, Metablock};

use crate::lookup::look_up_again;

/// Asks the server about objects that are known.
#[async_trait]
pub(crate) trait Confirm: Send + Sync {
    /// Whether the object is still this one. The handle that is being opened reads it then. Fails if the server does not answer.
    async fn is_unchanged(&self, handle: u64, object: Object<'_>) -> Result<bool, InodeError>;
}

#[derive(Clone, Debug)]
pub(crate) struct Object<'a> {
    pub(crate) bucket: &'a str,
    pub(crate) key: &'a str,
    pub(crate) etag: ETag,
    pub(crate) length: usize,
}

/// The flags for the library, which uses what it knows unless these contain `O_DIRECT`.
pub(crate) async fn confirmed(
    library: &impl Metablock,
    server: &dyn Confirm,
    ino: InodeNo,
    handle: u64,
    flags: OpenFlags,
) -> Result<OpenFlags, InodeError> {
    let asking = flags | OpenFlags::O_DIRECT;
    if flags.intersects(OpenFlags::O_WRONLY | OpenFlags::O_RDWR | OpenFlags::O_TRUNC) {
        return Ok(asking);
    }
    let known = library.getattr(ino, false).await?;
    let (InodeKind::File, Some(etag)) = (known.kind(), &known.stat().etag) else { return Ok(asking) };
    if !known.stat().is_readable {
        return Ok(asking);
    }
    let location = known.s3_location()?;
    let key = location.full_key();
    let etag = ETag::from(etag.to_string());
    let object =
        Object { bucket: location.bucket_name(), key: key.as_ref(), etag, length: known.stat().size };
    Ok(if server.is_unchanged(handle, object).await? { flags } else { asking })
}

/// Makes the library ask whether there is such a file, whatever it knows. Returns its key.
pub(crate) async fn confirm_name(
    library: &impl Metablock,
    parent: InodeNo,
    name: &OsStr,
) -> Result<String, InodeError> {
    let known = library.lookup(parent, name).await?;
    let asked = look_up_again(library, parent, known.ino()).await;
    library.forget(known.ino(), 1).await;
    match asked {
        // It knows the new one now.
        Ok(()) | Err(InodeError::StaleInode { .. }) => Ok(known.s3_location()?.full_key().to_string()),
        Err(error) => Err(error),
    }
}

/// Makes the kernel look the name up again, as for a file that was replaced. A program that would have created the file creates
/// it then, and others hear that it does not exist.
pub(crate) fn looked_up_again(error: InodeError) -> InodeError {
    match error {
        InodeError::FileDoesNotExist(name, inode) => {
            InodeError::StaleInode { remote_key: name, old_inode: inode.clone(), new_inode: inode }
        }
        error => error,
    }
}
