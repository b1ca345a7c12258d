//! An upload that does not wait without end, and whose server must confirm the requested encryption. If it does not, the
//! library would end the whole process and with it every other open file; here only the writer fails.

use std::sync::Arc;

use async_trait::async_trait;
use futures::TryFutureExt as _;
use mountpoint_s3_client::error::{ObjectClientError, PutObjectError};
use mountpoint_s3_client::types::{PutObjectParams, PutObjectResult, UploadReview, UploadReviewOutcome};
use mountpoint_s3_client::{PutObjectRequest, S3RequestError};

use crate::continuation::Continuation;
use crate::copies::failed;
use crate::journal::{Completion, Encryption, Terms};
use crate::meter::{InProgress, METER};
use crate::put::Put;
use crate::server_timeout::{Answer, Awaited, ServerTimeout};
use crate::uploads::Uploads;

#[derive(Debug)]
pub(crate) struct Upload {
    sent: Sent,
    key: String,
    /// The library's handle.
    writer: Option<u64>,
    requested: Encryption,
    timeout: Arc<ServerTimeout>,
    uploads: Arc<Uploads>,
    _in_progress: InProgress<'static>,
}

/// How it is sent.
#[derive(Debug)]
pub(crate) enum Sent {
    ByLibrary(Put),
    Continued(Continuation),
}

impl Upload {
    pub(crate) fn new(
        sent: Sent,
        key: &str,
        params: &PutObjectParams,
        timeout: Arc<ServerTimeout>,
        uploads: Arc<Uploads>,
    ) -> Self {
        let requested =
            Encryption { kind: params.server_side_encryption.clone(), kms_key: params.ssekms_key_id.clone() };
        let (key, writer) = (key.to_owned(), uploads.writer(key));
        Self { sent, key, writer, requested, timeout, uploads, _in_progress: METER.upload() }
    }

    /// A successor completes it if this process dies meanwhile.
    fn note_completion(&self) {
        let Some(writer) = self.writer else { return };
        let Some((file, length)) = self.uploads.file(writer) else { return };
        let before = self.uploads.replaces(writer);
        let terms = Terms { encryption: self.requested.clone(), ..Terms::default() };
        let completion = Completion { upload: String::new(), length, before, terms };
        match &self.sent {
            Sent::ByLibrary(put) => put.note_completion(file, completion),
            Sent::Continued(continuation) => continuation.note_completion(file, completion),
        }
    }
}

impl Encryption {
    /// Encryption that was not requested does not matter.
    fn is_confirmed_by(&self, kind: Option<&str>, kms_key: Option<&str>) -> bool {
        let confirmed =
            |requested: &Option<String>, actual| requested.is_none() || requested.as_deref() == actual;
        confirmed(&self.kind, kind) && confirmed(&self.kms_key, kms_key)
    }

    pub(crate) fn check(
        &self,
        key: &str,
        kind: Option<&str>,
        kms_key: Option<&str>,
    ) -> Answer<(), PutObjectError> {
        if self.is_confirmed_by(kind, kms_key) {
            return Ok(());
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
        match &mut self.sent {
            Sent::ByLibrary(put) => self.timeout.limit_request(Awaited::Transfer, put.write(slice)).await,
            Sent::Continued(continuation) => {
                let write = continuation.write(slice).map_err(failed);
                self.timeout.limit_request(Awaited::Transfer, write).await
            }
        }
    }

    async fn complete(self) -> Answer<PutObjectResult, PutObjectError> {
        self.review_and_complete(|_review| UploadReviewOutcome::Proceed(None)).await
    }

    async fn review_and_complete(
        self,
        review: impl FnOnce(UploadReview) -> UploadReviewOutcome + Send + 'static,
    ) -> Answer<PutObjectResult, PutObjectError> {
        self.note_completion();
        let Self { sent, key, requested, timeout, uploads, .. } = self;
        match sent {
            Sent::ByLibrary(put) => {
                let complete = put.review_and_complete(review);
                let result = timeout.limit_request(Awaited::Transfer, complete).await?;
                requested.check(&key, result.sse_type.as_deref(), result.sse_kms_key_id.as_deref())?;
                Ok(result)
            }
            Sent::Continued(continuation) => {
                let complete = continuation.complete(review).map_err(failed);
                let object = timeout.limit_request(Awaited::Transfer, complete).await?;
                requested.check(&key, object.encryption.as_deref(), object.kms_key.as_deref())?;
                uploads.continued(&key, object.etag);
                // Only the library can make a result.
                Err(ObjectClientError::ServiceError(PutObjectError::NotImplemented))
            }
        }
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
