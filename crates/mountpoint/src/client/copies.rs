//! What the server copies for this mount.

use std::sync::atomic::Ordering;

use futures::TryFutureExt as _;
use mountpoint_s3_client::ObjectClient as _;
use mountpoint_s3_client::error::PutObjectError;
use mountpoint_s3_client::types::{ETag, PutObjectParams};

use super::Client;
use crate::continuation::Continuation;
use crate::copies::{CopyError, Object, copy_object, failed, look_up};
use crate::journal::Version;
use crate::server_timeout::{Answer, Awaited};
use crate::upload::{Sent, Upload};

impl Client {
    /// An object of the mount's bucket as it is now.
    pub(crate) async fn object_to_copy(&self, key: &str) -> Result<Option<Object>, CopyError> {
        let raw = self.raw()?;
        self.0.timeout.limit(Awaited::Answer, look_up(&raw, key)).await?
    }

    /// Under another key, where it may replace this version of an object, if it may replace any.
    pub(crate) async fn copy(
        &self,
        object: &Object,
        to: &str,
        replaces: Option<Version>,
    ) -> Result<(), CopyError> {
        self.0.timeout.limit(Awaited::Transfer, copy_object(&self.raw()?, object, to, replaces)).await?
    }

    /// Whether large files are continued by copying them on the server.
    pub(crate) fn copies(&self) -> bool {
        !self.0.cannot_copy.load(Ordering::Relaxed)
    }

    pub(super) async fn continue_upload(
        &self,
        key: &str,
        params: &PutObjectParams,
        replaced: (ETag, u64),
    ) -> Answer<Upload, PutObjectError> {
        let copy = async {
            let part_size = self.write_part_size();
            let begun = Continuation::begin(self.raw()?, key, params, replaced, part_size).await;
            begun.inspect_err(|error| match error {
                CopyError::Unsupported(_) => {
                    tracing::info!(%error, "large files that are continued are read back and uploaded again");
                    self.0.cannot_copy.store(true, Ordering::Relaxed);
                    self.0.uploads.refuse_copy(key);
                }
                CopyError::Refused(_) => {
                    tracing::info!(%error, key, "a large file is read back and uploaded again to continue it");
                    self.0.uploads.refuse_copy(key);
                }
                _ => {}
            })
        };
        let begun = self.transfer(copy.map_err(failed)).await?;
        Ok(Upload::new(Sent::Continued(begun), key, params, self.timeout(), self.uploads()))
    }
}
