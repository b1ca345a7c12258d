//! The attributes of a volume by name, and what can be wrong with them.

use thiserror::Error;

use crate::authentication::AuthenticationError;
use crate::options::OptionError;
use crate::quantity::Quantity;
use crate::s3::REGIONS;

/// Keys of `spec.csi.volumeAttributes`.
pub mod attribute {
    pub const BUCKET_NAME: &str = "bucketName";
    pub const AUTHENTICATION_SOURCE: &str = "authenticationSource";
    pub const STS_REGION: &str = "stsRegion";
    pub const SERVICE_ACCOUNT: &str = "mountpointPodServiceAccountName";
    pub const REQUESTS_CPU: &str = "mountpointContainerResourcesRequestsCpu";
    pub const REQUESTS_MEMORY: &str = "mountpointContainerResourcesRequestsMemory";
    pub const LIMITS_CPU: &str = "mountpointContainerResourcesLimitsCpu";
    pub const LIMITS_MEMORY: &str = "mountpointContainerResourcesLimitsMemory";
    pub const CACHE: &str = "cache";
    pub const CACHE_SIZE_LIMIT: &str = "cacheEmptyDirSizeLimit";
    pub const CACHE_MEDIUM: &str = "cacheEmptyDirMedium";
    pub const CACHE_STORAGE_CLASS: &str = "cacheEphemeralStorageClassName";
    pub const CACHE_STORAGE_REQUEST: &str = "cacheEphemeralStorageResourceRequest";
    /// Environment variables of the mount process: followed by the name of the variable.
    pub const ENVIRONMENT: &str = "mountpointEnv.";
    pub const HTTPS_PROXY: &str = "mountpointEnv.HTTPS_PROXY";
    pub const NO_PROXY: &str = "mountpointEnv.NO_PROXY";
    pub const ALL: &[&str] = &[
        BUCKET_NAME,
        AUTHENTICATION_SOURCE,
        STS_REGION,
        SERVICE_ACCOUNT,
        REQUESTS_CPU,
        REQUESTS_MEMORY,
        LIMITS_CPU,
        LIMITS_MEMORY,
        CACHE,
        CACHE_SIZE_LIMIT,
        CACHE_MEDIUM,
        CACHE_STORAGE_CLASS,
        CACHE_STORAGE_REQUEST,
        HTTPS_PROXY,
        NO_PROXY,
    ];
}

/// Each names the attribute, its value and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VolumeError {
    #[error("volume attribute `bucketName` is missing: set it to the name of the bucket to mount")]
    BucketMissing,
    #[error(
        "invalid `bucketName` \"{0}\": bucket names have 3 to 255 letters, digits, dots, dashes or underscores"
    )]
    InvalidBucketName(String),
    #[error(
        "invalid `bucketName` \"{0}\": of ARNs, only those of access points can be mounted, such as \
         `arn:aws:s3:eu-west-1:111122223333:accesspoint/NAME`; for a bucket, write its name"
    )]
    NotAnAccessPoint(String),
    #[error(
        "invalid `bucketName` \"{0}\": buckets on S3 on Outposts cannot be mounted; use a bucket in a region"
    )]
    Outposts(String),
    #[error("invalid `stsRegion` \"{0}\": {REGIONS}")]
    StsRegion(String),
    #[error(transparent)]
    Authentication(#[from] AuthenticationError),
    #[error("failed to parse quantity \"{value}\" for \"{field}\": write it like `100m`, `512Mi` or `2Gi`")]
    Quantity { field: &'static str, value: String },
    #[error("invalid `cache` \"{0}\": set `emptyDir` or `ephemeral`, or remove it")]
    CacheUnknown(String),
    #[error(
        "the mount option `cache` and the volume attribute `cache` are both set; remove the mount option"
    )]
    CacheTwice,
    #[error("volume attribute `{0}` has no effect without `cache: {1}`: add `cache: {1}`, or remove `{0}`")]
    CacheUnused(&'static str, &'static str),
    #[error("invalid `cacheEmptyDirMedium` \"{0}\": set `Memory`, or remove it")]
    CacheMedium(String),
    #[error("volume attribute `{0}` is missing: `cache: ephemeral` needs it")]
    CacheIncomplete(&'static str),
    #[error("mount option `max-cache-size` \"{0}\" exceeds `cacheEmptyDirSizeLimit` ({1} MiB): lower it")]
    CacheTooLarge(String, u128),
    #[error(transparent)]
    Option(#[from] OptionError),
    #[error("volume attribute `mountpointEnv.{0}` is not supported: only HTTPS_PROXY and NO_PROXY are")]
    Environment(String),
}

pub(super) fn parse_quantity(field: &'static str, value: &str) -> Result<Quantity, VolumeError> {
    Quantity::parse(value).ok_or_else(|| VolumeError::Quantity { field, value: value.to_owned() })
}
