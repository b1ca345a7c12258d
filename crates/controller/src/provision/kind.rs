//! What can go wrong with a request to the S3 server.

use tonic::Code;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    WrongSecret,
    UnknownKey,
    Expired,
    Clock,
    WrongRegion,
    Denied,
    /// The bucket belongs to another account.
    Taken,
    /// The bucket is there, and ours.
    Owned,
    BadName,
    Full,
    Missing,
    NotEmpty,
    /// Uploads of several parts keep the bucket.
    Uploading,
    Busy,
    Broken,
    Refused,
    /// An answer, but not one that S3 gives.
    Garbled,
    Unreachable,
    Untrusted,
    Late,
    Cut,
}

impl Kind {
    pub(super) fn of(status: u16, code: &str) -> Self {
        match code {
            "SignatureDoesNotMatch" => Self::WrongSecret,
            "InvalidAccessKeyId" => Self::UnknownKey,
            "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" => Self::Expired,
            "RequestTimeTooSkewed" | "RequestExpired" => Self::Clock,
            "AuthorizationHeaderMalformed"
            | "AuthorizationQueryParametersError"
            | "IllegalLocationConstraintException"
            | "InvalidLocationConstraint"
            | "InvalidRegionName"
            | "PermanentRedirect" => Self::WrongRegion,
            "BucketAlreadyExists" => Self::Taken,
            "BucketAlreadyOwnedByYou" => Self::Owned,
            "InvalidBucketName" => Self::BadName,
            "TooManyBuckets" | "QuotaExceeded" | "XMinioAdminBucketQuotaExceeded" => Self::Full,
            "NoSuchBucket" => Self::Missing,
            "BucketNotEmpty" => Self::NotEmpty,
            "MPUinProgress" => Self::Uploading,
            "SlowDown" | "Throttling" | "ServiceUnavailable" | "OperationAborted" | "RequestTimeout" => {
                Self::Busy
            }
            _ => match status {
                401 | 403 => Self::Denied,
                429 | 503 => Self::Busy,
                500.. => Self::Broken,
                // A redirect is to where the bucket's region is.
                300..=399 => Self::WrongRegion,
                _ => Self::Refused,
            },
        }
    }

    /// Of one object among many, for which there is no status.
    pub(super) fn of_object(code: &str) -> Self {
        let status = match code {
            "AccessDenied" => 403,
            "InternalError" => 500,
            _ => 400,
        };
        Self::of(status, code)
    }

    /// Whether the request may have had its effect all the same.
    pub(super) fn is_ambiguous(self) -> bool {
        match self {
            Self::Busy | Self::Broken | Self::Garbled | Self::Late | Self::Cut => true,
            Self::WrongSecret
            | Self::UnknownKey
            | Self::Expired
            | Self::Clock
            | Self::WrongRegion
            | Self::Denied
            | Self::Taken
            | Self::Owned
            | Self::BadName
            | Self::Full
            | Self::Missing
            | Self::NotEmpty
            | Self::Uploading
            | Self::Refused
            | Self::Unreachable
            | Self::Untrusted => false,
        }
    }

    /// What a caller of the CSI service is told to do about it.
    pub(super) fn code(self) -> Code {
        match self {
            Self::WrongSecret | Self::UnknownKey | Self::Expired => Code::Unauthenticated,
            Self::Denied => Code::PermissionDenied,
            Self::Taken | Self::Owned => Code::AlreadyExists,
            Self::WrongRegion | Self::BadName => Code::InvalidArgument,
            Self::Full => Code::ResourceExhausted,
            Self::Clock
            | Self::Missing
            | Self::NotEmpty
            | Self::Uploading
            | Self::Refused
            | Self::Garbled
            | Self::Untrusted => Code::FailedPrecondition,
            Self::Busy | Self::Broken | Self::Unreachable | Self::Cut => Code::Unavailable,
            Self::Late => Code::DeadlineExceeded,
        }
    }
}
