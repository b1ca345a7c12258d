//! Multipart uploads that have begun and not ended. On the server they take space until they are aborted, so the journal knows
//! them for a successor. The S3 client does not return the id of an upload, but the path of each request contains it.

use std::sync::Arc;

use mountpoint_s3_crt::s3::client::{RequestMetrics, RequestType};

use crate::journal::{Journal, Record};

#[derive(Debug)]
pub(crate) struct Unfinished(pub(crate) Arc<Journal>);

impl Unfinished {
    /// The server knows an upload, and has nothing of it yet.
    pub(crate) fn begun(&self, upload: String) {
        self.0.record(&Record::UploadBegun(upload));
    }

    /// An attempt at a request to S3 has ended.
    pub(crate) fn attempted(&self, attempt: &RequestMetrics) {
        let record = match attempt.request_type() {
            RequestType::UploadPart | RequestType::UploadPartCopy => Record::UploadBegun,
            // At worst a successor aborts an upload that has already ended.
            RequestType::CompleteMultipartUpload | RequestType::AbortMultipartUpload
                if attempt.status_code().is_some_and(|status| (200..300).contains(&status)) =>
            {
                Record::UploadEnded
            }
            _ => return,
        };
        if let Some(upload) = attempt.request_path_query().as_deref().and_then(upload) {
            self.0.record(&record(upload));
        }
    }
}

/// The path of the upload that a request was about.
fn upload(request: &str) -> Option<String> {
    let (object, query) = request.split_once('?')?;
    let id = query.split('&').find(|parameter| parameter.starts_with("uploadId="))?;
    Some(format!("{object}?{id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_an_upload_is_that_of_its_parts_without_their_numbers() {
        let of = |request: &str| upload(request).unwrap_or_default();
        assert_eq!(of("/bucket/a%20b?partNumber=3&uploadId=Id%2B1"), "/bucket/a%20b?uploadId=Id%2B1");
        assert_eq!(of("/key?uploadId=2&x-id=UploadPart"), "/key?uploadId=2");
        assert_eq!((of("/bucket/key?uploads"), of("/bucket/key")), (String::new(), String::new()));
    }
}
