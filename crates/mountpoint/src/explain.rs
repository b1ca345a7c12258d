//! Why a bucket cannot be served, as a stable code and a sentence that names the remedy. The only place that knows what
//! servers and the client's core say.

use mounter::reply::{Code, Refused};
use mountpoint_s3_client::S3RequestError;
use mountpoint_s3_client::error::{ListObjectsError, ObjectClientError};
use mountpoint_s3_client::error_metadata::ProvideErrorMetadata as _;

use crate::client::ClientError;
use crate::credentials::KeysError;

/// What was asked for, as far as sentences need it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) bucket: String,
    pub(crate) endpoint: String,
    pub(crate) region: String,
}

type ListError = ObjectClientError<ListObjectsError, S3RequestError>;

/// The answer to the first listing.
pub(crate) fn listing(error: &ListError, target: &Target) -> Refused {
    let Target { bucket, endpoint, region } = target;
    let refused = Refused::new;
    match error {
        ObjectClientError::ServiceError(ListObjectsError::NoSuchBucket) => refused(
            Code::NoSuchBucket,
            format!("there is no bucket `{bucket}` at {endpoint}: create it, or correct bucketName"),
        ),
        ObjectClientError::ClientError(S3RequestError::IncorrectRegion(right, _)) => refused(
            Code::WrongRegion,
            format!("bucket `{bucket}` is in region `{right}`, not `{region}`: correct the region"),
        ),
        ObjectClientError::ClientError(S3RequestError::NoSigningCredentials) => refused(
            Code::NoCredentials,
            format!("there are no credentials for bucket `{bucket}`: provide them, or use no-sign-request"),
        ),
        ObjectClientError::ClientError(S3RequestError::CrtError(error)) => {
            unconnected(&error.to_string(), target)
        }
        ObjectClientError::ClientError(error) => answered(error, target),
        // A kind of answer that this version of the library does not have.
        ObjectClientError::ServiceError(error) => refused(Code::Failed, error.to_string()),
    }
}

/// By S3's error code.
fn answered(error: &S3RequestError, target: &Target) -> Refused {
    let Target { bucket, endpoint, region } = target;
    let meta = error.meta();
    let s3_code = meta.error_code.unwrap_or_default();
    let said = meta.error_message.unwrap_or_else(|| error.to_string());
    let (code, message) = match s3_code.as_str() {
        "SignatureDoesNotMatch" => (
            Code::WrongSecret,
            format!(
                "{endpoint} says that the secret key does not belong to the access key: correct the secret key"
            ),
        ),
        "InvalidAccessKeyId" => (
            Code::UnknownKey,
            format!("{endpoint} does not know the access key: correct it, or create it there"),
        ),
        "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" => (
            Code::ExpiredCredentials,
            format!("the session token is no longer valid at {endpoint} ({s3_code}): renew the credentials"),
        ),
        "RequestTimeTooSkewed" => (
            Code::AccessDenied,
            format!("this node's clock differs too much from that of {endpoint}: set the clock"),
        ),
        "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException" => (
            Code::WrongRegion,
            format!("{endpoint} does not accept region `{region}` ({said}): correct the region"),
        ),
        "InvalidBucketName" => (
            Code::BadBucket,
            format!(
                "invalid `bucketName` \"{bucket}\": {endpoint} does not take it ({said}); bucket names have 3 to 63 \
                 lower-case letters, digits, dots or dashes"
            ),
        ),
        "NoSuchBucket" => return listing(&ListError::ServiceError(ListObjectsError::NoSuchBucket), target),
        _ if meta.http_code == Some(403) => (
            Code::AccessDenied,
            format!(
                "{endpoint} denies access to bucket `{bucket}` ({s3_code}: {said}): allow these credentials to list it"
            ),
        ),
        _ => (
            Code::Failed,
            format!("the first listing of bucket `{bucket}` at {endpoint} failed ({s3_code}): {said}"),
        ),
    };
    Refused::new(code, message)
}

/// What the client's core could not recover from, which it tells by names of its own.
fn unconnected(error: &str, target: &Target) -> Refused {
    let endpoint = &target.endpoint;
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

pub(crate) fn client(error: &ClientError, target: &Target) -> Refused {
    let code = match error {
        ClientError::Keys(KeysError::Read { .. } | KeysError::Missing { .. } | KeysError::Unusable) => {
            Code::NoCredentials
        }
        ClientError::New(_) => Code::BadOption,
    };
    // The library keeps the cause out of its own sentence.
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let text = error.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = error.source();
    }
    Refused::new(code, format!("bucket `{}` at {}: {message}", target.bucket, target.endpoint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mountpoint_s3_client::error_metadata::ClientErrorMetadata;

    fn target() -> Target {
        Target { bucket: "b".into(), endpoint: "http://s3.test".into(), region: "r".into() }
    }

    fn forbidden(code: &str) -> Refused {
        let metadata =
            ClientErrorMetadata { http_code: Some(403), error_code: Some(code.into()), error_message: None };
        listing(&ObjectClientError::ClientError(S3RequestError::Forbidden("no".into(), metadata)), &target())
    }

    #[test]
    fn every_refusal_has_its_code() {
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
        assert!(forbidden("AccessDenied").message.contains("bucket `b`"));
        let none = ObjectClientError::ClientError(S3RequestError::NoSigningCredentials);
        assert_eq!(listing(&none, &target()).code, Code::NoCredentials);
    }

    #[test]
    fn a_failed_connection_is_told_apart_by_its_step() {
        let code = |error: &str| unconnected(error, &target()).code;
        assert_eq!(code("aws-c-io: AWS_IO_DNS_QUERY_FAILED, …"), Code::UnknownHost);
        assert_eq!(code("aws-c-io: AWS_IO_TLS_ERROR_NEGOTIATION_FAILURE, …"), Code::UntrustedCertificate);
        assert_eq!(code("aws-c-io: AWS_IO_SOCKET_CONNECTION_REFUSED, …"), Code::EndpointUnreachable);
        assert_eq!(code("aws-c-s3: AWS_ERROR_S3_INTERNAL_ERROR, …"), Code::Failed);
    }
}
