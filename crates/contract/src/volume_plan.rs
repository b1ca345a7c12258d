//! What a volume means. Controller, node and class checks all read a volume here, so that none refuses what another
//! has accepted.

use std::collections::BTreeMap;

use crate::arguments::Arguments;
use crate::authentication::SecretPresence;
use crate::options::{IgnoredOption, MountOption, take_ignored};
use crate::volume::{Volume, VolumeError, attribute, place_cache};

/// What a volume may set of the mount process's environment.
const ENVIRONMENT: &[&str] = &[attribute::HTTPS_PROXY, attribute::NO_PROXY];
/// Limits the attempts of the AWS client.
const ATTEMPTS_VARIABLE: &str = "AWS_MAX_ATTEMPTS";
/// Placeholder for the bucket while a class is checked.
const ANY_BUCKET: &str = "any";

/// Everything that the attributes and mount options of a volume say, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePlan {
    pub volume: Volume,
    /// Arguments of the mount process. What depends on the workload (`fsGroup`, access mode) is not among them yet.
    pub arguments: Arguments,
    /// Environment of the mount process.
    pub environment: BTreeMap<String, String>,
    /// Options that have no effect; workloads get an Event that names them.
    pub ignored: Vec<IgnoredOption>,
}

impl VolumePlan {
    pub fn parse<T: AsRef<str>>(
        attributes: &BTreeMap<String, String>,
        secret: SecretPresence,
        mount_options: impl IntoIterator<Item = T>,
    ) -> Result<Self, VolumeError> {
        let mut arguments = Arguments::parse(mount_options);
        let ignored = take_ignored(&mut arguments);
        let volume = Volume::parse(attributes, secret, &arguments)?;
        let mut environment = parse_environment(attributes)?;
        if let Some(attempts) = arguments.value(MountOption::AwsMaxAttempts) {
            environment.insert(ATTEMPTS_VARIABLE.to_owned(), attempts.to_owned());
        }
        arguments.remove(MountOption::AwsMaxAttempts);
        place_cache(&volume.cache, &mut arguments)?;
        Ok(Self { volume, arguments, environment, ignored })
    }

    /// What every volume of a class will mean, whatever its bucket. A mistake in the class is better reported on the claim
    /// than by a mount that fails later.
    pub fn of_class<T: AsRef<str>>(
        attributes: &BTreeMap<String, String>,
        mount_options: impl IntoIterator<Item = T>,
    ) -> Result<Self, VolumeError> {
        let mut attributes = attributes.clone();
        attributes.insert(attribute::BUCKET_NAME.to_owned(), ANY_BUCKET.to_owned());
        Self::parse(&attributes, SecretPresence::Unknown, mount_options)
    }
}

fn parse_environment(attributes: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, VolumeError> {
    let given = attributes
        .iter()
        .filter_map(|(key, value)| Some((key, key.strip_prefix(attribute::ENVIRONMENT)?, value)));
    given
        .map(|(key, name, value)| {
            let is_allowed = ENVIRONMENT.contains(&key.as_str());
            is_allowed
                .then(|| (name.to_owned(), value.clone()))
                .ok_or_else(|| VolumeError::Environment(name.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan(attributes: &[(&str, &str)], options: &[&str]) -> Result<VolumePlan, VolumeError> {
        let attributes = [("bucketName", "bucket")].iter().chain(attributes);
        let attributes = attributes.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        VolumePlan::parse(&attributes, SecretPresence::Absent, options)
    }

    #[test]
    fn what_is_ignored_is_named_and_does_not_make_a_volume_invalid() {
        let plan =
            plan(&[], &["--endpoint-url http://evil", "foreground", "prefix=a/", "storage-class X"]).unwrap();
        assert_eq!(plan.arguments.render(), ["--prefix=a/"]);
        assert_eq!(plan.ignored, [IgnoredOption::EndpointUrl, IgnoredOption::StorageClass]);
    }

    #[test]
    fn attempts_are_a_variable() {
        let plan = plan(&[("mountpointEnv.NO_PROXY", "s3.test")], &["aws-max-attempts 4"]).unwrap();
        let environment = [("AWS_MAX_ATTEMPTS", "4"), ("NO_PROXY", "s3.test")];
        assert_eq!(
            plan.environment,
            environment.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
        );
        assert_eq!(plan.arguments, Arguments::default());
    }

    #[test]
    fn a_cache_is_where_the_pod_has_it() {
        let arguments = |attributes: &[(&str, &str)], options: &[&str]| {
            plan(attributes, options).map(|plan| plan.arguments.render())
        };
        assert_eq!(arguments(&[], &["cache /tmp/mine"]).unwrap(), ["--cache=/local-cache"]);
        let limited = [("cache", "emptyDir"), ("cacheEmptyDirSizeLimit", "1Gi")];
        assert_eq!(arguments(&limited, &[]).unwrap(), ["--cache=/local-cache", "--max-cache-size=972"]);
        let too_large = arguments(&limited, &["max-cache-size=2000"]);
        assert_eq!(too_large, Err(VolumeError::CacheTooLarge("2000".into(), 1024)));
    }

    #[test]
    fn only_proxies_may_be_set() {
        let refused = plan(&[("mountpointEnv.LD_PRELOAD", "x")], &[]);
        assert_eq!(refused, Err(VolumeError::Environment("LD_PRELOAD".into())));
    }

    fn attributes() -> impl Strategy<Value = BTreeMap<String, String>> {
        let one = prop_oneof![
            ("authenticationSource", "(driver|secret|pod|Secret|)"),
            ("cache", "(emptyDir|ephemeral|disk|)"),
            ("cacheEmptyDirSizeLimit", "(1Gi|10Mi|big|)"),
            ("cacheEmptyDirMedium", "(Memory|Disk|)"),
            ("cacheEphemeral(StorageClassName|StorageResourceRequest)", "(fast|1Gi|)"),
            ("mountpointContainerResources(Limits|Requests)(Cpu|Memory)", "(100m|1Gi|x)"),
            ("mountpointEnv.(NO_PROXY|PATH)", "x"),
            ("other", "x"),
        ];
        proptest::collection::vec(one, 0..5).prop_map(|pairs| pairs.into_iter().collect())
    }

    fn options() -> impl Strategy<Value = Vec<String>> {
        let one = prop_oneof![
            "(cache( /x)?|max-cache-size=(5|5000|x)|prefix=(a|a/)|region=(eu|e u)|read-only(=x)?)",
            "(--profile x|-o ro|ENDPOINT-URL=http://x|foreground|unheard-of|aws-max-attempts=(4|x)|uid=(1|0))",
        ];
        proptest::collection::vec(one, 0..4)
    }

    proptest! {
        /// The controller knows whether a volume names a Secret; the node only whether one came with the request. Whatever
        /// the one accepts, the other does, and with the same arguments.
        #[test]
        fn the_node_accepts_what_the_controller_accepts(
            attributes in attributes(), options in options(), named: bool, has_data: bool,
        ) {
            let mut attributes = attributes;
            attributes.insert("bucketName".to_owned(), "bucket".to_owned());
            let at_controller = if named { SecretPresence::Present } else { SecretPresence::Absent };
            let at_node = if named && has_data { SecretPresence::Present } else { SecretPresence::Unknown };
            if let Ok(controller) = VolumePlan::parse(&attributes, at_controller, &options) {
                let node = VolumePlan::parse(&attributes, at_node, &options);
                prop_assert!(node.is_ok(), "{node:?}");
                let node = node.unwrap();
                prop_assert_eq!(node.arguments, controller.arguments);
                prop_assert_eq!(node.environment, controller.environment);
                prop_assert_eq!(node.ignored, controller.ignored);
            }
        }

        /// A class adds prefix and region as mount options of its volumes.
        #[test]
        fn a_volume_of_a_class_is_accepted_with_its_class(attributes in attributes(), options in options(), secret: bool) {
            let mut attributes = attributes;
            attributes.remove("authenticationSource");
            let given = Arguments::parse(&options);
            if VolumePlan::of_class(&attributes, &options).is_ok() && !given.has(MountOption::Prefix) {
                let mut options = options;
                options.push("prefix=pvc-1/".to_owned());
                if !given.has(MountOption::Region) {
                    options.push("region=eu-west-1".to_owned());
                }
                let (source, secret) = if secret { ("secret", SecretPresence::Present) } else { ("driver", SecretPresence::Absent) };
                attributes.insert("authenticationSource".to_owned(), source.to_owned());
                attributes.insert("bucketName".to_owned(), "csi-s3-1".to_owned());
                let volume = VolumePlan::parse(&attributes, secret, &options);
                prop_assert!(volume.is_ok(), "{volume:?}");
            }
        }
    }
}
