//! Why a request to the S3 server failed, with the remedy.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

use contract::s3::S3Failure;
use contract::text::{causes, on_one_line};
use tonic::Code;

use super::connection::is_tls_error;
use super::response;

/// What is asked of the S3 server, as the action that an IAM policy allows, without `s3:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr)]
pub enum Operation {
    CreateBucket,
    DeleteBucket,
    #[strum(serialize = "ListBucket")]
    ListObjects,
    #[strum(serialize = "DeleteObject")]
    DeleteObjects,
    #[strum(serialize = "ListBucketMultipartUploads")]
    ListUploads,
    #[strum(serialize = "AbortMultipartUpload")]
    AbortUpload,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The server answered with an error.
    Answered(S3Failure),
    /// The server answered with something that S3 never answers.
    InvalidResponse,
    /// Other requests use all the memory that there is for requests.
    NotSent,
    Unreachable,
    UntrustedCertificate,
    Timeout,
    ConnectionLost,
}

impl ErrorKind {
    /// Whether the request may have had its effect all the same.
    fn is_ambiguous(self) -> bool {
        match self {
            Self::Answered(S3Failure::Throttled | S3Failure::ServerError)
            | Self::InvalidResponse
            | Self::Timeout
            | Self::ConnectionLost => true,
            Self::Answered(_) | Self::NotSent | Self::Unreachable | Self::UntrustedCertificate => false,
        }
    }

    fn code(self) -> Code {
        match self {
            Self::Answered(failure) => match failure {
                S3Failure::WrongSecretKey | S3Failure::UnknownAccessKey | S3Failure::InvalidToken => {
                    Code::Unauthenticated
                }
                S3Failure::AccessDenied => Code::PermissionDenied,
                S3Failure::OwnedByOther | S3Failure::AlreadyOwned => Code::AlreadyExists,
                S3Failure::WrongRegion | S3Failure::InvalidBucketName => Code::InvalidArgument,
                S3Failure::BucketLimitExceeded => Code::ResourceExhausted,
                S3Failure::ClockSkew
                | S3Failure::NoSuchBucket
                | S3Failure::BucketNotEmpty
                | S3Failure::UploadsInProgress
                | S3Failure::Rejected => Code::FailedPrecondition,
                S3Failure::Throttled | S3Failure::ServerError => Code::Unavailable,
            },
            Self::InvalidResponse | Self::UntrustedCertificate => Code::FailedPrecondition,
            Self::NotSent | Self::Unreachable | Self::ConnectionLost => Code::Unavailable,
            Self::Timeout => Code::DeadlineExceeded,
        }
    }
}

/// Longest text of a server, in bytes: it is kept, logged and put into Events.
const LONGEST_DETAIL: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Error {
    pub kind: ErrorKind,
    operation: Operation,
    bucket: String,
    endpoint: String,
    region: String,
    /// The server's code and message, or what happened to the connection.
    detail: String,
}

impl S3Error {
    pub(super) fn new(kind: ErrorKind, call: &Call<'_>, mut detail: String) -> Self {
        detail.truncate(detail.floor_char_boundary(LONGEST_DETAIL));
        Self {
            kind,
            operation: call.operation,
            bucket: call.bucket.to_owned(),
            endpoint: call.endpoint.clone().into_owned(),
            region: call.region.to_owned(),
            detail: on_one_line(&detail),
        }
    }

    pub(super) fn answered(failure: S3Failure, call: &Call<'_>, detail: String) -> Self {
        Self::new(ErrorKind::Answered(failure), call, detail)
    }

    pub(super) fn of_response(call: &Call<'_>, status: u16, body: &str) -> Self {
        let Some(response::ErrorBody { code: Some(code), message, .. }) = response::error(body) else {
            return Self::answered(S3Failure::of(Some(status), ""), call, format!("HTTP {status}"));
        };
        let detail = format!("{code}: {}", message.unwrap_or_default());
        Self::answered(S3Failure::of(Some(status), &code), call, detail)
    }

    /// The first object that the response to `DeleteObjects` lists as not deleted.
    pub(super) fn of_object(call: &Call<'_>, body: &str) -> Option<Self> {
        match response::object_error(body) {
            Ok(None) => None,
            Ok(Some(response::ErrorBody { key, code, message })) => {
                let [key, code, message] = [key, code, message].map(Option::unwrap_or_default);
                let detail = format!("{code}: {message}, for object `{key}`");
                Some(Self::answered(S3Failure::of(None, &code), call, detail))
            }
            Err(error) => Some(Self::new(ErrorKind::InvalidResponse, call, error.to_string())),
        }
    }

    /// No response arrived.
    pub(super) fn of_connection(call: &Call<'_>, connecting: bool, error: &(dyn StdError + 'static)) -> Self {
        let kind = match (is_tls_error(error), connecting) {
            (true, _) => ErrorKind::UntrustedCertificate,
            (false, true) => ErrorKind::Unreachable,
            (false, false) => ErrorKind::ConnectionLost,
        };
        Self::new(kind, call, causes(error))
    }

    #[cfg(test)]
    pub(crate) fn simulated(kind: ErrorKind, operation: Operation, bucket: &str) -> Self {
        let call = Call { operation, bucket, endpoint: Cow::Borrowed("http://s3.test"), region: "us-east-1" };
        Self::new(kind, &call, "simulated".to_owned())
    }

    pub fn is(&self, failure: S3Failure) -> bool {
        self.kind == ErrorKind::Answered(failure)
    }

    /// Whether the request may have had its effect all the same.
    pub fn is_ambiguous(&self) -> bool {
        self.kind.is_ambiguous()
    }

    pub fn code(&self) -> Code {
        self.kind.code()
    }

    fn explain_answer(&self, formatter: &mut fmt::Formatter<'_>, failure: S3Failure) -> fmt::Result {
        let Self { bucket, endpoint, region, detail, operation, .. } = self;
        let action: &str = operation.into();
        match failure {
            S3Failure::WrongSecretKey => write!(
                formatter,
                "{endpoint} rejected the secret key for bucket `{bucket}` ({detail}): correct `secret_access_key`"
            ),
            S3Failure::UnknownAccessKey => write!(
                formatter,
                "{endpoint} does not know the access key for bucket `{bucket}` ({detail}): correct `access_key_id`, or \
                 create the key there"
            ),
            S3Failure::InvalidToken => write!(
                formatter,
                "{endpoint} rejected the session token for bucket `{bucket}` ({detail}): renew the credentials"
            ),
            S3Failure::ClockSkew => write!(
                formatter,
                "the clocks of the controller and of {endpoint} differ too much for bucket `{bucket}` ({detail}): \
                 correct the clock"
            ),
            S3Failure::WrongRegion => write!(
                formatter,
                "{endpoint} does not accept region `{region}` for bucket `{bucket}` ({detail}): correct the region of \
                 the class, of the Secret or of the driver"
            ),
            S3Failure::AccessDenied => write!(
                formatter,
                "{endpoint} denies {action} on bucket `{bucket}` ({detail}): allow `s3:{action}` for these credentials"
            ),
            S3Failure::OwnedByOther => write!(
                formatter,
                "bucket `{bucket}` at {endpoint} belongs to another account ({detail}): use the credentials of that \
                 account"
            ),
            S3Failure::AlreadyOwned => {
                write!(formatter, "bucket `{bucket}` at {endpoint} exists already ({detail})")
            }
            S3Failure::InvalidBucketName => {
                let field = match operation {
                    Operation::CreateBucket => "bucketNamePrefix",
                    _ => "bucketName",
                };
                write!(
                    formatter,
                    "{endpoint} rejected `{bucket}` as a bucket name ({detail}): correct `{field}`"
                )
            }
            S3Failure::BucketLimitExceeded => write!(
                formatter,
                "cannot create bucket `{bucket}`: the account has reached its bucket limit at {endpoint} ({detail}); \
                 raise the limit, or give each claim a prefix of one bucket (`bucketName`)"
            ),
            S3Failure::NoSuchBucket => write!(
                formatter,
                "there is no bucket `{bucket}` at {endpoint} ({detail}): create it, or correct `bucketName`"
            ),
            S3Failure::BucketNotEmpty => {
                write!(formatter, "bucket `{bucket}` at {endpoint} is not empty ({detail})")
            }
            S3Failure::UploadsInProgress => {
                write!(formatter, "bucket `{bucket}` at {endpoint} has unfinished uploads ({detail})")
            }
            S3Failure::Throttled => write!(
                formatter,
                "{endpoint} throttled {action} on bucket `{bucket}` ({detail}); the driver will retry"
            ),
            S3Failure::ServerError => write!(
                formatter,
                "{endpoint} failed to complete {action} on bucket `{bucket}` ({detail}); the driver will retry"
            ),
            S3Failure::Rejected => write!(
                formatter,
                "{endpoint} rejected {action} on bucket `{bucket}` ({detail}): check that it is an S3 endpoint"
            ),
        }
    }
}

impl fmt::Display for S3Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bucket, endpoint, detail, operation, .. } = self;
        let action: &str = operation.into();
        match self.kind {
            ErrorKind::Answered(failure) => self.explain_answer(formatter, failure),
            ErrorKind::InvalidResponse => write!(
                formatter,
                "{endpoint} sent an invalid response to {action} on bucket `{bucket}` ({detail}): check that it is an \
                 S3 endpoint"
            ),
            ErrorKind::NotSent => write!(
                formatter,
                "cannot send {action} on bucket `{bucket}` to {endpoint}: other requests use all the memory for S3 requests ({detail}); \
                 the driver will retry"
            ),
            ErrorKind::Unreachable => write!(
                formatter,
                "cannot connect to {endpoint} for bucket `{bucket}` ({detail}): check that the S3 server is running and \
                 that network policies allow the connection"
            ),
            ErrorKind::UntrustedCertificate => write!(
                formatter,
                "the certificate of {endpoint} is not trusted for bucket `{bucket}` ({detail}): add its CA to the driver \
                 (`tls.caCertConfigMap`), or correct the endpoint"
            ),
            ErrorKind::Timeout => write!(
                formatter,
                "{endpoint} did not answer {action} on bucket `{bucket}` ({detail}); the driver will retry"
            ),
            ErrorKind::ConnectionLost => write!(
                formatter,
                "lost the connection to {endpoint} during {action} on bucket `{bucket}` ({detail}); the driver will retry"
            ),
        }
    }
}

impl StdError for S3Error {}

/// A request, as far as errors name it.
#[derive(Clone, Debug)]
pub(super) struct Call<'a> {
    pub(super) operation: Operation,
    pub(super) bucket: &'a str,
    pub(super) endpoint: Cow<'a, str>,
    pub(super) region: &'a str,
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
