//! What a `PersistentVolume` asks for: its attributes, checked once, as types.

mod attributes;
mod cache;

use std::collections::BTreeMap;

use crate::arguments::Arguments;
pub use crate::authentication::AuthenticationSource;
use crate::authentication::SecretRef;
use crate::options;
use crate::quantity::Quantity;
use attributes::parse_quantity;
pub use attributes::{VolumeError, attribute};
use cache::parse_cache;
pub(crate) use cache::place_cache;
pub use cache::{Cache, cache_share};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub bucket: String,
    pub authentication: AuthenticationSource,
    /// Of the Mountpoint Pod; must exist in its namespace.
    pub service_account: Option<String>,
    pub resources: Resources,
    pub cache: Cache,
}

/// Of the container that serves the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub requests_cpu: Option<Quantity>,
    pub requests_memory: Option<Quantity>,
    pub limits_cpu: Option<Quantity>,
    pub limits_memory: Option<Quantity>,
}

impl Volume {
    /// `arguments` are the volume's mount options, without those that a volume may not set.
    pub(crate) fn parse(
        attributes: &BTreeMap<String, String>,
        secret: SecretRef,
        arguments: &Arguments,
    ) -> Result<Self, VolumeError> {
        let get = |key: &str| attributes.get(key).map(String::as_str).filter(|value| !value.is_empty());
        let bucket = get(attribute::BUCKET_NAME).ok_or(VolumeError::BucketMissing)?;
        if !is_bucket_name(bucket) {
            return Err(VolumeError::InvalidBucketName(bucket.to_owned()));
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
        })
    }
}

/// What the mount process takes for one. Servers may allow less, and say so.
fn is_bucket_name(text: &str) -> bool {
    let is_arn = text.starts_with("arn:");
    (3..=255).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c) || (is_arn && c == ':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn parse(attributes: &[(&str, &str)], options: &[&str]) -> Result<Volume, VolumeError> {
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
            assert_eq!(refused, Err(VolumeError::InvalidBucketName(impossible.into())));
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
}
