//! Objects that the server copies: under another key, or to the beginning of an upload. The server compares the version, so that
//! what another client has put there meanwhile is not copied.

mod failure;
mod object;

use std::sync::Arc;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use mountpoint_s3_client::types::ETag;

use crate::completion::{Completed, Part, answer};
use crate::journal::{Checksums, Completion, Terms, Version};
use crate::multipart::Watch;
use crate::raw_client::{RawClient, Request, Sending, escaped};
use failure::refused;

pub(crate) use failure::{CopyError, failed};
pub(crate) use object::{Object, copy_object, look_up};

/// S3 copies at most 5 GiB in a request, and the S3 client ends one of which nothing was heard for 30 s.
const COPIED_AT_ONCE: u64 = 512 * 1024 * 1024;
/// Copies under way at the same time.
const COPIES: usize = 4;
/// S3's limit of an upload.
const MOST_PARTS: usize = 10_000;

/// The version of an object that is copied.
#[derive(Debug)]
pub(crate) struct Original {
    pub(crate) key: String,
    pub(crate) etag: ETag,
    pub(crate) length: u64,
}

impl Original {
    /// Of the request that copies it. Not compared, another version may be copied instead.
    fn headers(&self, bucket: &str, is_compared: bool) -> Vec<(&'static str, String)> {
        let mut headers = vec![("x-amz-copy-source", format!("/{bucket}/{}", escaped(&self.key)))];
        if is_compared {
            headers.push(("x-amz-copy-source-if-match", self.etag.as_str().to_owned()));
        }
        headers
    }
}

/// A multipart upload with parts that the server copies. Dropped before it is complete, it is aborted.
#[derive(Debug)]
pub(crate) struct CopyUpload {
    raw: Arc<RawClient>,
    /// With the upload's id.
    path: String,
    is_complete: bool,
    watch: Watch,
}

impl CopyUpload {
    pub(crate) async fn begin(
        raw: Arc<RawClient>,
        key: &str,
        headers: Vec<(&str, String)>,
    ) -> Result<Self, CopyError> {
        let object = raw.path(key);
        let begun = raw
            .send(Request {
                method: "POST",
                operation: "CreateMultipartUpload",
                path: format!("{object}?uploads"),
                headers,
                body: Vec::new(),
            })?
            .await;
        let id = answer::upload_id(&begun.map_err(refused)?.body)?;
        let path = format!("{object}?uploadId={}", escaped(&id).replace('/', "%2F"));
        let unfinished = &raw.bucket.telemetry.unfinished_uploads;
        let mut watch = Watch::new(Arc::clone(unfinished), object);
        watch.begin();
        unfinished.begun(&path);
        Ok(Self { raw, path, is_complete: false, watch })
    }

    /// All of the object, in parts of the same size, because none but the last of an upload may be small.
    pub(crate) async fn copy(&self, original: &Original, is_compared: bool) -> Result<Vec<Part>, CopyError> {
        let length = original.length;
        let count = length.div_ceil(COPIED_AT_ONCE);
        let size = length.div_ceil(count);
        let copies = (0..count).map(|part| {
            let mut headers = original.headers(&self.raw.bucket.name, is_compared);
            let range = format!("bytes={}-{}", part * size, ((part + 1) * size).min(length) - 1);
            headers.push(("x-amz-copy-source-range", range));
            async move {
                let number = usize::try_from(part).unwrap_or(usize::MAX) + 1;
                let copied = self.send("UploadPartCopy", number, headers, Vec::new())?.await;
                Ok(answer::copied(&copied.map_err(refused)?.body)?)
            }
        });
        stream::iter(copies).buffered(COPIES).try_collect().await
    }

    /// Begins to send a part.
    pub(crate) fn send(
        &self,
        operation: &'static str,
        number: usize,
        headers: Vec<(&str, String)>,
        body: Vec<u8>,
    ) -> Result<Sending, CopyError> {
        if number > MOST_PARTS {
            return Err(CopyError::TooLarge(MOST_PARTS));
        }
        let path = self.path.replacen('?', &format!("?partNumber={number}&"), 1);
        Ok(self.raw.send(Request { method: "PUT", operation, path, headers, body })?)
    }

    /// Without conditions. No other checksums of its parts are known.
    pub(crate) fn terms() -> Terms {
        Terms { checksums: Some(Checksums::Crc64nvme), ..Terms::default() }
    }

    /// It is about to be completed, with everything that was written to this open file.
    pub(crate) fn note_completion(&self, file: u64, completion: Completion) {
        self.watch.completing(file, completion);
    }

    /// `length` is that of all parts, and `before` the object that there was under the key, if that is known.
    pub(crate) async fn complete(
        mut self,
        parts: &[Part],
        length: u64,
        before: Version,
        terms: Terms,
    ) -> Result<Completed, CopyError> {
        let completion = Completion { upload: self.path.clone(), length, before, terms };
        let completed = completion.complete(&self.raw, parts).await?;
        self.is_complete = true;
        Ok(completed)
    }
}

impl Drop for CopyUpload {
    fn drop(&mut self) {
        if !self.is_complete {
            self.raw.abort(&self.path);
        }
    }
}
