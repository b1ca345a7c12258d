//! The continuation of a large file: the server copies the object that the file was so far to the beginning of a multipart
//! upload, so that only what is written from now on is sent to it.

mod answer;
mod failure;

use std::collections::VecDeque;
use std::sync::Arc;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use mountpoint_s3_client::checksums::{crc64nvme, crc64nvme_to_base64};
use mountpoint_s3_client::types::{
    ETag, PutObjectParams, PutObjectTrailingChecksums, UploadChecksum, UploadReview, UploadReviewOutcome,
    UploadReviewPart,
};
use mountpoint_s3_crt::http::request_response::Headers;

use crate::put::checksum;
use crate::raw_client::{ABORT, RawClient, RawError, Request, Response, Sending, bodyless, escaped};
use answer::Part;
use failure::{NOT_FOUND, PRECONDITION_FAILED, cannot_copy};

pub(crate) use failure::{ContinuationError, failed};

/// S3 copies at most 5 GiB in a request, and the S3 client ends one of which nothing was heard for 30 s.
const COPIED_AT_ONCE: u64 = 512 * 1024 * 1024;
/// Copies under way at the same time.
const COPIES: usize = 4;
/// Parts that are sent while the next one is written. Each is in memory.
const PARTS_UNDER_WAY: usize = 2;
/// S3's limits of an upload. Only its last part may be smaller.
const SMALLEST_PART: u64 = 5 * 1024 * 1024;
const MOST_PARTS: usize = 10_000;

/// The object that a continued file has become.
#[derive(Debug)]
pub(crate) struct Continued {
    pub(crate) etag: ETag,
    pub(crate) encryption: Option<String>,
    pub(crate) kms_key: Option<String>,
}

/// Dropped before it is complete, it is aborted.
#[derive(Debug)]
pub(crate) struct Continuation {
    raw: Arc<RawClient>,
    /// With the upload's id.
    path: String,
    replaces: ETag,
    /// Bytes that were copied and sent.
    length: u64,
    checksums: PutObjectTrailingChecksums,
    part_size: usize,
    parts: Vec<Part>,
    held: Vec<u8>,
    /// Parts that are on their way, in their order.
    sending: VecDeque<Sending>,
    /// What was sent, for the library, which knows nothing of what was copied.
    sent: Vec<UploadReviewPart>,
    is_complete: bool,
}

/// Whether the server can be asked to copy the beginning of a file of this length.
pub(crate) fn is_copied(length: u64) -> bool {
    length >= SMALLEST_PART
}

impl Continuation {
    /// Begins an upload with the first `length` bytes of the object, which are all that it has.
    pub(crate) async fn begin(
        raw: Arc<RawClient>,
        key: &str,
        params: &PutObjectParams,
        (replaces, length): (ETag, u64),
        part_size: usize,
    ) -> Result<Self, ContinuationError> {
        let object = raw.path(key);
        let begun = raw
            .send(Request {
                method: "POST",
                operation: "CreateMultipartUpload",
                path: format!("{object}?uploads"),
                headers: headers(params),
                body: Vec::new(),
            })?
            .await;
        let id = answer::upload_id(&begun.map_err(cannot_copy)?.body)?;
        let path = format!("{object}?uploadId={}", escaped(&id).replace('/', "%2F"));
        raw.bucket.telemetry.unfinished_uploads.begun(path.clone());
        let checksums = params.trailing_checksums.clone();
        let mut continuation = Self {
            raw,
            path,
            replaces,
            length,
            checksums,
            part_size,
            parts: Vec::new(),
            held: Vec::new(),
            sending: VecDeque::new(),
            sent: Vec::new(),
            is_complete: false,
        };
        continuation.parts = continuation.copy(key, length).await?;
        Ok(continuation)
    }

    /// In parts of the same size, because none but the last of an upload may be small.
    async fn copy(&self, key: &str, length: u64) -> Result<Vec<Part>, ContinuationError> {
        let count = length.div_ceil(COPIED_AT_ONCE);
        let size = length.div_ceil(count);
        let source = format!("/{}/{}", self.raw.bucket.name, escaped(key));
        let copies = (0..count).map(|part| {
            let range = format!("bytes={}-{}", part * size, ((part + 1) * size).min(length) - 1);
            let headers = vec![
                ("x-amz-copy-source", source.clone()),
                ("x-amz-copy-source-if-match", self.replaces.as_str().to_owned()),
                ("x-amz-copy-source-range", range),
            ];
            async move {
                let number = usize::try_from(part).unwrap_or(usize::MAX) + 1;
                let copied = self.send("UploadPartCopy", number, headers, Vec::new())?.await;
                Ok(answer::copied(&copied.map_err(cannot_copy)?.body)?)
            }
        });
        stream::iter(copies).buffered(COPIES).try_collect().await
    }

    fn send(
        &self,
        operation: &'static str,
        number: usize,
        headers: Vec<(&'static str, String)>,
        body: Vec<u8>,
    ) -> Result<Sending, ContinuationError> {
        if number > MOST_PARTS {
            return Err(ContinuationError::TooLarge(MOST_PARTS));
        }
        let path = self.path.replacen('?', &format!("?partNumber={number}&"), 1);
        Ok(self.raw.send(Request { method: "PUT", operation, path, headers, body })?)
    }

    pub(crate) async fn write(&mut self, mut slice: &[u8]) -> Result<(), ContinuationError> {
        while !slice.is_empty() {
            let (now, rest) = slice.split_at(slice.len().min(self.part_size - self.held.len()));
            self.held.extend_from_slice(now);
            slice = rest;
            if self.held.len() == self.part_size {
                self.send_held().await?;
            }
        }
        Ok(())
    }

    async fn send_held(&mut self) -> Result<(), ContinuationError> {
        if self.sending.len() == PARTS_UNDER_WAY {
            self.finish_part().await?;
        }
        let content = std::mem::take(&mut self.held);
        let mut headers = Vec::new();
        let reviewed = checksum(&self.checksums, &content);
        let part = UploadReviewPart {
            size: content.len() as u64,
            checksum: reviewed.as_ref().map(UploadChecksum::to_base64),
        };
        if sends_checksums(&self.checksums) {
            headers.push(("x-amz-checksum-crc64nvme", crc64nvme_to_base64(&crc64nvme::checksum(&content))));
        }
        self.length += part.size;
        let number = self.parts.len() + self.sending.len() + 1;
        let sending = self.send("UploadPart", number, headers, content)?;
        self.sending.push_back(sending);
        self.sent.push(part);
        Ok(())
    }

    async fn finish_part(&mut self) -> Result<(), ContinuationError> {
        if let Some(sending) = self.sending.pop_front() {
            self.parts.push(answer::sent(&sending.await?.headers)?);
        }
        Ok(())
    }

    /// Replaces the object that was copied, and no other.
    pub(crate) async fn complete(
        mut self,
        review: impl FnOnce(UploadReview) -> UploadReviewOutcome,
    ) -> Result<Continued, ContinuationError> {
        if !self.held.is_empty() {
            self.send_held().await?;
        }
        while !self.sending.is_empty() {
            self.finish_part().await?;
        }
        let checksum_algorithm = self.checksums.algorithm().cloned();
        let parts = std::mem::take(&mut self.sent);
        if matches!(review(UploadReview { parts, checksum_algorithm }), UploadReviewOutcome::Abort) {
            return Err(ContinuationError::Checksum);
        }
        let request = Request {
            method: "POST",
            operation: "CompleteMultipartUpload",
            path: self.path.clone(),
            headers: vec![("If-Match", self.replaces.as_str().to_owned())],
            body: answer::parts(&self.parts).into_bytes(),
        };
        let Response { headers, body } = match self.raw.send(request)?.await {
            Err(RawError::Refused { status: PRECONDITION_FAILED | NOT_FOUND, .. }) => {
                return self.completed_before().await;
            }
            answer => answer?,
        };
        self.is_complete = true;
        Ok(continued(answer::completed(&body)?, &headers))
    }

    /// The S3 client repeats a request whose answer was lost, and the server refuses the second one because of the first. An
    /// upload that is complete is no longer there.
    async fn completed_before(mut self) -> Result<Continued, ContinuationError> {
        match self.raw.send(bodyless("GET", "ListParts", self.path.clone()))?.await {
            Err(RawError::Refused { status: NOT_FOUND, .. }) => {}
            answer => {
                return answer.map_or_else(|error| Err(error.into()), |_| Err(ContinuationError::Replaced));
            }
        }
        self.is_complete = true;
        let object = self.path.split_once('?').map_or(&*self.path, |(object, _)| object);
        match self.raw.send(bodyless("HEAD", "HeadObject", object.to_owned()))?.await {
            Ok(Response { headers, .. }) if answer::length(&headers) == Some(self.length) => {
                Ok(continued(answer::etag(&headers)?, &headers))
            }
            Ok(_) | Err(RawError::Refused { status: NOT_FOUND, .. }) => Err(ContinuationError::Replaced),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Continuation {
    fn drop(&mut self) {
        if self.is_complete {
            return;
        }
        // What cannot be aborted now, the next mount process aborts.
        match self.raw.send(bodyless("DELETE", ABORT, self.path.clone())) {
            Ok(sending) => sending.detach(),
            Err(error) => tracing::warn!(%error, "cannot abort an upload"),
        }
    }
}

fn continued(etag: String, headers: &Headers) -> Continued {
    Continued {
        etag: etag.into(),
        encryption: answer::header(headers, "x-amz-server-side-encryption"),
        kms_key: answer::header(headers, "x-amz-server-side-encryption-aws-kms-key-id"),
    }
}

/// What the new object gets from its first request, as the S3 client would send it.
fn headers(params: &PutObjectParams) -> Vec<(&'static str, String)> {
    let custom = |name: &str| {
        let is_it = |(header, _): &&(String, String)| header.eq_ignore_ascii_case(name);
        params.custom_headers.iter().find(is_it).map(|(_, value)| value.clone())
    };
    let checksums = sends_checksums(&params.trailing_checksums);
    // The only ones with which the checksum of an object does not depend on how it was divided: the parts of a copy have
    // none of their own on some servers.
    let checksum = |value: &str| checksums.then(|| value.to_owned());
    [
        ("Content-Type", custom("Content-Type")),
        ("x-amz-storage-class", params.storage_class.clone()),
        ("x-amz-server-side-encryption", params.server_side_encryption.clone()),
        ("x-amz-server-side-encryption-aws-kms-key-id", params.ssekms_key_id.clone()),
        ("x-amz-checksum-algorithm", checksum("CRC64NVME")),
        ("x-amz-checksum-type", checksum("FULL_OBJECT")),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect()
}

fn sends_checksums(checksums: &PutObjectTrailingChecksums) -> bool {
    matches!(checksums, PutObjectTrailingChecksums::Composite(_) | PutObjectTrailingChecksums::FullObject(_))
}
