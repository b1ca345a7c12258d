//! The continuation of a large file: the server copies the object that the file was so far to the beginning of a multipart
//! upload, so that only what is written from now on is sent to it.

use std::collections::VecDeque;
use std::sync::Arc;

use mountpoint_s3_client::checksums::{crc64nvme, crc64nvme_to_base64};
use mountpoint_s3_client::types::{
    ETag, PutObjectParams, PutObjectTrailingChecksums, UploadChecksum, UploadReview, UploadReviewOutcome,
    UploadReviewPart,
};

use crate::completion::{Completed, Part, answer};
use crate::copies::{CopyError, CopyUpload, Original};
use crate::journal::{Completion, Terms, Version};
use crate::put::checksum;
use crate::raw_client::{RawClient, Sending};

/// Parts that are sent while the next one is written. Each is in memory.
const PARTS_UNDER_WAY: usize = 2;
/// S3's limit of an upload. Only its last part may be smaller.
const SMALLEST_PART: u64 = 5 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Continuation {
    upload: CopyUpload,
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
    ) -> Result<Self, CopyError> {
        let upload = CopyUpload::begin(raw, key, headers(params)).await?;
        let original = Original { key: key.to_owned(), etag: replaces, length };
        let parts = upload.copy(&original, true).await?;
        Ok(Self {
            upload,
            replaces: original.etag,
            length,
            checksums: params.trailing_checksums.clone(),
            part_size,
            parts,
            held: Vec::new(),
            sending: VecDeque::new(),
            sent: Vec::new(),
        })
    }

    pub(crate) async fn write(&mut self, mut slice: &[u8]) -> Result<(), CopyError> {
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

    async fn send_held(&mut self) -> Result<(), CopyError> {
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
        let sending = self.upload.send("UploadPart", number, headers, content)?;
        self.sending.push_back(sending);
        self.sent.push(part);
        Ok(())
    }

    async fn finish_part(&mut self) -> Result<(), CopyError> {
        if let Some(sending) = self.sending.pop_front() {
            self.parts.push(answer::sent(&sending.await?.headers)?);
        }
        Ok(())
    }

    /// Replaces the object that was copied, and no other.
    pub(crate) async fn complete(
        mut self,
        review: impl FnOnce(UploadReview) -> UploadReviewOutcome,
    ) -> Result<Completed, CopyError> {
        if !self.held.is_empty() {
            self.send_held().await?;
        }
        while !self.sending.is_empty() {
            self.finish_part().await?;
        }
        let checksum_algorithm = self.checksums.algorithm().cloned();
        let parts = std::mem::take(&mut self.sent);
        if matches!(review(UploadReview { parts, checksum_algorithm }), UploadReviewOutcome::Abort) {
            return Err(CopyError::Checksum);
        }
        let (before, terms) = (Version::of(Some(self.replaces.as_str())), self.terms());
        self.upload.complete(&self.parts, self.length, before, terms).await
    }

    /// It is about to be completed.
    pub(crate) fn note_completion(&self, file: u64, mut completion: Completion) {
        completion.terms = Terms { encryption: completion.terms.encryption, ..self.terms() };
        self.upload.note_completion(file, completion);
    }

    fn terms(&self) -> Terms {
        Terms { replaces: Some(self.replaces.as_str().to_owned()), ..CopyUpload::terms() }
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
