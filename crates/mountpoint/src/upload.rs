//! An upload that does not wait without end, and whose server must confirm the requested encryption. If it does not, the
//! library would end the whole process and with it every other open file; here only the writer fails.

use std::sync::Arc;

use async_trait::async_trait;
use mountpoint_s3_client::error::{ObjectClientError, PutObjectError};
use mountpoint_s3_client::types::{PutObjectParams, PutObjectResult, UploadReview, UploadReviewOutcome};
use mountpoint_s3_client::{PutObjectRequest, S3RequestError};

use crate::meter::{InProgress, METER};
use crate::put::Put;
use crate::server_timeout::{Answer, Awaited, ServerTimeout};

#[derive(Debug)]
pub(crate) struct Upload {
    put: Put,
    key: String,
    requested: Encryption,
    timeout: Arc<ServerTimeout>,
    _in_progress: InProgress<'static>,
}

#[derive(Debug, PartialEq, Eq)]
struct Encryption {
    kind: Option<String>,
    kms_key: Option<String>,
}

impl Upload {
    pub(crate) fn new(put: Put, key: &str, params: &PutObjectParams, timeout: Arc<ServerTimeout>) -> Self {
        let requested =
            Encryption { kind: params.server_side_encryption.clone(), kms_key: params.ssekms_key_id.clone() };
        Self { put, key: key.to_owned(), requested, timeout, _in_progress: METER.upload() }
    }
}

impl Encryption {
    /// Encryption that was not requested does not matter.
    fn is_confirmed_by(&self, kind: Option<&str>, kms_key: Option<&str>) -> bool {
        let confirmed =
            |requested: &Option<String>, actual| requested.is_none() || requested.as_deref() == actual;
        confirmed(&self.kind, kind) && confirmed(&self.kms_key, kms_key)
    }

    fn check(&self, key: &str, result: PutObjectResult) -> Answer<PutObjectResult, PutObjectError> {
        let (kind, kms_key) = (result.sse_type.as_deref(), result.sse_kms_key_id.as_deref());
        if self.is_confirmed_by(kind, kms_key) {
            return Ok(result);
        }
        tracing::error!(
            key,
            requested = ?self,
            confirmed = ?(kind, kms_key),
            "the S3 server does not confirm the encryption; remove the mount option `sse`"
        );
        Err(ObjectClientError::ServiceError(PutObjectError::NotImplemented))
    }
}

#[async_trait]
impl PutObjectRequest for Upload {
    type ClientError = S3RequestError;

    async fn write(&mut self, slice: &[u8]) -> Answer<(), PutObjectError> {
        self.timeout.limit_request(Awaited::Transfer, self.put.write(slice)).await
    }

    async fn complete(self) -> Answer<PutObjectResult, PutObjectError> {
        self.review_and_complete(|_review| UploadReviewOutcome::Proceed(None)).await
    }

    async fn review_and_complete(
        self,
        review: impl FnOnce(UploadReview) -> UploadReviewOutcome + Send + 'static,
    ) -> Answer<PutObjectResult, PutObjectError> {
        let completed = self.put.review_and_complete(review);
        let result = self.timeout.limit_request(Awaited::Transfer, completed).await?;
        self.requested.check(&self.key, result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requested_encryption_must_be_confirmed() {
        let nothing = Encryption { kind: None, kms_key: None };
        assert!(nothing.is_confirmed_by(None, None) && nothing.is_confirmed_by(Some("AES256"), None));
        let kms = Encryption { kind: Some("aws:kms".into()), kms_key: Some("arn:1".into()) };
        assert!(kms.is_confirmed_by(Some("aws:kms"), Some("arn:1")));
        assert!(!kms.is_confirmed_by(Some("aws:kms"), Some("arn:2")));
        assert!(!kms.is_confirmed_by(Some("AES256"), Some("arn:1")) && !kms.is_confirmed_by(None, None));
    }
}
