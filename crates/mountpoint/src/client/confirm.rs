//! Whether an object is still the one that is known, and the first read of it.

use std::time::Instant;

use async_trait::async_trait;
use mountpoint_s3_client::ObjectClient as _;
use mountpoint_s3_client::types::{GetObjectParams, HeadObjectParams};

use super::Client;
use crate::opening::{Confirm, Object};

#[async_trait]
impl Confirm for Client {
    async fn is_unchanged(&self, handle: u64, object: Object<'_>) -> bool {
        let Object { bucket, key, etag, length } = object;
        // What is known is what this mount has written so far. The library publishes it, or refuses the reader.
        if self.0.uploads.writes_object(key) {
            return false;
        }
        let Some(room) = self.0.first_reads.room(length, Instant::now()) else {
            let answer = self.head_object(bucket, key, &HeadObjectParams::new()).await;
            return answer.is_ok_and(|object| object.etag == etag);
        };
        let end = length as u64;
        let params = GetObjectParams::new().range(Some(0..end)).if_match(Some(etag.clone()));
        match self.transfer(self.get().get_object(bucket, key, &params)).await {
            Ok(answer) => {
                room.keep(handle, key, etag, end, answer);
                true
            }
            // The library asks again, and knows how to report the error.
            Err(_) => false,
        }
    }
}
