//! What a `PersistentVolume` asks for: its attributes, checked once, as types.

mod attributes;
mod cache;

use std::collections::BTreeMap;

use crate::arguments::Arguments;
pub use crate::authentication::AuthenticationSource;
use crate::authentication::SecretPresence;
use crate::options;
use crate::quantity::Quantity;
use crate::s3::is_region;
use attributes::parse_quantity;
pub use attributes::{VolumeError, attribute};
use cache::parse_cache;
pub(crate) use cache::place_cache;
pub use cache::{Cache, cache_share};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub bucket: String,
    pub authentication: AuthenticationSource,
    /// Where STS is asked for the keys of a role.
    pub sts_region: Option<String>,
    /// Service account of the Mountpoint Pod; must exist in its namespace.
    pub service_account: Option<String>,
    pub resources: Resources,
    pub cache: Cache,
}

/// Requests and limits of the container that serves the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub requests_cpu: Option<Quantity>,
    pub requests_memory: Option<Quantity>,
    pub limits_cpu: Option<Quantity>,
    pub limits_memory: Option<Quantity>,
}

const ARN: &str = "arn:";

impl Volume {
    /// The host name of an access point is made of its ARN; it has no path.
    pub fn is_access_point(&self) -> bool {
        self.bucket.starts_with(ARN)
    }

    /// `arguments` are the volume's mount options, without those that a volume may not set.
    pub(crate) fn parse(
        attributes: &BTreeMap<String, String>,
        secret: SecretPresence,
        arguments: &Arguments,
    ) -> Result<Self, VolumeError> {
        let get = |key: &str| attributes.get(key).map(String::as_str).filter(|value| !value.is_empty());
        let bucket = get(attribute::BUCKET_NAME).ok_or(VolumeError::BucketMissing)?;
        check_bucket(bucket)?;
        let source = get(attribute::AUTHENTICATION_SOURCE).unwrap_or_default();
        let authentication = AuthenticationSource::of_volume(source, secret)?;
        let sts_region = get(attribute::STS_REGION);
        if let Some(region) = sts_region.filter(|region| !is_region(region)) {
            return Err(VolumeError::StsRegion(region.to_owned()));
        }
        let cache = parse_cache(get, arguments)?;
        options::check(arguments, cache != Cache::None)?;
        let quantity = |field: &'static str| get(field).map(|value| parse_quantity(field, value)).transpose();
        Ok(Self {
            bucket: bucket.to_owned(),
            authentication,
            sts_region: sts_region.map(str::to_owned),
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

/// The same as [`check_bucket`], for admission policies.
pub const BUCKET_PATTERN: &str = "[A-Za-z0-9._-]{3,255}|arn:[A-Za-z0-9._-]*:(s3|s3-object-lambda):[A-Za-z0-9._-]*:\
                                  [A-Za-z0-9._-]*:accesspoint[/:][A-Za-z0-9._-]+";
/// For their warnings.
pub const BUCKETS: &str = "it must be the name of a bucket, with 3 to 255 letters, digits, dots, dashes or underscores, or the \
                           ARN of an access point";

/// The name of a bucket, the alias of an access point, which has the form of a bucket's name, or the ARN of an access
/// point. Servers may allow less, and say so.
fn check_bucket(text: &str) -> Result<(), VolumeError> {
    let is_word = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    if !text.starts_with(ARN) {
        let is_name = (3..=255).contains(&text.len()) && is_word(text);
        return is_name.then_some(()).ok_or_else(|| VolumeError::InvalidBucketName(text.to_owned()));
    }
    // arn:PARTITION:SERVICE:REGION:ACCOUNT:RESOURCE; a multi-region access point has no region.
    let parts: Vec<&str> = text.splitn(6, ':').collect();
    let access_point = parts.get(5).and_then(|resource| resource.strip_prefix("accesspoint"));
    match (parts.get(2), access_point.and_then(|name| name.strip_prefix(['/', ':']))) {
        (Some(&"s3-outposts"), _) => Err(VolumeError::Outposts(text.to_owned())),
        (Some(&("s3" | "s3-object-lambda")), Some(name))
            if !name.is_empty() && is_word(name) && parts[..5].iter().all(|part| is_word(part)) =>
        {
            Ok(())
        }
        _ => Err(VolumeError::NotAnAccessPoint(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use regex::Regex;
    use std::sync::LazyLock;

    pub(super) fn parse(attributes: &[(&str, &str)], options: &[&str]) -> Result<Volume, VolumeError> {
        let mut all = BTreeMap::from([("bucketName".to_owned(), "bucket".to_owned())]);
        all.extend(attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        Volume::parse(&all, SecretPresence::Absent, &Arguments::parse(options))
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
        for possible in ["My_Bucket", "a.b-c", "123", "my-access-po-5j8b2k-s3alias"] {
            let volume = parse(&[("bucketName", possible)], &[]).unwrap();
            assert_eq!((volume.bucket.as_str(), volume.is_access_point()), (possible, false));
        }
    }

    #[test]
    fn of_arns_those_of_access_points_are_buckets() {
        for possible in [
            "arn:aws:s3:eu-west-1:111122223333:accesspoint/mine",
            "arn:aws:s3:eu-west-1:111122223333:accesspoint:mine",
            "arn:aws:s3::111122223333:accesspoint/mfzwi23gnjvgw.mrap",
            "arn:aws-us-gov:s3-object-lambda:us-gov-west-1:111122223333:accesspoint/mine",
        ] {
            let volume = parse(&[("bucketName", possible)], &[]).unwrap();
            assert_eq!((volume.bucket.as_str(), volume.is_access_point()), (possible, true));
        }
        for impossible in [
            "arn:aws:s3:::bucket",
            "arn:aws:s3:eu-west-1:1:accesspoint/",
            "arn:aws:s3:eu-west-1:1:accesspoint/a/object/b",
            "arn:aws:s3:eu west-1:1:accesspoint/a",
            "arn:aws:iam::1:role/a",
            "arn:",
        ] {
            let refused = parse(&[("bucketName", impossible)], &[]);
            assert_eq!(refused, Err(VolumeError::NotAnAccessPoint(impossible.into())));
        }
        let outpost = "arn:aws:s3-outposts:us-east-1:1:outpost/op-1/accesspoint/a";
        assert_eq!(parse(&[("bucketName", outpost)], &[]), Err(VolumeError::Outposts(outpost.into())));
    }

    proptest! {
        #[test]
        fn the_pattern_of_buckets_is_their_check(
            text in "[A-Za-z0-9._-]{0,5}|.{0,4}|(arn|arn:aws|a)(:(aws|s3|s3-object-lambda|s3-outposts|eu 1|1)?){2,5}:accesspoint[/:]?[a-z/:]{0,3}|b{250,260}",
        ) {
            static PATTERN: LazyLock<Regex> = LazyLock::new(|| Regex::new(&format!("^({BUCKET_PATTERN})$")).unwrap());
            prop_assert_eq!(PATTERN.is_match(&text), check_bucket(&text).is_ok(), "{}", text);
        }
    }

    #[test]
    fn the_region_of_sts_is_a_region() {
        assert_eq!(
            parse(&[("stsRegion", "eu-west-1")], &[]).unwrap().sts_region.as_deref(),
            Some("eu-west-1")
        );
        let error = parse(&[("stsRegion", "a.evil/#")], &[]).unwrap_err().to_string();
        assert!(error.contains("invalid `stsRegion` \"a.evil/#\""), "{error}");
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
