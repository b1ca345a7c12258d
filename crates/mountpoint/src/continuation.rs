//! The continuation of a large file: the server copies the object that the file was so far to the beginning of a multipart
//! upload, so that only what is written from now on is sent to it.

mod failure;

use std::collections::VecDeque;
use std::sync::Arc;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use mountpoint_s3_client::checksums::{crc64nvme, crc64nvme_to_base64};
use mountpoint_s3_client::types::{
    ETag, PutObjectParams, PutObjectTrailingChecksums, UploadChecksum, UploadReview, UploadReviewOutcome,
    UploadReviewPart,
};

use crate::completion::{Completed, Part, copied, sent, upload_id};
use crate::journal::{Checksums, Completion, Terms, Version};
use crate::multipart::Watch;
use crate::put::checksum;
use crate::raw_client::{RawClient, Request, Sending, escaped};
use failure::cannot_copy;

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
    watch: Watch,
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
        let id = upload_id(&begun.map_err(cannot_copy)?.body)?;
        let path = format!("{object}?uploadId={}", escaped(&id).replace('/', "%2F"));
        let unfinished = &raw.bucket.telemetry.unfinished_uploads;
        let mut watch = Watch::new(Arc::clone(unfinished), object);
        watch.begin();
        unfinished.begun(&path);
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
            watch,
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
                let answer = self.send("UploadPartCopy", number, headers, Vec::new())?.await;
                Ok(copied(&answer.map_err(cannot_copy)?.body)?)
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
            self.parts.push(sent(&sending.await?.headers)?);
        }
        Ok(())
    }

    /// Replaces the object that was copied, and no other.
    pub(crate) async fn complete(
        mut self,
        review: impl FnOnce(UploadReview) -> UploadReviewOutcome,
    ) -> Result<Completed, ContinuationError> {
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
        let completion = Completion {
            upload: self.path.clone(),
            length: self.length,
            before: Version::of(Some(self.replaces.as_str())),
            terms: self.terms(),
        };
        let completed = completion.complete(&self.raw, &self.parts).await?;
        self.is_complete = true;
        Ok(completed)
    }

    /// It is about to be completed.
    pub(crate) fn note_completion(&self, file: u64, mut completion: Completion) {
        completion.terms = Terms { encryption: completion.terms.encryption, ..self.terms() };
        self.watch.completing(file, completion);
    }

    fn terms(&self) -> Terms {
        let (replaces, checksums) = (Some(self.replaces.as_str().to_owned()), Some(Checksums::Crc64nvme));
        Terms { replaces, checksums, ..Terms::default() }
    }
}

impl Drop for Continuation {
    fn drop(&mut self) {
        if !self.is_complete {
            self.raw.abort(&self.path);
        }
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
