//! A request to remove or rename a name that the kernel sends again, because a mount process died with it. That process may have
//! carried it out, and another client may have used the name since: what that client has put there must not go.

use std::cell::RefCell;
use std::ffi::OsStr;

use mountpoint_s3_client::S3RequestError;
use mountpoint_s3_client::error::{DeleteObjectError, ObjectClientError};
use mountpoint_s3_fs::metablock::{InodeError, InodeNo, Lookup, Metablock};
use thiserror::Error;

use super::Inodes;
use crate::journal::Version;
use crate::scoped::scoped;

#[derive(Debug, Error)]
#[error(
    "a mount process died while it removed or renamed the file, and another client has replaced the object, which is kept: \
     look at it, and repeat the operation"
)]
struct Replaced;

thread_local! {
    static REPEATED: RefCell<Option<()>> = const { RefCell::new(None) };
}

/// Does through the library what a mount process that died may have done.
pub(crate) async fn repeated<T>(request: impl Future<Output = T>) -> T {
    scoped(&REPEATED, &(), request).await
}

/// Inside of [`repeated`].
pub(super) fn is_repeated() -> bool {
    REPEATED.with_borrow(Option::is_some)
}

impl<M: Metablock> Inodes<M> {
    /// Refuses to go on with an object that the kernel did not ask for: it may be another client's. Success would not be true,
    /// either, because the file is there.
    pub(super) fn refuse_replaced(
        &self,
        parent: InodeNo,
        name: &OsStr,
        found: &Lookup,
    ) -> Result<(), InodeError> {
        let version = Version::of(found.stat().etag.as_deref());
        if !is_repeated() || self.numbers.is_version(parent, name, version) {
            return Ok(());
        }
        let location = found.s3_location()?;
        let error = S3RequestError::InternalError(Box::new(Replaced));
        let error = ObjectClientError::<DeleteObjectError, _>::ClientError(error);
        let (bucket, key) = (location.bucket_name(), location.full_key());
        Err(InodeError::client_error(error, "cannot repeat the request", bucket, key.as_ref()))
    }
}
