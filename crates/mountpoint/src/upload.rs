//! An upload that does not wait for ever, and whose server must say that it encrypted as it was asked to. The library ends the whole process if it does not,
//! and with it everybody else's files; here only the writer fails.

use std::sync::Arc;

use async_trait::async_trait;
use mountpoint_s3_client::error::{ObjectClientError, PutObjectError};
use mountpoint_s3_client::types::{PutObjectParams, PutObjectResult, UploadReview, UploadReviewOutcome};
use mountpoint_s3_client::{ObjectClient, PutObjectRequest, S3CrtClient, S3RequestError};

use crate::client::Answer;
use crate::silence::{Awaited, Silence};

type Inner = <S3CrtClient as ObjectClient>::PutObjectRequest;

#[derive(Debug)]
pub(crate) struct Upload {
    request: Inner,
    key: String,
    asked: Encryption,
    silence: Arc<Silence>,
}

#[derive(Debug, PartialEq, Eq)]
struct Encryption {
    kind: Option<String>,
    kms_key: Option<String>,
}

impl Upload {
    pub(crate) fn new(request: Inner, key: &str, params: &PutObjectParams, silence: Arc<Silence>) -> Self {
        let asked =
            Encryption { kind: params.server_side_encryption.clone(), kms_key: params.ssekms_key_id.clone() };
        Self { request, key: key.to_owned(), asked, silence }
    }
}

impl Encryption {
    /// What nobody asked for does not matter.
    fn is_confirmed_by(&self, kind: Option<&str>, kms_key: Option<&str>) -> bool {
        let confirmed = |asked: &Option<String>, said| asked.is_none() || asked.as_deref() == said;
        confirmed(&self.kind, kind) && confirmed(&self.kms_key, kms_key)
    }

    fn check(&self, key: &str, result: PutObjectResult) -> Answer<PutObjectResult, PutObjectError> {
        let (kind, kms_key) = (result.sse_type.as_deref(), result.sse_kms_key_id.as_deref());
        if self.is_confirmed_by(kind, kms_key) {
            return Ok(result);
        }
        tracing::error!(key, asked = ?self, said = ?(kind, kms_key), "the server does not confirm the encryption; remove the option sse");
        Err(ObjectClientError::ServiceError(PutObjectError::NotImplemented))
    }
}

#[async_trait]
impl PutObjectRequest for Upload {
    type ClientError = S3RequestError;

    async fn write(&mut self, slice: &[u8]) -> Answer<(), PutObjectError> {
        self.silence.end(Awaited::Transfer, self.request.write(slice)).await
    }

    async fn complete(self) -> Answer<PutObjectResult, PutObjectError> {
        let result = self.silence.end(Awaited::Transfer, self.request.complete()).await?;
        self.asked.check(&self.key, result)
    }

    async fn review_and_complete(
        self,
        review: impl FnOnce(UploadReview) -> UploadReviewOutcome + Send + 'static,
    ) -> Answer<PutObjectResult, PutObjectError> {
        let request = self.request.review_and_complete(review);
        self.asked.check(&self.key, self.silence.end(Awaited::Transfer, request).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_must_be_confirmed() {
        let nothing = Encryption { kind: None, kms_key: None };
        assert!(nothing.is_confirmed_by(None, None) && nothing.is_confirmed_by(Some("AES256"), None));
        let kms = Encryption { kind: Some("aws:kms".into()), kms_key: Some("arn:1".into()) };
        assert!(kms.is_confirmed_by(Some("aws:kms"), Some("arn:1")));
        assert!(!kms.is_confirmed_by(Some("aws:kms"), Some("arn:2")));
        assert!(!kms.is_confirmed_by(Some("AES256"), Some("arn:1")) && !kms.is_confirmed_by(None, None));
    }
}
