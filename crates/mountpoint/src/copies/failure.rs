//! Why the server has not copied an object.

use mountpoint_s3_client::S3RequestError;
use mountpoint_s3_client::error::{ObjectClientError, PutObjectError};
use thiserror::Error;

use crate::completion::answer::code;
use crate::completion::{CompletionError, NOT_FOUND, PRECONDITION_FAILED, Unreadable};
use crate::raw_client::RawError;
use crate::server_timeout::ServerTimedOut;

const METHOD_NOT_ALLOWED: i32 = 405;
const NOT_IMPLEMENTED: i32 = 501;

#[derive(Debug, Error)]
pub(crate) enum CopyError {
    #[error("the object was replaced or deleted meanwhile")]
    Changed,
    #[error("the S3 server does not copy objects, or not with these keys: {0}")]
    Unsupported(RawError),
    #[error("the S3 server has not copied the object: {0}")]
    Refused(RawError),
    #[error(transparent)]
    Request(#[from] RawError),
    #[error(transparent)]
    TimedOut(#[from] ServerTimedOut),
    #[error(transparent)]
    Answer(#[from] Unreadable),
    #[error(transparent)]
    Completion(CompletionError),
    #[error("the file is too large: an object has at most {0} parts")]
    TooLarge(usize),
    #[error("the checksums of what was sent are wrong")]
    Checksum,
}

impl CopyError {
    pub(super) fn is_not_implemented(&self) -> bool {
        matches!(self, Self::Unsupported(RawError::Refused { status: NOT_IMPLEMENTED, .. }))
    }
}

impl From<CompletionError> for CopyError {
    fn from(error: CompletionError) -> Self {
        match error {
            CompletionError::Replaced => Self::Changed,
            CompletionError::Refused(error) => refused(error),
            error => Self::Completion(error),
        }
    }
}

/// As the library knows the errors of uploads.
pub(crate) fn failed(error: CopyError) -> ObjectClientError<PutObjectError, S3RequestError> {
    match error {
        CopyError::Changed => ObjectClientError::ServiceError(PutObjectError::PreconditionFailed),
        CopyError::Checksum => ObjectClientError::ServiceError(PutObjectError::BadChecksum),
        error => ObjectClientError::ClientError(S3RequestError::InternalError(Box::new(error))),
    }
}

/// What a server says by refusing a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The object is another one, or gone.
    Changed,
    /// It will refuse every copy: it cannot, or the keys have no right to it.
    Unsupported,
    /// Nothing about the next copy: keys expire and are renewed, clocks are set, and other objects can be copied.
    NotNow,
}

fn meaning(status: i32, code: &str) -> Meaning {
    match (status, code) {
        (_, "NoSuchUpload" | "NoSuchBucket") => Meaning::NotNow,
        (PRECONDITION_FAILED | NOT_FOUND, _) | (_, "PreconditionFailed" | "NoSuchKey") => Meaning::Changed,
        (METHOD_NOT_ALLOWED | NOT_IMPLEMENTED, _)
        | (_, "MethodNotAllowed" | "NotImplemented" | "AccessDenied") => Meaning::Unsupported,
        _ => Meaning::NotNow,
    }
}

/// Internal errors and refusals for the moment were repeated before, and are none of these.
pub(super) fn refused(error: RawError) -> CopyError {
    let RawError::Refused { status, body } = &error else { return error.into() };
    match meaning(*status, &code(body).unwrap_or_default()) {
        Meaning::Changed => CopyError::Changed,
        Meaning::Unsupported => CopyError::Unsupported(error),
        Meaning::NotNow => CopyError::Refused(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_cannot_copy_is_not_asked_again() {
        for (status, code, expected) in [
            (412, "PreconditionFailed", Meaning::Changed),
            (412, "", Meaning::Changed),
            (404, "NoSuchKey", Meaning::Changed),
            (404, "NoSuchVersion", Meaning::Changed),
            (404, "", Meaning::Changed),
            (200, "PreconditionFailed", Meaning::Changed),
            (501, "NotImplemented", Meaning::Unsupported),
            (501, "", Meaning::Unsupported),
            (400, "NotImplemented", Meaning::Unsupported),
            (405, "MethodNotAllowed", Meaning::Unsupported),
            (403, "AccessDenied", Meaning::Unsupported),
            (404, "NoSuchUpload", Meaning::NotNow),
            (404, "NoSuchBucket", Meaning::NotNow),
            (400, "ExpiredToken", Meaning::NotNow),
            (400, "InvalidRequest", Meaning::NotNow),
            (400, "", Meaning::NotNow),
            (403, "RequestTimeTooSkewed", Meaning::NotNow),
            (403, "InvalidAccessKeyId", Meaning::NotNow),
            (403, "SignatureDoesNotMatch", Meaning::NotNow),
            (403, "InvalidObjectState", Meaning::NotNow),
            (403, "", Meaning::NotNow),
            (409, "OperationAborted", Meaning::NotNow),
            (429, "TooManyRequests", Meaning::NotNow),
            (503, "SlowDown", Meaning::NotNow),
            (200, "InternalError", Meaning::NotNow),
        ] {
            assert_eq!(meaning(status, code), expected, "{status} {code}");
        }
    }

    #[test]
    fn the_code_is_that_of_the_answer() {
        let answered = |status, body: &str| refused(RawError::Refused { status, body: body.to_owned() });
        let expired = "<?xml version=\"1.0\"?>\n<Error><Code>ExpiredToken</Code><Message>m</Message></Error>";
        assert!(matches!(answered(400, expired), CopyError::Refused(_)));
        let denied = "<Error><Code>AccessDenied</Code></Error>";
        assert!(matches!(answered(403, denied), CopyError::Unsupported(_)));
        assert!(matches!(answered(403, "<html>"), CopyError::Refused(_)));
        assert!(matches!(refused(RawError::Dropped), CopyError::Request(_)));
    }

    /// The copy would be repeated without conditions, and replace what the server has just refused to replace.
    #[test]
    fn a_server_that_does_not_list_parts_implements_the_conditions() {
        let missing = || RawError::Refused { status: NOT_IMPLEMENTED, body: String::new() };
        assert!(CopyError::from(CompletionError::Refused(missing())).is_not_implemented());
        assert!(!CopyError::from(CompletionError::Request(missing())).is_not_implemented());
        assert!(matches!(CopyError::from(CompletionError::Replaced), CopyError::Changed));
    }
}
