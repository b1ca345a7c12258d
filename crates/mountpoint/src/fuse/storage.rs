//! The library's file system, and what it needs beside it to publish a file more than once.

use std::sync::Arc;

use futures::StreamExt as _;
use mountpoint_s3_client::ObjectClient as _;
use mountpoint_s3_client::types::{ClientBackpressureHandle as _, GetObjectParams, GetObjectResponse as _};
use mountpoint_s3_fs::S3Filesystem;

use super::failure::Failure;
use super::spool::SpoolBudget;
use crate::client::Client;
use crate::server_timeout::{Awaited, ServerTimeout};
use crate::uploads::{Published, Uploads};

/// Bytes read back in one request: a part of the default size.
const READ_BACK: u64 = 8 * 1024 * 1024;

pub(crate) struct Storage {
    pub(super) files: Arc<S3Filesystem<Client>>,
    pub(super) uploads: Arc<Uploads>,
    pub(super) spools: Arc<SpoolBudget>,
    pub(super) server_timeout: Arc<ServerTimeout>,
    client: Client,
}

impl Storage {
    pub(crate) fn new(
        files: S3Filesystem<Client>,
        client: Client,
        spools: Arc<SpoolBudget>,
        server_timeout: Arc<ServerTimeout>,
    ) -> Self {
        Self { files: Arc::new(files), uploads: client.uploads(), spools, server_timeout, client }
    }

    /// Writes the first `length` bytes of an object to the beginning of an upload.
    pub(super) async fn copy(
        &self,
        object: &Published,
        length: u64,
        ino: u64,
        upload: u64,
    ) -> Result<(), Failure> {
        let failed =
            |reason: &dyn std::fmt::Display| Failure::ReadBack { length, reason: reason.to_string() };
        let mut copied = 0;
        while copied < length {
            let end = length.min(copied + READ_BACK);
            let etag = Some(object.etag.clone());
            let params = GetObjectParams::new().range(Some(copied..end)).if_match(etag);
            let response = self.client.get_object(&object.bucket, &object.key, &params).await;
            let mut response = response.map_err(|error| failed(&error))?;
            if let Some(window) = response.backpressure_handle() {
                window.ensure_read_window(end);
            }
            // Not until the stream ends: polled with nothing left to expect, it fails.
            while copied < end {
                let part = self.server_timeout.limit(Awaited::Transfer, response.next()).await;
                let part = part.map_err(|error| failed(&error))?;
                let part = part.ok_or_else(|| failed(&"the server sent less than requested"))?;
                let part = part.map_err(|error| failed(&error))?;
                let offset = i64::try_from(part.offset).unwrap_or(i64::MAX);
                copied += u64::from(self.files.write(ino, upload, offset, &part.data, 0, 0, None).await?);
            }
        }
        Ok(())
    }
}
