//! The parameters of a `StorageClass`. Unknown keys are refused: a misspelt one must not be ignored silently.

use std::collections::BTreeMap;

use contract::arguments::Arguments;
use contract::names::{is_namespace_name, is_object_name};
use contract::options::MountOption;
use contract::s3::{REGIONS, is_region};
use contract::volume::{AuthenticationSource, VolumeError, attribute};
use contract::volume_plan::VolumePlan;
use k8s_openapi::api::storage::v1::StorageClass;
use thiserror::Error;

use super::prefix::{PrefixError, PrefixTemplate};
use super::template::{Field, Subject, Template, TemplateError};
use crate::provision::s3::endpoint::Endpoint;
use crate::provision::volume_id::{
    BUCKET_NAMES, DeletionPolicy, LONGEST_NAME_PREFIX, is_bucket, is_name_prefix,
};

pub const BUCKET_NAME: &str = "bucketName";
pub const BUCKET_NAME_PREFIX: &str = "bucketNamePrefix";
pub const PREFIX: &str = "prefix";
pub const DELETION_POLICY: &str = "deletionPolicy";
pub const REGION: &str = "region";
pub const ENDPOINT: &str = "endpoint";
const OWN: &[&str] = &[BUCKET_NAME, BUCKET_NAME_PREFIX, PREFIX, DELETION_POLICY, REGION, ENDPOINT];

/// Copied to the attributes of the volume: all of its keys, but the name of the bucket has another meaning here.
fn copied_attributes() -> impl Iterator<Item = &'static str> {
    attribute::ALL.iter().copied().filter(|key| *key != attribute::BUCKET_NAME)
}

/// Name and namespace of each Secret: for creating buckets, for mounting them, and for either where that one is not named.
pub const SECRETS: [(Field, Field); 3] = [
    (Field::ProvisionerSecretName, Field::ProvisionerSecretNamespace),
    (Field::NodePublishSecretName, Field::NodePublishSecretNamespace),
    (Field::DefaultSecretName, Field::DefaultSecretNamespace),
];

/// What csi-provisioner knows besides, for operations that this driver does not have.
pub const WITHOUT_EFFECT: &[&str] = &[
    "csi.storage.k8s.io/fstype",
    "csi.storage.k8s.io/controller-publish-secret-name",
    "csi.storage.k8s.io/controller-publish-secret-namespace",
    "csi.storage.k8s.io/node-stage-secret-name",
    "csi.storage.k8s.io/node-stage-secret-namespace",
    "csi.storage.k8s.io/controller-expand-secret-name",
    "csi.storage.k8s.io/controller-expand-secret-namespace",
    "csi.storage.k8s.io/node-expand-secret-name",
    "csi.storage.k8s.io/node-expand-secret-namespace",
];

/// What csi-provisioner adds with `--extra-create-metadata`.
const METADATA: [&str; 3] = [CLAIM_NAME, CLAIM_NAMESPACE, "csi.storage.k8s.io/pv/name"];
pub const CLAIM_NAME: &str = "csi.storage.k8s.io/pvc/name";
pub const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";

const DEFAULT_PREFIX: &str = "${pv.name}";

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClassError {
    #[error("unknown parameter `{0}`; known parameters: {known}", known = known().join(", "))]
    Unknown(String),
    #[error("parameter `{0}` is empty: set a value, or remove it")]
    Empty(&'static str),
    #[error("{0} provided but {1} is missing")]
    IncompleteSecret(&'static str, &'static str),
    #[error(
        "the class has a provisioner secret but no node-publish secret, and the driver's keys are not used instead: add \
         `csi.storage.k8s.io/node-publish-secret-name` and `-namespace`, or `authenticationSource: pod`"
    )]
    NoPublishSecret,
    #[error(
        "`authenticationSource: secret` needs `csi.storage.k8s.io/node-publish-secret-name` and `-namespace`: add them"
    )]
    SecretUnnamed,
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    #[error("invalid parameter `{0}`: it resolves to \"{1}\", which is not a valid {2} name")]
    Name(&'static str, String, &'static str),
    #[error("invalid `bucketName` \"{0}\": {BUCKET_NAMES}")]
    Bucket(String),
    #[error(
        "invalid `bucketNamePrefix` \"{0}\": use up to {LONGEST_NAME_PREFIX} lower-case letters, digits and dashes"
    )]
    BucketNamePrefix(String),
    #[error("parameter `{0}` needs `bucketName`")]
    NeedsBucket(&'static str),
    #[error(
        "`bucketName` and `bucketNamePrefix` are mutually exclusive: one bucket for all claims, or one for each"
    )]
    TwoBuckets,
    #[error("invalid `deletionPolicy` \"{0}\": use `retain` or `delete-objects`")]
    DeletionPolicy(String),
    #[error("invalid `region` \"{0}\": {REGIONS}")]
    Region(String),
    #[error(
        "`endpoint` \"{0}\" is not the driver's endpoint `{1}`, from which volumes are mounted: remove the parameter, or \
         install a driver for that endpoint"
    )]
    Endpoint(String, String),
    #[error("mount option `{0}` conflicts with parameter `{0}`: remove the mount option")]
    MountOption(&'static str),
    #[error(transparent)]
    Attribute(#[from] VolumeError),
}

/// The parameters that have an effect.
pub fn known() -> Vec<&'static str> {
    let secrets = SECRETS.iter().flat_map(|(name, namespace)| [name.key(), namespace.key()]);
    OWN.iter().copied().chain(copied_attributes()).chain(secrets).collect()
}

/// A Secret whose name and namespace may depend on the claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretTemplate {
    name: Template,
    namespace: Template,
    keys: (&'static str, &'static str),
}

/// Namespace and name of a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRef {
    pub namespace: String,
    pub name: String,
}

impl SecretTemplate {
    pub fn resolve(&self, subject: &Subject<'_>) -> Result<SecretRef, ClassError> {
        let name = self.name.resolve(subject)?;
        if !is_object_name(&name) {
            return Err(ClassError::Name(self.keys.0, name, "Secret"));
        }
        let namespace = self.namespace.resolve(subject)?;
        if !is_namespace_name(&namespace) {
            return Err(ClassError::Name(self.keys.1, namespace, "namespace"));
        }
        Ok(SecretRef { namespace, name })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// A bucket for each volume.
    Bucket { name_prefix: Option<String>, deletion: DeletionPolicy },
    /// A prefix for each volume in an existing bucket.
    Prefix { bucket: String, template: PrefixTemplate, deletion: DeletionPolicy },
}

/// What a class says about all of its volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassParameters {
    pub placement: Placement,
    pub region: Option<String>,
    pub provisioner_secret: Option<SecretTemplate>,
    pub node_publish_secret: Option<SecretTemplate>,
    pub attributes: BTreeMap<String, String>,
    pub mount_options: Vec<String>,
}

impl ClassParameters {
    pub fn of_class(class: &StorageClass, endpoint: &Endpoint) -> Result<Self, ClassError> {
        let parameters = class.parameters.clone().unwrap_or_default();
        Self::of(&parameters, class.mount_options.as_deref().unwrap_or_default(), endpoint)
    }

    /// With the driver's endpoint in the region of the class.
    pub fn of(
        parameters: &BTreeMap<String, String>,
        mount_options: &[String],
        endpoint: &Endpoint,
    ) -> Result<Self, ClassError> {
        let region = parameters.get(REGION).map(|region| region.trim());
        Self::parse(parameters, mount_options, &endpoint.address(region))
    }

    /// `endpoint` is the driver's own.
    fn parse(
        parameters: &BTreeMap<String, String>,
        mount_options: &[String],
        endpoint: &str,
    ) -> Result<Self, ClassError> {
        let known = known();
        let is_known =
            |key: &str| [&known[..], WITHOUT_EFFECT, &METADATA].iter().any(|keys| keys.contains(&key));
        if let Some(key) = parameters.keys().find(|key| !is_known(key)) {
            return Err(ClassError::Unknown(key.clone()));
        }
        let get = |key: &'static str| match parameters.get(key).map(|value| value.trim()) {
            Some("") => Err(ClassError::Empty(key)),
            value => Ok(value),
        };
        let region = get(REGION)?.map(str::to_owned);
        if let Some(region) = region.as_ref().filter(|region| !is_region(region)) {
            return Err(ClassError::Region(region.clone()));
        }
        if let Some(other) = get(ENDPOINT)?.filter(|other| other.trim_end_matches('/') != endpoint) {
            return Err(ClassError::Endpoint(other.to_owned(), endpoint.to_owned()));
        }
        let arguments = Arguments::parse(mount_options);
        if parameters.contains_key(BUCKET_NAME) && arguments.has(MountOption::Prefix) {
            return Err(ClassError::MountOption(PREFIX));
        }
        if region.is_some() && arguments.values(MountOption::Region).any(|value| value != region.as_deref()) {
            return Err(ClassError::MountOption(REGION));
        }
        let secret = |(name, namespace): (Field, Field), words: [&'static str; 2]| match (
            get(name.key())?,
            get(namespace.key())?,
        ) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(ClassError::IncompleteSecret(words[0], "namespace")),
            (None, Some(_)) => Err(ClassError::IncompleteSecret(words[1], "name")),
            (Some(one), Some(other)) => Ok(Some(SecretTemplate {
                name: Template::parse(name, one)?,
                namespace: Template::parse(namespace, other)?,
                keys: (name.key(), namespace.key()),
            })),
        };
        let attributes: BTreeMap<String, String> = parameters
            .iter()
            .filter(|(key, _)| copied_attributes().any(|known| known == key.as_str()))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let source = get(attribute::AUTHENTICATION_SOURCE)?.and_then(AuthenticationSource::parse);
        VolumePlan::of_class(&attributes, mount_options)?;
        let [provisioner, node_publish, default] = SECRETS;
        let default = secret(default, ["secret name", "secret namespace"])?;
        let provisioner_secret =
            secret(provisioner, ["provisioner secret name", "provisioner secret namespace"])?
                .or_else(|| default.clone());
        // A class that names another source of keys does not mount with its default Secret.
        let default = default.filter(|_| matches!(source, None | Some(AuthenticationSource::Secret)));
        let node_publish_secret =
            secret(node_publish, ["node-publish secret name", "node-publish secret namespace"])?.or(default);
        match source {
            _ if node_publish_secret.is_some() => {}
            Some(AuthenticationSource::Secret) => return Err(ClassError::SecretUnnamed),
            // Stronger than a Secret, so that the driver's keys replace nothing.
            Some(AuthenticationSource::Pod) => {}
            _ if provisioner_secret.is_none() => {}
            _ => return Err(ClassError::NoPublishSecret),
        }
        Ok(Self {
            placement: parse_placement(get)?,
            region,
            provisioner_secret,
            node_publish_secret,
            attributes,
            mount_options: mount_options.to_vec(),
        })
    }
}

fn parse_placement<'a>(
    get: impl Fn(&'static str) -> Result<Option<&'a str>, ClassError>,
) -> Result<Placement, ClassError> {
    let name_prefix = get(BUCKET_NAME_PREFIX)?.map(|prefix| prefix.trim_end_matches('-').to_owned());
    let deletion = match get(DELETION_POLICY)? {
        None => DeletionPolicy::default(),
        Some(text) => text.parse().map_err(|_| ClassError::DeletionPolicy(text.to_owned()))?,
    };
    let Some(bucket) = get(BUCKET_NAME)? else {
        if get(PREFIX)?.is_some() {
            return Err(ClassError::NeedsBucket(PREFIX));
        }
        return match name_prefix {
            Some(prefix) if !is_name_prefix(&prefix) => Err(ClassError::BucketNamePrefix(prefix)),
            name_prefix => Ok(Placement::Bucket { name_prefix, deletion }),
        };
    };
    if name_prefix.is_some() {
        return Err(ClassError::TwoBuckets);
    }
    if !is_bucket(bucket) {
        return Err(ClassError::Bucket(bucket.to_owned()));
    }
    let unique = deletion == DeletionPolicy::DeleteObjects;
    let template = PrefixTemplate::parse(get(PREFIX)?.unwrap_or(DEFAULT_PREFIX), unique)?;
    Ok(Placement::Prefix { bucket: bucket.to_owned(), template, deletion })
}

#[cfg(test)]
#[path = "parameters_tests.rs"]
mod tests;
