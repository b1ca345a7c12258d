//! Why a bucket cannot be created, read or deleted.

use thiserror::Error;
use tonic::Code;

use crate::provision::s3::error::S3Error;

#[derive(Debug, Error)]
pub enum BucketError {
    #[error("cannot create the volume: {0}")]
    Create(#[source] S3Error),
    #[error("cannot delete the volume: {0}")]
    Delete(#[source] S3Error),
    #[error("cannot read the volume: {0}")]
    Read(#[source] S3Error),
    #[error(
        "{endpoint} listed object {key:?}, which is outside of {place}: nothing of that list was deleted"
    )]
    Outside { endpoint: String, place: String, key: String },
    #[error(
        "object {key:?} in {place} at {endpoint} exists after its deletion succeeded: remove its lock or retention, stop \
         what writes it, or delete it manually"
    )]
    Undeletable { endpoint: String, place: String, key: String },
}

impl BucketError {
    pub fn code(&self) -> Code {
        match self {
            Self::Create(error) | Self::Delete(error) | Self::Read(error) => error.code(),
            Self::Outside { .. } | Self::Undeletable { .. } => Code::FailedPrecondition,
        }
    }

    /// Whether a bucket may have been created all the same.
    pub fn is_ambiguous(&self) -> bool {
        match self {
            Self::Read(_) => false,
            Self::Create(error) => error.is_ambiguous(),
            Self::Delete(_) | Self::Outside { .. } | Self::Undeletable { .. } => true,
        }
    }
}
