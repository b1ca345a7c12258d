//! The uploads that a mount process has left when it died.

use mountpoint_s3_client::types::ETag;

use super::Client;
use crate::completion::CompletionError;
use crate::journal::Completion;
use crate::server_timeout::Awaited;

impl Client {
    /// Completes one that was being completed.
    pub(crate) async fn finish(&self, key: &str, completion: &Completion) -> Result<ETag, CompletionError> {
        let raw = self.raw()?;
        let finished = self.0.timeout.limit(Awaited::Transfer, completion.finish(&raw)).await??;
        raw.bucket.telemetry.unfinished_uploads.ended(&completion.upload);
        let confirmed = (finished.encryption.as_deref(), finished.kms_key.as_deref());
        match completion.terms.encryption.check(key, confirmed.0, confirmed.1) {
            Ok(()) => Ok(finished.etag),
            Err(_) => Err(CompletionError::Unencrypted),
        }
    }

    /// What cannot be aborted now, the next mount process aborts.
    pub(crate) fn abort(&self, upload: &str) {
        match self.raw() {
            Ok(raw) => raw.abort(upload),
            Err(error) => tracing::warn!(%error, "cannot abort an upload"),
        }
    }
}
