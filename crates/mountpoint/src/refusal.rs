//! Why a bucket cannot be served, as a stable code and a message that names the remedy: from the errors of the S3 client.

use contract::s3::S3Failure;
use exchange::ExchangeError;
use mounter::handover::{Code, Refused};
use mountpoint_s3_client::S3RequestError;
use mountpoint_s3_client::error::{ListObjectsError, ObjectClientError};
use mountpoint_s3_client::error_metadata::ProvideErrorMetadata as _;

use crate::client::ClientError;
use crate::credentials::KeysError;

/// As far as messages need it.
#[derive(Clone, Debug)]
pub(crate) struct RequestedBucket {
    pub(crate) bucket: String,
    pub(crate) endpoint: String,
    pub(crate) region: String,
    /// Whose keys the requests are signed with.
    pub(crate) identity: String,
}

type ListError = ObjectClientError<ListObjectsError, S3RequestError>;

/// The failure of the first listing.
pub(crate) fn of_listing(error: &ListError, requested: &RequestedBucket) -> Refused {
    let RequestedBucket { bucket, region, .. } = requested;
    let refused = Refused::new;
    match error {
        ObjectClientError::ServiceError(ListObjectsError::NoSuchBucket) => no_such_bucket(requested),
        ObjectClientError::ClientError(S3RequestError::IncorrectRegion(right, _)) => refused(
            Code::WrongRegion,
            format!("bucket `{bucket}` is in region `{right}`, not `{region}`: correct the region"),
        ),
        ObjectClientError::ClientError(S3RequestError::NoSigningCredentials) => refused(
            Code::NoCredentials,
            format!("there are no credentials for bucket `{bucket}`: provide them, or use no-sign-request"),
        ),
        ObjectClientError::ClientError(S3RequestError::CrtError(error)) => {
            unconnected(&error.to_string(), requested)
        }
        ObjectClientError::ClientError(error) => answered(error, requested),
        // No other kind exists in this version of the library.
        ObjectClientError::ServiceError(error) => refused(Code::Failed, error.to_string()),
    }
}

fn no_such_bucket(RequestedBucket { bucket, endpoint, .. }: &RequestedBucket) -> Refused {
    let message = format!("there is no bucket `{bucket}` at {endpoint}: create it, or correct bucketName");
    Refused::new(Code::NoSuchBucket, message)
}

fn answered(error: &S3RequestError, requested: &RequestedBucket) -> Refused {
    let RequestedBucket { bucket, endpoint, region, identity } = requested;
    let meta = error.meta();
    let s3_code = meta.error_code.unwrap_or_default();
    let s3_message = meta.error_message.unwrap_or_else(|| error.to_string());
    let status = meta.http_code.and_then(|status| u16::try_from(status).ok());
    let (code, message) = match S3Failure::of(status, &s3_code) {
        S3Failure::WrongSecretKey => (
            Code::WrongSecret,
            format!(
                "{endpoint} says that the secret key does not belong to the access key: correct the secret key"
            ),
        ),
        S3Failure::UnknownAccessKey => (
            Code::UnknownKey,
            format!("{endpoint} does not know the access key: correct it, or create it there"),
        ),
        S3Failure::InvalidToken => (
            Code::ExpiredCredentials,
            format!("the session token is no longer valid at {endpoint} ({s3_code}): renew the credentials"),
        ),
        S3Failure::ClockSkew => (
            Code::AccessDenied,
            format!("this node's clock differs too much from that of {endpoint}: set the clock"),
        ),
        S3Failure::WrongRegion => (
            Code::WrongRegion,
            format!("{endpoint} does not accept region `{region}` ({s3_message}): correct the region"),
        ),
        S3Failure::InvalidBucketName => (
            Code::BadBucket,
            format!(
                "invalid `bucketName` \"{bucket}\": {endpoint} rejects it ({s3_message}); bucket names have 3 to 63 \
                 lower-case letters, digits, dots or dashes"
            ),
        ),
        S3Failure::NoSuchBucket => return no_such_bucket(requested),
        S3Failure::AccessDenied => (
            Code::AccessDenied,
            format!(
                "{endpoint} denies access to bucket `{bucket}` ({s3_code}: {s3_message}): allow {identity} to list it"
            ),
        ),
        S3Failure::OwnedByOther
        | S3Failure::AlreadyOwned
        | S3Failure::BucketLimitExceeded
        | S3Failure::BucketNotEmpty
        | S3Failure::UploadsInProgress
        | S3Failure::Throttled
        | S3Failure::ServerError
        | S3Failure::Rejected => (
            Code::Failed,
            format!("the first listing of bucket `{bucket}` at {endpoint} failed ({s3_code}): {s3_message}"),
        ),
    };
    Refused::new(code, message)
}

/// Without an answer the S3 client reports the failed step by the names of its C libraries.
fn unconnected(error: &str, requested: &RequestedBucket) -> Refused {
    let endpoint = &requested.endpoint;
    let (code, remedy) = if error.contains("AWS_IO_DNS_") {
        (Code::UnknownHost, "correct the endpoint, or the cluster's DNS")
    } else if error.contains("AWS_IO_TLS_") {
        (Code::UntrustedCertificate, "give its authority's certificate to the driver (tls.caCertConfigMap)")
    } else if error.contains("AWS_IO_SOCKET_") {
        (Code::EndpointUnreachable, "is it running, and does the network allow it?")
    } else {
        (Code::Failed, "see the log of the Mountpoint Pod")
    };
    Refused::new(code, format!("the first request to {endpoint} failed ({error}): {remedy}"))
}

pub(crate) fn of_client(error: &ClientError, requested: &RequestedBucket) -> Refused {
    let code = match error {
        ClientError::Keys(KeysError::Exchange(error)) => match error {
            ExchangeError::Token(_) => Code::NoCredentials,
            ExchangeError::Unreachable { .. } => Code::EndpointUnreachable,
            ExchangeError::Refused { .. } if error.is_expired_token() => Code::ExpiredCredentials,
            ExchangeError::Refused { .. } => Code::AccessDenied,
            ExchangeError::NoKeys { .. } | ExchangeError::Authorities { .. } => Code::Failed,
        },
        ClientError::Keys(KeysError::Read { .. } | KeysError::Missing { .. } | KeysError::Unusable) => {
            Code::NoCredentials
        }
        ClientError::New(_) => Code::BadOption,
    };
    // The library's message does not contain the cause.
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let text = error.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = error.source();
    }
    Refused::new(code, format!("bucket `{}` at {}: {message}", requested.bucket, requested.endpoint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mountpoint_s3_client::error_metadata::ClientErrorMetadata;

    fn requested() -> RequestedBucket {
        RequestedBucket {
            bucket: "b".into(),
            endpoint: "http://s3.test".into(),
            region: "r".into(),
            identity: "role reader".into(),
        }
    }

    fn forbidden(code: &str) -> Refused {
        let metadata =
            ClientErrorMetadata { http_code: Some(403), error_code: Some(code.into()), error_message: None };
        of_listing(
            &ObjectClientError::ClientError(S3RequestError::Forbidden("no".into(), metadata)),
            &requested(),
        )
    }

    #[test]
    fn every_s3_error_has_its_code() {
        for (s3, code) in [
            ("SignatureDoesNotMatch", Code::WrongSecret),
            ("InvalidAccessKeyId", Code::UnknownKey),
            ("ExpiredToken", Code::ExpiredCredentials),
            ("AccessDenied", Code::AccessDenied),
            ("SomethingNew", Code::AccessDenied),
            ("AuthorizationHeaderMalformed", Code::WrongRegion),
        ] {
            assert_eq!(forbidden(s3).code, code, "{s3}");
        }
        let message = forbidden("AccessDenied").message;
        assert!(message.contains("bucket `b`") && message.contains("allow role reader"), "{message}");
        let none = ObjectClientError::ClientError(S3RequestError::NoSigningCredentials);
        assert_eq!(of_listing(&none, &requested()).code, Code::NoCredentials);
    }

    #[test]
    fn a_failed_connection_is_reported_by_its_step() {
        let code = |error: &str| unconnected(error, &requested()).code;
        assert_eq!(code("aws-c-io: AWS_IO_DNS_QUERY_FAILED, …"), Code::UnknownHost);
        assert_eq!(code("aws-c-io: AWS_IO_TLS_ERROR_NEGOTIATION_FAILURE, …"), Code::UntrustedCertificate);
        assert_eq!(code("aws-c-io: AWS_IO_SOCKET_CONNECTION_REFUSED, …"), Code::EndpointUnreachable);
        assert_eq!(code("aws-c-s3: AWS_ERROR_S3_INTERNAL_ERROR, …"), Code::Failed);
    }
}
