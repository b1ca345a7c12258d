//! What an S3 server's error response means.

/// By error code and HTTP status. What to say and to do about it is up to the program that sent the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum S3Failure {
    /// The secret key does not belong to the access key.
    WrongSecretKey,
    UnknownAccessKey,
    InvalidToken,
    ClockSkew,
    WrongRegion,
    AccessDenied,
    /// The bucket belongs to another account.
    OwnedByOther,
    /// The bucket exists and belongs to the caller's account.
    AlreadyOwned,
    InvalidBucketName,
    BucketLimitExceeded,
    NoSuchBucket,
    BucketNotEmpty,
    /// Unfinished multipart uploads keep the bucket from being deleted.
    UploadsInProgress,
    Throttled,
    ServerError,
    /// Any other refusal.
    Rejected,
}

impl S3Failure {
    /// Error codes say more than the status, which is missing for one object among many and for some clients.
    pub fn of(status: Option<u16>, code: &str) -> Self {
        match code {
            "SignatureDoesNotMatch" => Self::WrongSecretKey,
            "InvalidAccessKeyId" => Self::UnknownAccessKey,
            "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" => Self::InvalidToken,
            "RequestTimeTooSkewed" | "RequestExpired" => Self::ClockSkew,
            "AuthorizationHeaderMalformed"
            | "AuthorizationQueryParametersError"
            | "IllegalLocationConstraintException"
            | "InvalidLocationConstraint"
            | "InvalidRegionName"
            | "PermanentRedirect" => Self::WrongRegion,
            "BucketAlreadyExists" => Self::OwnedByOther,
            "BucketAlreadyOwnedByYou" => Self::AlreadyOwned,
            "InvalidBucketName" => Self::InvalidBucketName,
            "TooManyBuckets" | "QuotaExceeded" | "XMinioAdminBucketQuotaExceeded" => {
                Self::BucketLimitExceeded
            }
            "NoSuchBucket" => Self::NoSuchBucket,
            "BucketNotEmpty" => Self::BucketNotEmpty,
            "MPUinProgress" => Self::UploadsInProgress,
            "SlowDown" | "Throttling" | "ServiceUnavailable" | "OperationAborted" | "RequestTimeout" => {
                Self::Throttled
            }
            "AccessDenied" if status.is_none() => Self::AccessDenied,
            "InternalError" if status.is_none() => Self::ServerError,
            _ => match status.unwrap_or_default() {
                401 | 403 => Self::AccessDenied,
                429 | 503 => Self::Throttled,
                500.. => Self::ServerError,
                // A redirect points to the bucket's region.
                300..=399 => Self::WrongRegion,
                _ => Self::Rejected,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_say_more_than_the_status() {
        for (status, code, expected) in [
            (Some(403), "SignatureDoesNotMatch", S3Failure::WrongSecretKey),
            (Some(403), "RequestTimeTooSkewed", S3Failure::ClockSkew),
            (Some(403), "AccessDenied", S3Failure::AccessDenied),
            (Some(403), "SomethingNew", S3Failure::AccessDenied),
            (Some(409), "BucketAlreadyExists", S3Failure::OwnedByOther),
            (Some(404), "NoSuchBucket", S3Failure::NoSuchBucket),
            (Some(503), "", S3Failure::Throttled),
            (Some(500), "InternalError", S3Failure::ServerError),
            (Some(301), "", S3Failure::WrongRegion),
            (Some(400), "", S3Failure::Rejected),
            (None, "AccessDenied", S3Failure::AccessDenied),
            (None, "InternalError", S3Failure::ServerError),
            (None, "SlowDown", S3Failure::Throttled),
            (None, "SomethingNew", S3Failure::Rejected),
        ] {
            assert_eq!(S3Failure::of(status, code), expected, "{status:?} {code}");
        }
    }
}
