//! What a `PersistentVolume` asks for: its attributes, checked once, as types.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::arguments::Arguments;
pub use crate::authentication::AuthenticationSource;
use crate::authentication::{AuthenticationError, SecretRef};
use crate::options::{self, OptionError};
use crate::quantity::Quantity;

/// Keys of `spec.csi.volumeAttributes`.
pub mod attribute {
    pub const BUCKET_NAME: &str = "bucketName";
    pub const AUTHENTICATION_SOURCE: &str = "authenticationSource";
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
    /// Variables of the mount process: this with the variable's name behind it.
    pub const ENVIRONMENT: &str = "mountpointEnv.";
}

/// Of a cache with a limit, this much is used: the file system needs the rest, and kubelet evicts a pod that is over it.
const CACHE_SHARE_PERCENT: u128 = 95;

/// Variables that a volume may set.
const ENVIRONMENT: &[&str] = &["HTTPS_PROXY", "NO_PROXY"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub bucket: String,
    pub authentication: AuthenticationSource,
    /// Of the Mountpoint Pod; must exist in its namespace.
    pub service_account: Option<String>,
    pub resources: Resources,
    pub cache: Cache,
    pub environment: BTreeMap<String, String>,
}

/// Of the container that serves the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub requests_cpu: Option<Quantity>,
    pub requests_memory: Option<Quantity>,
    pub limits_cpu: Option<Quantity>,
    pub limits_memory: Option<Quantity>,
}

/// Where object data is cached on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    #[default]
    None,
    EmptyDir {
        size_limit: Option<Quantity>,
        in_memory: bool,
    },
    Ephemeral {
        storage_class: String,
        request: Quantity,
    },
}

/// Each names the attribute, what it says, and what it may say.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VolumeError {
    #[error("volume attribute `bucketName` is missing: set it to the name of the bucket to mount")]
    BucketMissing,
    #[error(
        "invalid `bucketName` \"{0}\": bucket names have 3 to 255 letters, digits, dots, dashes or underscores"
    )]
    BucketImpossible(String),
    #[error(transparent)]
    Authentication(#[from] AuthenticationError),
    #[error("failed to parse quantity \"{value}\" for \"{field}\": write it like `100m`, `512Mi` or `2Gi`")]
    Quantity { field: &'static str, value: String },
    #[error("volume attribute `cache` is `{0}`; it may be `emptyDir` or `ephemeral`")]
    CacheUnknown(String),
    #[error(
        "the mount option `cache` and the volume attribute `cache` are both set; remove the mount option"
    )]
    CacheTwice,
    #[error("volume attribute `{0}` has an effect only with `cache: {1}`")]
    CacheUnused(&'static str, &'static str),
    #[error("volume attribute `cacheEmptyDirMedium` is `{0}`; it may be `Memory` or absent")]
    CacheMedium(String),
    #[error("volume attribute `{0}` is missing; `cache: ephemeral` needs it")]
    CacheIncomplete(&'static str),
    #[error(transparent)]
    Option(#[from] OptionError),
    #[error("volume attribute `mountpointEnv.{0}` is not supported; only HTTPS_PROXY and NO_PROXY are")]
    Environment(String),
}

impl Volume {
    /// `arguments` are the volume's mount options, without those that a volume may not set.
    pub fn parse(
        attributes: &BTreeMap<String, String>,
        secret: SecretRef,
        arguments: &Arguments,
    ) -> Result<Self, VolumeError> {
        let get = |key: &str| attributes.get(key).map(String::as_str).filter(|value| !value.is_empty());
        let bucket = get(attribute::BUCKET_NAME).ok_or(VolumeError::BucketMissing)?;
        if !is_bucket_name(bucket) {
            return Err(VolumeError::BucketImpossible(bucket.to_owned()));
        }
        let source = get(attribute::AUTHENTICATION_SOURCE).unwrap_or_default();
        let authentication = AuthenticationSource::asked(source, secret)?;
        let cache = parse_cache(get, arguments)?;
        options::check(arguments, cache != Cache::None)?;
        let quantity = |field: &'static str| get(field).map(|value| parse_quantity(field, value)).transpose();
        Ok(Self {
            bucket: bucket.to_owned(),
            authentication,
            service_account: get(attribute::SERVICE_ACCOUNT).map(str::to_owned),
            resources: Resources {
                requests_cpu: quantity(attribute::REQUESTS_CPU)?,
                requests_memory: quantity(attribute::REQUESTS_MEMORY)?,
                limits_cpu: quantity(attribute::LIMITS_CPU)?,
                limits_memory: quantity(attribute::LIMITS_MEMORY)?,
            },
            cache,
            environment: parse_environment(attributes)?,
        })
    }
}

/// What the mount process takes for one. Servers may allow less, and say so.
fn is_bucket_name(text: &str) -> bool {
    let is_arn = text.starts_with("arn:");
    (3..=255).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c) || (is_arn && c == ':'))
}

fn parse_quantity(field: &'static str, value: &str) -> Result<Quantity, VolumeError> {
    Quantity::parse(value).ok_or_else(|| VolumeError::Quantity { field, value: value.to_owned() })
}

fn parse_cache<'a>(
    get: impl Fn(&str) -> Option<&'a str>,
    arguments: &Arguments,
) -> Result<Cache, VolumeError> {
    let kind = get(attribute::CACHE);
    if kind.is_some() && arguments.has("cache") {
        return Err(VolumeError::CacheTwice);
    }
    for (field, needs) in [
        (attribute::CACHE_SIZE_LIMIT, "emptyDir"),
        (attribute::CACHE_MEDIUM, "emptyDir"),
        (attribute::CACHE_STORAGE_CLASS, "ephemeral"),
        (attribute::CACHE_STORAGE_REQUEST, "ephemeral"),
    ] {
        // An attribute that has no effect is a mistake that its author wants to hear of.
        if get(field).is_some() && kind != Some(needs) {
            return Err(VolumeError::CacheUnused(field, needs));
        }
    }
    match kind {
        None if arguments.has("cache") => {
            Ok(Cache::EmptyDir { size_limit: limit_of_option(arguments), in_memory: false })
        }
        None => Ok(Cache::None),
        Some("emptyDir") => {
            let field = attribute::CACHE_SIZE_LIMIT;
            let size_limit = get(field).map(|value| parse_quantity(field, value)).transpose()?;
            let size_limit = size_limit.or_else(|| limit_of_option(arguments));
            let in_memory = match get(attribute::CACHE_MEDIUM) {
                None => false,
                Some("Memory") => true,
                Some(other) => return Err(VolumeError::CacheMedium(other.to_owned())),
            };
            Ok(Cache::EmptyDir { size_limit, in_memory })
        }
        Some("ephemeral") => {
            let need = |field: &'static str| get(field).ok_or(VolumeError::CacheIncomplete(field));
            let storage_class = need(attribute::CACHE_STORAGE_CLASS)?.to_owned();
            let field = attribute::CACHE_STORAGE_REQUEST;
            Ok(Cache::Ephemeral { storage_class, request: parse_quantity(field, need(field)?)? })
        }
        Some(other) => Err(VolumeError::CacheUnknown(other.to_owned())),
    }
}

/// How many MiB of a cache on disk with this limit are used.
pub fn cache_share(limit: &Quantity) -> u128 {
    limit.units() * CACHE_SHARE_PERCENT / 100 / (1024 * 1024)
}

/// A cache that is told how much of its folder to use needs a folder of that size and no more.
fn limit_of_option(arguments: &Arguments) -> Option<Quantity> {
    let used: u128 = arguments.value("max-cache-size")?.parse().ok()?;
    // A limit of 0 would be none.
    Some(Quantity::mebibytes(used.saturating_mul(100).div_ceil(CACHE_SHARE_PERCENT).max(1)))
}

fn parse_environment(attributes: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, VolumeError> {
    let given =
        attributes.iter().filter_map(|(key, value)| Some((key.strip_prefix(attribute::ENVIRONMENT)?, value)));
    given
        .map(|(name, value)| {
            let allowed = ENVIRONMENT.contains(&name);
            allowed
                .then(|| (name.to_owned(), value.clone()))
                .ok_or_else(|| VolumeError::Environment(name.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(attributes: &[(&str, &str)], options: &[&str]) -> Result<Volume, VolumeError> {
        let mut all = BTreeMap::from([("bucketName".to_owned(), "bucket".to_owned())]);
        all.extend(attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        Volume::parse(&all, SecretRef::Absent, &Arguments::parse(options))
    }

    #[test]
    fn a_bucket_is_enough() {
        let volume = parse(&[("dynamicProvisioning", "true"), ("authenticationSource", "")], &[]).unwrap();
        assert_eq!(
            (volume.bucket.as_str(), volume.authentication, volume.cache),
            ("bucket", AuthenticationSource::Driver, Cache::None)
        );
        assert_eq!(parse(&[("bucketName", "")], &[]), Err(VolumeError::BucketMissing));
    }

    #[test]
    fn buckets_have_names_that_buckets_can_have() {
        let long = "b".repeat(256);
        for impossible in ["a/b", "bu", "my bucket", "my-bucket\n", "s3://bucket", "bücket", &long] {
            let refused = parse(&[("bucketName", impossible)], &[]);
            assert_eq!(refused, Err(VolumeError::BucketImpossible(impossible.into())));
        }
        for possible in ["My_Bucket", "a.b-c", "123", "arn:aws:s3:::bucket"] {
            assert_eq!(parse(&[("bucketName", possible)], &[]).unwrap().bucket, possible);
        }
    }

    #[test]
    fn options_are_checked_with_the_cache_in_mind() {
        let cached = [("cache", "emptyDir")];
        assert!(parse(&cached, &["max-cache-size=5"]).is_ok());
        assert!(matches!(parse(&[], &["max-cache-size=5"]), Err(VolumeError::Option(_))));
        assert!(matches!(parse(&[], &["uid=abc"]), Err(VolumeError::Option(_))));
    }

    #[test]
    fn resources_are_quantities() {
        let volume = parse(&[("mountpointContainerResourcesLimitsMemory", "1Gi")], &[]).unwrap();
        assert_eq!(volume.resources.limits_memory.unwrap().units(), 1 << 30);
        let error =
            parse(&[("mountpointContainerResourcesRequestsCpu", "much")], &[]).unwrap_err().to_string();
        let expected = "failed to parse quantity \"much\" for \"mountpointContainerResourcesRequestsCpu\": ";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn caches_are_complete_and_given_once() {
        let empty_dir = |size_limit: Option<&str>, in_memory| {
            Ok(Cache::EmptyDir { size_limit: size_limit.and_then(Quantity::parse), in_memory })
        };
        let cache = |attributes: &[(&str, &str)], options: &[&str]| {
            parse(attributes, options).map(|volume| volume.cache)
        };
        assert_eq!(cache(&[], &["cache /tmp/x"]), empty_dir(None, false));
        assert_eq!(cache(&[("cache", "emptyDir")], &[]), empty_dir(None, false));
        assert_eq!(
            cache(&[("cache", "emptyDir")], &["max-cache-size 950"]),
            empty_dir(Some("1000Mi"), false)
        );
        assert_eq!(cache(&[], &["cache /tmp/x", "max-cache-size 0"]), empty_dir(Some("1Mi"), false));
        let memory =
            [("cache", "emptyDir"), ("cacheEmptyDirSizeLimit", "1Gi"), ("cacheEmptyDirMedium", "Memory")];
        assert_eq!(cache(&memory, &[]), empty_dir(Some("1Gi"), true));
        let ephemeral = [
            ("cache", "ephemeral"),
            ("cacheEphemeralStorageClassName", "fast"),
            ("cacheEphemeralStorageResourceRequest", "10Gi"),
        ];
        let request = Quantity::parse("10Gi").unwrap();
        assert_eq!(cache(&ephemeral, &[]), Ok(Cache::Ephemeral { storage_class: "fast".into(), request }));

        assert_eq!(cache(&[("cache", "emptyDir")], &["--cache=/x"]), Err(VolumeError::CacheTwice));
        assert_eq!(cache(&[("cache", "disk")], &[]), Err(VolumeError::CacheUnknown("disk".into())));
        assert_eq!(
            cache(&[("cache", "emptyDir"), ("cacheEmptyDirMedium", "HugePages")], &[]),
            Err(VolumeError::CacheMedium("HugePages".into()))
        );
        assert_eq!(
            cache(&ephemeral[..2], &[]),
            Err(VolumeError::CacheIncomplete("cacheEphemeralStorageResourceRequest"))
        );
        assert_eq!(
            cache(&[("cacheEmptyDirSizeLimit", "1Gi")], &[]),
            Err(VolumeError::CacheUnused("cacheEmptyDirSizeLimit", "emptyDir"))
        );
        assert!(cache(&[("cache", "emptyDir"), ("cacheEmptyDirSizeLimit", "big")], &[]).is_err());
    }

    #[test]
    fn only_proxies_may_be_set() {
        let volume = parse(&[("mountpointEnv.NO_PROXY", "s3.test")], &[]).unwrap();
        assert_eq!(volume.environment, BTreeMap::from([("NO_PROXY".into(), "s3.test".into())]));
        assert_eq!(
            parse(&[("mountpointEnv.LD_PRELOAD", "x")], &[]),
            Err(VolumeError::Environment("LD_PRELOAD".into()))
        );
    }
}
