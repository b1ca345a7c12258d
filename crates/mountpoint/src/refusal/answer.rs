//! What was asked of the server, and what its answer means, with its own words.

use contract::s3::S3Failure;
use mounter::handover::{Code, Refused};
use mountpoint_s3_client::S3RequestError;
use mountpoint_s3_client::error_metadata::{ClientErrorMetadata, ProvideErrorMetadata as _};

/// The requested bucket, as far as messages need it.
#[derive(Clone, Debug)]
pub(crate) struct RequestedBucket {
    pub(crate) bucket: String,
    pub(crate) endpoint: String,
    pub(crate) region: String,
    /// Whose keys the requests are signed with.
    pub(crate) identity: String,
    /// Through which requests go; without its password.
    pub(crate) proxy: Option<String>,
}

impl RequestedBucket {
    /// The endpoint, and the way to it.
    pub(crate) fn server(&self) -> String {
        let Self { endpoint, proxy, .. } = self;
        proxy
            .as_ref()
            .map_or_else(|| endpoint.clone(), |proxy| format!("{endpoint} through the proxy {proxy}"))
    }
}

/// The most bytes that are quoted of an answer. They become part of an Event, which must have room for the remedy.
pub(super) const LONGEST_ANSWER: usize = 512;

pub(super) fn no_such_bucket(
    words: &str,
    RequestedBucket { bucket, endpoint, .. }: &RequestedBucket,
) -> Refused {
    let message =
        format!("there is no bucket `{bucket}` at {endpoint} ({words}): create it, or correct `bucketName`");
    Refused::new(Code::NoSuchBucket, message)
}

/// The server's own code and message. Nothing else of its answer: that can repeat the session token.
pub(super) fn words_of(answer: &ClientErrorMetadata) -> String {
    let status = || answer.http_code.map(|status| format!("HTTP {status}"));
    let code = answer.error_code.clone().or_else(status).unwrap_or_default();
    let mut words = match &answer.error_message {
        Some(message) if *message != code => format!("{code}: {message}"),
        _ => code,
    };
    words.truncate(words.floor_char_boundary(LONGEST_ANSWER));
    words
}

pub(super) fn answered(error: &S3RequestError, requested: &RequestedBucket) -> Refused {
    let RequestedBucket { bucket, endpoint, .. } = requested;
    let answer = error.meta();
    let Some(status) = answer.http_code.and_then(|status| u16::try_from(status).ok()) else {
        let message = format!("the first listing of bucket `{bucket}` at {endpoint} failed: {error}");
        return Refused::new(Code::Failed, message);
    };
    let failure = S3Failure::of(Some(status), answer.error_code.as_deref().unwrap_or_default());
    of_failure(failure, &words_of(&answer), requested)
}

fn of_failure(failure: S3Failure, words: &str, requested: &RequestedBucket) -> Refused {
    let RequestedBucket { bucket, endpoint, region, identity, .. } = requested;
    let (code, message) = match failure {
        S3Failure::WrongSecretKey => (
            Code::WrongSecret,
            format!(
                "{endpoint} says that the secret key does not belong to the access key ({words}): correct the secret key"
            ),
        ),
        S3Failure::UnknownAccessKey => (
            Code::UnknownKey,
            format!("{endpoint} does not know the access key ({words}): correct it, or create it there"),
        ),
        S3Failure::InvalidToken => (
            Code::ExpiredCredentials,
            format!("the session token is no longer valid at {endpoint} ({words}): renew the credentials"),
        ),
        S3Failure::ClockSkew => (
            Code::AccessDenied,
            format!("this node's clock differs too much from that of {endpoint} ({words}): set the clock"),
        ),
        S3Failure::WrongRegion => (
            Code::WrongRegion,
            format!("{endpoint} does not accept region `{region}` ({words}): correct the region"),
        ),
        S3Failure::InvalidBucketName => (
            Code::BadBucket,
            format!(
                "invalid `bucketName` \"{bucket}\": {endpoint} rejects it ({words}); bucket names have 3 to 63 \
                 lower-case letters, digits, dots or dashes"
            ),
        ),
        S3Failure::NoSuchBucket => return no_such_bucket(words, requested),
        S3Failure::AccessDenied => (
            Code::AccessDenied,
            format!("{endpoint} denies access to bucket `{bucket}` ({words}): allow {identity} to list it"),
        ),
        S3Failure::Throttled | S3Failure::ServerError => (
            Code::ServerError,
            format!(
                "{endpoint} cannot list bucket `{bucket}` at the moment ({words}): see its logs; the kubelet will retry"
            ),
        ),
        S3Failure::OwnedByOther
        | S3Failure::AlreadyOwned
        | S3Failure::BucketLimitExceeded
        | S3Failure::BucketNotEmpty
        | S3Failure::UploadsInProgress
        | S3Failure::Rejected => (
            Code::Rejected,
            format!(
                "{endpoint} refuses to list bucket `{bucket}` ({words}): correct the volume accordingly, and check that it is \
                 an S3 server"
            ),
        ),
    };
    Refused::new(code, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::tests::requested;

    /// Which the node reports as a mistake of the driver.
    #[test]
    fn no_answer_of_a_server_is_a_failure_of_the_driver() {
        for failure in [
            S3Failure::WrongSecretKey,
            S3Failure::UnknownAccessKey,
            S3Failure::InvalidToken,
            S3Failure::ClockSkew,
            S3Failure::WrongRegion,
            S3Failure::AccessDenied,
            S3Failure::OwnedByOther,
            S3Failure::AlreadyOwned,
            S3Failure::InvalidBucketName,
            S3Failure::BucketLimitExceeded,
            S3Failure::NoSuchBucket,
            S3Failure::BucketNotEmpty,
            S3Failure::UploadsInProgress,
            S3Failure::Throttled,
            S3Failure::ServerError,
            S3Failure::Rejected,
        ] {
            let refused = of_failure(failure, "Code: words", &requested());
            assert_ne!(refused.code, Code::Failed, "{failure:?}");
            assert!(refused.message.contains("Code: words"), "{failure:?}: {refused}");
        }
    }
}
