//! What the parameters of a `StorageClass` ask for. Every key is known or refused: one that is ignored is a mistake
//! that nobody hears of.

use std::collections::BTreeMap;

use contract::arguments::Arguments;
use contract::options::is_region;
use contract::volume::{Volume, VolumeError, attribute};
use thiserror::Error;

use super::naming::{Deletion, LONGEST_NAME_PREFIX, is_bucket, is_name_prefix};
use super::prefix::{PrefixError, PrefixTemplate};
use super::template::{Field, Subject, Template, TemplateError};

pub const BUCKET_NAME: &str = "bucketName";
pub const BUCKET_NAME_PREFIX: &str = "bucketNamePrefix";
pub const PREFIX: &str = "prefix";
pub const DELETION_POLICY: &str = "deletionPolicy";
pub const REGION: &str = "region";
pub const ENDPOINT: &str = "endpoint";
const OWN: &[&str] = &[BUCKET_NAME, BUCKET_NAME_PREFIX, PREFIX, DELETION_POLICY, REGION, ENDPOINT];

/// Attributes of the volume, which are taken over as they are.
const ATTRIBUTES: &[&str] = &[
    attribute::SERVICE_ACCOUNT,
    attribute::REQUESTS_CPU,
    attribute::REQUESTS_MEMORY,
    attribute::LIMITS_CPU,
    attribute::LIMITS_MEMORY,
    attribute::CACHE,
    attribute::CACHE_SIZE_LIMIT,
    attribute::CACHE_MEDIUM,
    attribute::CACHE_STORAGE_CLASS,
    attribute::CACHE_STORAGE_REQUEST,
];

const SECRETS: [Field; 4] = [
    Field::ProvisionerSecretName,
    Field::ProvisionerSecretNamespace,
    Field::NodePublishSecretName,
    Field::NodePublishSecretNamespace,
];

/// What csi-provisioner adds with `--extra-create-metadata`.
const METADATA: [&str; 3] = [CLAIM_NAME, CLAIM_NAMESPACE, "csi.storage.k8s.io/pv/name"];
pub const CLAIM_NAME: &str = "csi.storage.k8s.io/pvc/name";
pub const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";

const PREFIX_OF_EACH: &str = "${pv.name}";

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClassError {
    #[error("parameter `{0}` is unknown; known are: {known}", known = known())]
    Unknown(String),
    #[error("parameter `{0}` is empty: give it a value, or remove it")]
    Empty(&'static str),
    #[error("{0} provided but {1} is missing")]
    HalfASecret(&'static str, &'static str),
    #[error(
        "the class has a Secret to make buckets with and none to mount them with, and the driver's keys do not take its \
         place: add `csi.storage.k8s.io/node-publish-secret-name` and `-namespace`"
    )]
    NoPublishSecret,
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    #[error("parameter `{0}` resolves to `{1}`, which is no name that a {2} can have")]
    Name(&'static str, String, &'static str),
    #[error(
        "invalid `bucketName` \"{0}\": bucket names have 3 to 63 lower-case letters, digits, dots or dashes"
    )]
    Bucket(String),
    #[error(
        "parameter `bucketNamePrefix` is `{0}`; it may have up to {LONGEST_NAME_PREFIX} lower-case letters, digits and \
         dashes"
    )]
    BucketNamePrefix(String),
    #[error("parameter `{0}` has an effect only with `bucketName`")]
    NeedsBucket(&'static str),
    #[error(
        "parameters `bucketName` and `bucketNamePrefix` exclude each other: one bucket for all, or one each"
    )]
    TwoBuckets,
    #[error("parameter `deletionPolicy` is `{0}`; it may be `retain` or `delete-objects`")]
    Deletion(String),
    #[error("parameter `region` is `{0}`, which is no region")]
    Region(String),
    #[error(
        "parameter `endpoint` is `{0}`, but this driver's endpoint, from which volumes are mounted, is `{1}`: remove the \
         parameter, or install a driver for that endpoint"
    )]
    Endpoint(String, String),
    #[error("mount option `{0}` is set by the class's parameter `{0}`: remove the mount option")]
    MountOption(&'static str),
    #[error(transparent)]
    Attribute(#[from] VolumeError),
}

fn known() -> String {
    let keys = OWN.iter().chain(ATTRIBUTES).copied().chain(SECRETS.map(Field::key));
    keys.collect::<Vec<_>>().join(", ")
}

/// A Secret, by templates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretTemplate {
    name: Template,
    namespace: Template,
    keys: (&'static str, &'static str),
}

/// A Secret's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRef {
    pub namespace: String,
    pub name: String,
}

impl SecretTemplate {
    pub fn resolve(&self, subject: &Subject<'_>) -> Result<SecretRef, ClassError> {
        let name = self.name.resolve(subject)?;
        if !is_subdomain(&name) {
            return Err(ClassError::Name(self.keys.0, name, "Secret"));
        }
        let namespace = self.namespace.resolve(subject)?;
        if !is_namespace(&namespace) {
            return Err(ClassError::Name(self.keys.1, namespace, "namespace"));
        }
        Ok(SecretRef { namespace, name })
    }
}

fn is_namespace(text: &str) -> bool {
    is_subdomain(text) && !text.contains('.') && text.len() <= 63
}

/// As the API server has it for most names.
fn is_subdomain(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |label: &str| {
        label.starts_with(edge) && label.ends_with(edge) && label.chars().all(|c| edge(c) || c == '-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A bucket for each volume.
    Bucket { name_prefix: Option<String>, deletion: Deletion },
    /// A prefix for each volume in a bucket that is there already.
    Prefix { bucket: String, template: PrefixTemplate, deletion: Deletion },
}

/// What every volume of a class has in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub target: Target,
    pub region: Option<String>,
    pub provisioner_secret: Option<SecretTemplate>,
    pub node_publish_secret: Option<SecretTemplate>,
    pub attributes: BTreeMap<String, String>,
    pub mount_options: Vec<String>,
}

impl Plan {
    /// `endpoint` is the driver's own.
    pub fn parse(
        parameters: &BTreeMap<String, String>,
        mount_options: &[String],
        endpoint: &str,
    ) -> Result<Self, ClassError> {
        let secret_keys = SECRETS.map(Field::key);
        let is_known =
            |key: &str| [OWN, ATTRIBUTES, &secret_keys, &METADATA].iter().any(|keys| keys.contains(&key));
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
        let mut arguments = Arguments::parse(mount_options);
        for (key, set) in [(PREFIX, parameters.contains_key(BUCKET_NAME)), (REGION, region.is_some())] {
            if set && arguments.values(key).any(|value| key == PREFIX || value != region.as_deref()) {
                return Err(ClassError::MountOption(key));
            }
        }
        let secret = |name: Field, namespace: Field, words: [&'static str; 2]| match (
            get(name.key())?,
            get(namespace.key())?,
        ) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(ClassError::HalfASecret(words[0], "namespace")),
            (None, Some(_)) => Err(ClassError::HalfASecret(words[1], "name")),
            (Some(one), Some(other)) => Ok(Some(SecretTemplate {
                name: Template::parse(name, one)?,
                namespace: Template::parse(namespace, other)?,
                keys: (name.key(), namespace.key()),
            })),
        };
        let attributes: BTreeMap<String, String> = parameters
            .iter()
            .filter(|(key, _)| ATTRIBUTES.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        // Better said now than by a mount that fails later: with any bucket.
        let mut volume = attributes.clone();
        volume.insert(attribute::BUCKET_NAME.to_owned(), "any".to_owned());
        // The workload's owner hears of those that have no effect.
        arguments.strip();
        Volume::parse(&volume, contract::authentication::SecretRef::Unknown, &arguments)?;
        let provisioner_secret = secret(
            Field::ProvisionerSecretName,
            Field::ProvisionerSecretNamespace,
            ["provisioner secret name", "provisioner secret namespace"],
        )?;
        let node_publish_secret = secret(
            Field::NodePublishSecretName,
            Field::NodePublishSecretNamespace,
            ["node-publish secret name", "node-publish secret namespace"],
        )?;
        if provisioner_secret.is_some() && node_publish_secret.is_none() {
            return Err(ClassError::NoPublishSecret);
        }
        Ok(Self {
            target: parse_target(get)?,
            region,
            provisioner_secret,
            node_publish_secret,
            attributes,
            mount_options: mount_options.to_vec(),
        })
    }
}

fn parse_target<'a>(
    get: impl Fn(&'static str) -> Result<Option<&'a str>, ClassError>,
) -> Result<Target, ClassError> {
    let name_prefix = get(BUCKET_NAME_PREFIX)?.map(|prefix| prefix.trim_end_matches('-').to_owned());
    let deletion = match get(DELETION_POLICY)? {
        None => Deletion::default(),
        Some(text) => Deletion::parse(text).ok_or_else(|| ClassError::Deletion(text.to_owned()))?,
    };
    let Some(bucket) = get(BUCKET_NAME)? else {
        if get(PREFIX)?.is_some() {
            return Err(ClassError::NeedsBucket(PREFIX));
        }
        return match name_prefix {
            Some(prefix) if !is_name_prefix(&prefix) => Err(ClassError::BucketNamePrefix(prefix)),
            name_prefix => Ok(Target::Bucket { name_prefix, deletion }),
        };
    };
    if name_prefix.is_some() {
        return Err(ClassError::TwoBuckets);
    }
    if !is_bucket(bucket) {
        return Err(ClassError::Bucket(bucket.to_owned()));
    }
    let unique = deletion == Deletion::DeleteObjects;
    let template = PrefixTemplate::parse(get(PREFIX)?.unwrap_or(PREFIX_OF_EACH), unique)?;
    Ok(Target::Prefix { bucket: bucket.to_owned(), template, deletion })
}

#[cfg(test)]
#[path = "storage_class_tests.rs"]
mod tests;
