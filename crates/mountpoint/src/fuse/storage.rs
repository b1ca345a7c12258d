//! The library's file system, and what it needs beside it to publish a file more than once.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use mountpoint_s3_client::ObjectClient as _;
use mountpoint_s3_client::error::{HeadObjectError, ObjectClientError};
use mountpoint_s3_client::types::{
    ClientBackpressureHandle as _, ETag, GetObjectParams, GetObjectResponse as _, HeadObjectParams,
    HeadObjectResult,
};
use mountpoint_s3_fs::S3Filesystem;

use super::failure::Failure;
use super::spool::{Spool, Spools};
use crate::client::Client;
use crate::completion::CompletionError;
use crate::continuation::is_copied;
use crate::journal::{Completion, Journal};
use crate::numbers::Numbers;
use crate::server_timeout::{Awaited, ServerTimeout};
use crate::uploads::{Published, Uploads};

/// Bytes read back in one request: a part of the default size.
const READ_BACK: u64 = 8 * 1024 * 1024;

pub(crate) struct Storage {
    pub(super) files: Arc<S3Filesystem<Client>>,
    pub(super) uploads: Arc<Uploads>,
    pub(super) spools: Arc<Spools>,
    pub(super) server_timeout: Arc<ServerTimeout>,
    pub(super) journal: Arc<Journal>,
    pub(super) numbers: Arc<Numbers>,
    client: Client,
    bucket: String,
}

impl Storage {
    pub(crate) fn new(
        files: S3Filesystem<Client>,
        client: Client,
        bucket: String,
        spools: Arc<Spools>,
        journal: Arc<Journal>,
        numbers: Arc<Numbers>,
        server_timeout: Arc<ServerTimeout>,
    ) -> Self {
        let (files, uploads) = (Arc::new(files), client.uploads());
        Self { files, uploads, spools, server_timeout, journal, numbers, client, bucket }
    }

    pub(super) fn published(&self, key: &str, etag: &ETag) -> Published {
        Published { bucket: self.bucket.clone(), key: key.to_owned(), etag: etag.clone() }
    }

    /// Completes an upload that a mount process was completing when it died.
    pub(super) async fn finish(&self, key: &str, completion: &Completion) -> Result<ETag, CompletionError> {
        self.client.finish(key, completion).await
    }

    pub(super) fn abort(&self, upload: &str) {
        self.client.abort(upload);
    }

    /// The object that a file is now.
    pub(super) async fn head(&self, key: &str) -> Result<Option<HeadObjectResult>, Failure> {
        match self.client.head_object(&self.bucket, key, &HeadObjectParams::new()).await {
            Ok(object) => Ok(Some(object)),
            Err(ObjectClientError::ServiceError(HeadObjectError::NotFound)) => Ok(None),
            Err(error) => Err(Failure::Server(error.to_string())),
        }
    }

    /// Whether the object is what the spool has.
    pub(super) async fn holds(
        &self,
        object: &HeadObjectResult,
        key: &str,
        spool: &Spool,
    ) -> Result<bool, Failure> {
        if object.size != spool.length() {
            return Ok(false);
        }
        let object = self.published(key, &object.etag);
        let mut offset = 0;
        while offset < spool.length() {
            let part = self.read_back(&object, offset, spool.length()).await?;
            if !spool.has(offset, &part).map_err(|error| Failure::Spool(error.to_string()))? {
                return Ok(false);
            }
            offset += part.len() as u64;
        }
        Ok(true)
    }

    /// Writes the first `length` bytes of an object to the beginning of an upload.
    pub(super) async fn copy(
        &self,
        object: &Published,
        length: u64,
        ino: u64,
        upload: u64,
    ) -> Result<(), Failure> {
        let mut copied = 0;
        while copied < length {
            let part = self.read_back(object, copied, length).await?;
            let offset = i64::try_from(copied).unwrap_or(i64::MAX);
            copied += u64::from(self.files.write(ino, upload, offset, &part, 0, 0, None).await?);
        }
        Ok(())
    }

    /// The next bytes of an object of which the first `length` were written here.
    async fn read_back(&self, object: &Published, offset: u64, length: u64) -> Result<Bytes, Failure> {
        let end = length.min(offset + READ_BACK);
        let fetched = self.fetch(&object.key, &object.etag, offset..end).await;
        fetched.map_err(|reason| Failure::ReadBack { length, reason })
    }

    /// Whether the server copies the beginning of a file of this length to another object.
    pub(super) fn copies(&self, length: u64) -> bool {
        self.client.copies() && is_copied(length)
    }

    /// Whether the library may be bypassed: it has no cache that a read could be answered from, or that should keep it.
    pub(super) fn fetches_exactly(&self) -> bool {
        self.client.fetches_exactly()
    }

    /// A part of this version of an object, with one request. The error is a reason.
    pub(super) async fn fetch(&self, key: &str, etag: &ETag, range: Range<u64>) -> Result<Bytes, String> {
        let params = GetObjectParams::new().range(Some(range.clone())).if_match(Some(etag.clone()));
        let response = self.client.get_object(&self.bucket, key, &params).await;
        let mut response = response.map_err(|error| error.to_string())?;
        if let Some(window) = response.backpressure_handle() {
            window.ensure_read_window(range.end);
        }
        let wanted = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let mut content = Bytes::new();
        // Not until the stream ends: polled with nothing left to expect, it fails.
        while content.len() < wanted {
            let part = self.server_timeout.limit(Awaited::Transfer, response.next()).await;
            let part = part.map_err(|error| error.to_string())?;
            let part =
                part.ok_or("the server sent less than requested")?.map_err(|error| error.to_string())?;
            // Mostly one part is everything, and need not be copied.
            content = if content.is_empty() { part.data } else { [content, part.data].concat().into() };
        }
        Ok(content)
    }
}
