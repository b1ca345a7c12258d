//! How an upload is sent. An upload that continues an object which this process has published replaces that object and no
//! other: small contents are held and sent in one request, whose condition the server checks. So is an empty object, because
//! one request takes less than three. Everything else is sent in parts, as the S3 client does it.

use mountpoint_s3_client::checksums::{crc32c, crc64nvme};
use mountpoint_s3_client::error::{ObjectClientError, PutObjectError};
use mountpoint_s3_client::types::{
    ChecksumAlgorithm, ETag, HeadObjectParams, PutObjectParams, PutObjectResult, PutObjectSingleParams,
    PutObjectTrailingChecksums, UploadChecksum, UploadReview, UploadReviewOutcome, UploadReviewPart,
};
use mountpoint_s3_client::{ObjectClient, PutObjectRequest as _, S3CrtClient};

use crate::server_timeout::Answer;

type Parts = <S3CrtClient as ObjectClient>::PutObjectRequest;

/// Bytes that are held, at most: one part of the default size, which every writer has its share of memory for.
const HELD: usize = 8 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Put {
    client: S3CrtClient,
    bucket: String,
    key: String,
    params: PutObjectParams,
    /// Of the object that is replaced, if it must be this one and no other.
    replaces: Option<ETag>,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Held(Vec<u8>),
    Sent(Parts),
}

impl Put {
    pub(crate) fn new(
        client: S3CrtClient,
        bucket: &str,
        key: &str,
        params: PutObjectParams,
        replaces: Option<ETag>,
    ) -> Self {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        Self { client, bucket, key, params, replaces, body: Body::Held(Vec::new()) }
    }

    pub(crate) async fn write(&mut self, slice: &[u8]) -> Answer<(), PutObjectError> {
        // Not what is new: if the server does not respond, a request with all of it may be carried out long after the writer
        // has got its error.
        let held_at_most = if self.replaces.is_some() { self.client.write_part_size().min(HELD) } else { 0 };
        match &mut self.body {
            Body::Held(held) if held.len() + slice.len() <= held_at_most => held.extend_from_slice(slice),
            Body::Held(held) => {
                let held = std::mem::take(held);
                let mut parts = self.client.put_object(&self.bucket, &self.key, &self.params).await?;
                if !held.is_empty() {
                    parts.write(&held).await?;
                }
                parts.write(slice).await?;
                self.body = Body::Sent(parts);
            }
            Body::Sent(parts) => parts.write(slice).await?,
        }
        Ok(())
    }

    pub(crate) async fn review_and_complete(
        self,
        review: impl FnOnce(UploadReview) -> UploadReviewOutcome + Send + 'static,
    ) -> Answer<PutObjectResult, PutObjectError> {
        let Self { client, bucket, key, params, replaces, body } = self;
        let changed = || {
            tracing::warn!(key, "another client has replaced or deleted the file while it was being written");
            Err(ObjectClientError::ServiceError(PutObjectError::PreconditionFailed))
        };
        match (body, replaces) {
            (Body::Held(content), replaces) => {
                let checksum = checksum(&params.trailing_checksums, &content);
                let part = UploadReviewPart {
                    size: content.len() as u64,
                    checksum: checksum.as_ref().map(UploadChecksum::to_base64),
                };
                let checksum_algorithm = checksum.as_ref().map(UploadChecksum::checksum_algorithm);
                let reviewed = review(UploadReview { parts: vec![part], checksum_algorithm });
                if matches!(reviewed, UploadReviewOutcome::Abort) {
                    return Err(ObjectClientError::ServiceError(PutObjectError::BadChecksum));
                }
                let is_continued = replaces.is_some();
                let params = single(params, checksum, replaces);
                match client.put_object_single(&bucket, &key, &params, content).await {
                    Err(ObjectClientError::ServiceError(
                        PutObjectError::PreconditionFailed | PutObjectError::NoSuchKey,
                    )) if is_continued => changed(),
                    answer => answer,
                }
            }
            (Body::Sent(parts), None) => parts.review_and_complete(review).await,
            // Checked here, because the S3 client would send the condition with every part, where servers do not expect it.
            (Body::Sent(parts), Some(etag)) => {
                match client.head_object(&bucket, &key, &HeadObjectParams::new()).await {
                    Ok(object) if object.etag == etag => parts.review_and_complete(review).await,
                    Ok(_) | Err(ObjectClientError::ServiceError(_)) => changed(),
                    Err(ObjectClientError::ClientError(error)) => Err(ObjectClientError::ClientError(error)),
                }
            }
        }
    }
}

/// The same that the parts of a larger upload would get.
fn checksum(requested: &PutObjectTrailingChecksums, content: &[u8]) -> Option<UploadChecksum> {
    match requested.algorithm()? {
        ChecksumAlgorithm::Crc32c => Some(UploadChecksum::Crc32c(crc32c::checksum(content))),
        ChecksumAlgorithm::Crc64nvme => Some(UploadChecksum::Crc64nvme(crc64nvme::checksum(content))),
        _ => None,
    }
}

fn single(
    params: PutObjectParams,
    checksum: Option<UploadChecksum>,
    replaces: Option<ETag>,
) -> PutObjectSingleParams {
    // Turned off, checksums are computed for the review, but not sent.
    let is_sent = !matches!(params.trailing_checksums, PutObjectTrailingChecksums::ReviewOnly(_));
    let mut single = PutObjectSingleParams::new();
    single.checksum = checksum.filter(|_| is_sent);
    single.storage_class = params.storage_class;
    single.server_side_encryption = params.server_side_encryption;
    single.ssekms_key_id = params.ssekms_key_id;
    single.if_match = replaces;
    single.custom_headers = params.custom_headers;
    single.object_metadata = params.object_metadata;
    single
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_keeps_everything_that_was_asked_of_the_upload() {
        let params = PutObjectParams::new()
            .trailing_checksums(PutObjectTrailingChecksums::Composite(ChecksumAlgorithm::Crc32c))
            .storage_class("STANDARD_IA".into())
            .server_side_encryption(Some("aws:kms".into()))
            .ssekms_key_id(Some("arn:1".into()))
            .add_custom_header("Content-Type".into(), "text/plain".into());
        let sum = checksum(&params.trailing_checksums, b"content");
        let single = single(params, sum, Some("etag".into()));
        assert!(
            matches!(single.checksum, Some(UploadChecksum::Crc32c(sum)) if sum == crc32c::checksum(b"content"))
        );
        assert_eq!(single.storage_class.as_deref(), Some("STANDARD_IA"));
        assert_eq!(single.server_side_encryption.as_deref(), Some("aws:kms"));
        assert_eq!(single.ssekms_key_id.as_deref(), Some("arn:1"));
        assert_eq!(single.custom_headers, [("Content-Type".to_owned(), "text/plain".to_owned())]);
        assert_eq!(single.if_match, Some("etag".into()));
    }

    #[test]
    fn checksums_that_are_turned_off_are_not_sent() {
        let params = PutObjectParams::new()
            .trailing_checksums(PutObjectTrailingChecksums::ReviewOnly(ChecksumAlgorithm::Crc32c));
        let sum = checksum(&params.trailing_checksums, b"content");
        assert!(sum.is_some(), "the library reviews it");
        assert!(single(params, sum, Some("etag".into())).checksum.is_none());
    }
}
