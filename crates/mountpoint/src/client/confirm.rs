//! Whether an object is still the one that is known, and the first read of it.

use std::time::Instant;

use async_trait::async_trait;
use mountpoint_s3_client::error::{GetObjectError, ObjectClientError};
use mountpoint_s3_client::types::{GetObjectParams, HeadObjectParams};
use mountpoint_s3_client::{ObjectClient as _, S3RequestError};
use mountpoint_s3_fs::metablock::InodeError;

use super::Client;
use crate::opening::{Confirm, Object};
use crate::server_timeout::has_timed_out;

#[async_trait]
impl Confirm for Client {
    async fn is_unchanged(&self, handle: u64, object: Object<'_>) -> Result<bool, InodeError> {
        let Object { bucket, key, etag, length } = object;
        // What is known is what this mount has written so far. The library publishes it, or refuses the reader.
        if self.0.uploads.writes_object(key) {
            return Ok(false);
        }
        let Some(room) = self.0.first_reads.room(length, Instant::now()) else {
            return match self.head_object(bucket, key, &HeadObjectParams::new()).await {
                Ok(object) => Ok(object.etag == etag),
                Err(error) => unless_silent(error, bucket, key),
            };
        };
        let end = length as u64;
        let params = GetObjectParams::new().range(Some(0..end)).if_match(Some(etag.clone()));
        match self.transfer(self.get().get_object(bucket, key, &params)).await {
            Ok(answer) => {
                room.keep(handle, key, etag, end, answer);
                Ok(true)
            }
            Err(error) => unless_silent(error, bucket, key),
        }
    }
}

/// The library asks again, and knows how to report the error. With a server that does not answer, that would take as long again.
fn unless_silent<E>(
    error: ObjectClientError<E, S3RequestError>,
    bucket: &str,
    key: &str,
) -> Result<bool, InodeError> {
    match error {
        ObjectClientError::ClientError(silence) if has_timed_out(&silence) => {
            let error = ObjectClientError::<GetObjectError, _>::ClientError(silence);
            Err(InodeError::client_error(error, "cannot confirm the file", bucket, key))
        }
        _ => Ok(false),
    }
}
