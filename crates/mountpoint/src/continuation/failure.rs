//! Why a file cannot be continued.

use mountpoint_s3_client::S3RequestError;
use mountpoint_s3_client::error::{ObjectClientError, PutObjectError};
use thiserror::Error;

use crate::completion::{CompletionError, NOT_FOUND, PRECONDITION_FAILED, Unreadable};
use crate::raw_client::RawError;

#[derive(Debug, Error)]
pub(crate) enum ContinuationError {
    #[error("the S3 server does not copy parts of objects: {0}")]
    CannotCopy(RawError),
    #[error(transparent)]
    Request(#[from] RawError),
    #[error(transparent)]
    Completion(#[from] CompletionError),
    #[error(transparent)]
    Answer(#[from] Unreadable),
    #[error("the file is too large: an object has at most {0} parts")]
    TooLarge(usize),
    #[error("the checksums of what was sent are wrong")]
    Checksum,
}

/// As the library knows the errors of uploads.
pub(crate) fn failed(error: ContinuationError) -> ObjectClientError<PutObjectError, S3RequestError> {
    match error {
        ContinuationError::Completion(CompletionError::Replaced) => {
            ObjectClientError::ServiceError(PutObjectError::PreconditionFailed)
        }
        ContinuationError::Checksum => ObjectClientError::ServiceError(PutObjectError::BadChecksum),
        error => ObjectClientError::ClientError(S3RequestError::InternalError(Box::new(error))),
    }
}

/// The file is still there to be read back and uploaded again, unless the answer is about the object itself.
pub(super) fn cannot_copy(error: RawError) -> ContinuationError {
    match error {
        RawError::Refused { status: PRECONDITION_FAILED | NOT_FOUND, .. } => CompletionError::Replaced.into(),
        // Internal errors and refusals for the moment were repeated before, and say nothing of the next copy.
        RawError::Refused { status: 400..=499 | 501, .. } => ContinuationError::CannotCopy(error),
        error => error.into(),
    }
}
