//! Why a request has no result.

use mountpoint_s3_crt::common::error::Error as CrtError;
use thiserror::Error;

use crate::credentials::KeysError;

#[derive(Debug, Error)]
pub(crate) enum RawError {
    #[error(transparent)]
    Keys(#[from] KeysError),
    #[error("cannot resolve the endpoint: {0}")]
    Endpoint(String),
    #[error("cannot read the CA bundle: {0}")]
    CaBundle(String),
    #[error("cannot send the request: {0}")]
    Send(#[from] CrtError),
    #[error("the S3 server answered with status {status}: {body}")]
    Refused { status: i32, body: String },
    #[error("the S3 client dropped the request")]
    Dropped,
}
