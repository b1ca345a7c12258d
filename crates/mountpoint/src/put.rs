//! How an upload is sent. Contents of one part at most are held and sent in one request, whose condition the server checks: new
//! objects, empty ones, and those that continue an object which this process has published. Everything else is sent in
//! parts, as the S3 client does it.

mod completion;

use std::sync::Arc;

use futures::StreamExt as _;
use mountpoint_s3_client::checksums::{crc32c, crc64nvme};
use mountpoint_s3_client::error::{ObjectClientError, PutObjectError};
use mountpoint_s3_client::types::{
    ChecksumAlgorithm, ClientBackpressureHandle as _, ETag, GetObjectParams, GetObjectResponse as _,
    HeadObjectParams, PutObjectParams, PutObjectResult, PutObjectSingleParams, PutObjectTrailingChecksums,
    UploadChecksum, UploadReview, UploadReviewOutcome, UploadReviewPart,
};
use mountpoint_s3_client::{ObjectClient, PutObjectRequest as _, S3CrtClient};

use crate::multipart::Watch;
use crate::server_timeout::Answer;

type Parts = <S3CrtClient as ObjectClient>::PutObjectRequest;

/// Bytes that are held, at most: one part of the default size, which every writer has its share of memory for.
const HELD: usize = 8 * 1024 * 1024;

/// With `*`, what does not exist is created, and nothing is replaced.
pub(crate) const IF_NONE_MATCH: &str = "If-None-Match";

#[derive(Debug)]
pub(crate) struct Put {
    client: S3CrtClient,
    bucket: String,
    key: String,
    params: PutObjectParams,
    single: Single,
    body: Body,
    watch: Option<Watch>,
}

/// What is sent in a single request. Not what replaces an object that another client may own: if the server does not respond, a
/// request with all of the content may be carried out long after the writer has got its error. A condition makes that
/// harmless: what the writer has done since is not replaced.
#[derive(Clone, Debug)]
pub(crate) enum Single {
    /// Only an empty object.
    Empty,
    /// An object that does not exist; the parameters have the condition.
    New,
    /// An object that did not exist when the file was opened. One that has appeared since is replaced.
    PerhapsNew,
    /// The continuation of this object, which is replaced, and no other.
    Replacing(ETag),
}

/// Shared instead of copied, because it may be sent again.
#[derive(Clone, Debug)]
struct Content(Arc<Vec<u8>>);

impl AsRef<[u8]> for Content {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
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
        single: Single,
        watch: Option<Watch>,
    ) -> Self {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        Self { client, bucket, key, params, single, body: Body::Held(Vec::new()), watch }
    }

    pub(crate) async fn write(&mut self, slice: &[u8]) -> Answer<(), PutObjectError> {
        let held_at_most = match self.single {
            Single::Empty => 0,
            Single::New | Single::PerhapsNew | Single::Replacing(_) => {
                self.client.write_part_size().min(HELD)
            }
        };
        match &mut self.body {
            Body::Held(held) if held.len() + slice.len() <= held_at_most => held.extend_from_slice(slice),
            Body::Held(held) => {
                let held = std::mem::take(held);
                let mut parts = self.client.put_object(&self.bucket, &self.key, &self.params).await?;
                if let Some(watch) = &mut self.watch {
                    watch.begin();
                }
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
        let Self { client, bucket, key, params, single, body, watch: _watch } = self;
        let changed = || {
            tracing::warn!(key, "another client has replaced or deleted the file while it was being written");
            Err(ObjectClientError::ServiceError(PutObjectError::PreconditionFailed))
        };
        let (content, single) = match (body, single) {
            (Body::Held(content), single) => (content, single),
            (Body::Sent(parts), Single::Empty | Single::New | Single::PerhapsNew) => {
                return parts.review_and_complete(review).await;
            }
            // Checked here, because the S3 client would send the condition with every part, where servers do not expect it.
            (Body::Sent(parts), Single::Replacing(etag)) => {
                return match client.head_object(&bucket, &key, &HeadObjectParams::new()).await {
                    Ok(object) if object.etag == etag => parts.review_and_complete(review).await,
                    Ok(_) | Err(ObjectClientError::ServiceError(_)) => changed(),
                    Err(ObjectClientError::ClientError(error)) => Err(ObjectClientError::ClientError(error)),
                };
            }
        };
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
        let content = Content(Arc::new(content));
        let request = one_request(params.clone(), checksum, &single);
        let answer = client.put_object_single(&bucket, &key, &request, content.clone()).await;
        let refused = matches!(
            answer,
            Err(ObjectClientError::ServiceError(
                PutObjectError::PreconditionFailed | PutObjectError::NoSuchKey
            ))
        );
        // The S3 client repeats a request whose answer was lost, and the server refuses the second one because of the first.
        if refused && let Some(etag) = already_there(&client, &bucket, &key, &content.0).await {
            // Replaced by itself, for the answer.
            let checksum = self::checksum(&params.trailing_checksums, &content.0);
            let request = one_request(params, checksum, &Single::Replacing(etag));
            return client.put_object_single(&bucket, &key, &request, content).await;
        }
        match single {
            Single::Replacing(_) if refused => changed(),
            // The last writer to close wins.
            Single::PerhapsNew if refused => {
                let mut parts = client.put_object(&bucket, &key, &params).await?;
                parts.write(&content.0).await?;
                parts.complete().await
            }
            _ => answer,
        }
    }
}

/// The object, if it is what was to be uploaded.
async fn already_there(client: &S3CrtClient, bucket: &str, key: &str, content: &[u8]) -> Option<ETag> {
    let object = client.head_object(bucket, key, &HeadObjectParams::new()).await.ok()?;
    if object.size != content.len() as u64 {
        return None;
    }
    let mut rest = content;
    if !rest.is_empty() {
        let params = GetObjectParams::new().range(Some(0..object.size)).if_match(Some(object.etag.clone()));
        let mut response = client.get_object(bucket, key, &params).await.ok()?;
        if let Some(window) = response.backpressure_handle() {
            window.ensure_read_window(object.size);
        }
        while !rest.is_empty() {
            rest = rest.strip_prefix(&*response.next().await?.ok()?.data)?;
        }
    }
    Some(object.etag)
}

/// The same that the parts of a larger upload would get.
pub(crate) fn checksum(requested: &PutObjectTrailingChecksums, content: &[u8]) -> Option<UploadChecksum> {
    match requested.algorithm()? {
        ChecksumAlgorithm::Crc32c => Some(UploadChecksum::Crc32c(crc32c::checksum(content))),
        ChecksumAlgorithm::Crc64nvme => Some(UploadChecksum::Crc64nvme(crc64nvme::checksum(content))),
        _ => None,
    }
}

fn one_request(
    params: PutObjectParams,
    checksum: Option<UploadChecksum>,
    single: &Single,
) -> PutObjectSingleParams {
    // Turned off, checksums are computed for the review, but not sent.
    let is_sent = !matches!(params.trailing_checksums, PutObjectTrailingChecksums::ReviewOnly(_));
    let mut request = PutObjectSingleParams::new();
    request.checksum = checksum.filter(|_| is_sent);
    request.storage_class = params.storage_class;
    request.server_side_encryption = params.server_side_encryption;
    request.ssekms_key_id = params.ssekms_key_id;
    request.custom_headers = params.custom_headers;
    request.object_metadata = params.object_metadata;
    match single {
        Single::Replacing(etag) => {
            request.custom_headers.retain(|(name, _)| name != IF_NONE_MATCH);
            request.if_match = Some(etag.clone());
        }
        Single::PerhapsNew => request.custom_headers.push((IF_NONE_MATCH.to_owned(), "*".to_owned())),
        Single::New | Single::Empty => {}
    }
    request
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
        let single = one_request(params.clone(), sum, &Single::Replacing("etag".into()));
        assert!(
            matches!(single.checksum, Some(UploadChecksum::Crc32c(sum)) if sum == crc32c::checksum(b"content"))
        );
        assert_eq!(single.storage_class.as_deref(), Some("STANDARD_IA"));
        assert_eq!(single.server_side_encryption.as_deref(), Some("aws:kms"));
        assert_eq!(single.ssekms_key_id.as_deref(), Some("arn:1"));
        assert_eq!(single.custom_headers, [("Content-Type".to_owned(), "text/plain".to_owned())]);
        assert_eq!(single.if_match, Some("etag".into()));
        let again = params.clone().add_custom_header("If-None-Match".into(), "*".into());
        let again = one_request(again, None, &Single::Replacing("etag".into()));
        assert_eq!(again.custom_headers, single.custom_headers, "it replaces the object");
        let new = one_request(params, None, &Single::PerhapsNew);
        assert_eq!(new.if_match, None);
        assert_eq!(new.custom_headers.last(), Some(&("If-None-Match".to_owned(), "*".to_owned())));
    }

    #[test]
    fn checksums_that_are_turned_off_are_not_sent() {
        let params = PutObjectParams::new()
            .trailing_checksums(PutObjectTrailingChecksums::ReviewOnly(ChecksumAlgorithm::Crc32c));
        let sum = checksum(&params.trailing_checksums, b"content");
        assert!(sum.is_some(), "the library reviews it");
        assert!(one_request(params, sum, &Single::New).checksum.is_none());
    }
}
