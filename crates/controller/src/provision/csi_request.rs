//! Checks the requests of the CSI controller service.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use service::csi::VolumeCapability;
use service::csi::volume_capability::AccessType;
use service::csi::volume_capability::access_mode::Mode;
use thiserror::Error;
use tonic::{Code, Status};

use super::class::parameters::ClassError;
use super::error::ProvisionError;
use super::s3::credentials::Credentials;

#[derive(Debug, Error)]
pub(super) enum RequestError {
    #[error("volume name is required")]
    Name,
    #[error("volume ID is required")]
    Id,
    #[error("volume capabilities are required")]
    Capabilities,
    #[error("volume capability access mode is required")]
    AccessMode,
    #[error("{0}")]
    Unsupported(String),
    #[error("invalid capacity: {required} bytes required, at most {limit} bytes allowed")]
    Capacity { required: i64, limit: i64 },
    #[error("a bucket cannot be created from a snapshot or a volume: remove the claim's `dataSource`")]
    Source,
    #[error("volumes cannot be modified: remove the claim's `volumeAttributesClassName`")]
    Mutable,
    #[error("invalid StorageClass: {0}")]
    Class(#[from] ClassError),
    #[error(
        "`bucketName` is not supported with csi-provisioner, which cannot set the mount option `prefix`: use the driver's \
         own provisioner (--provisioning=on)"
    )]
    Prefix,
    #[error(
        "`region` {0} is not the driver's, with which volumes are mounted: add the mount option `region={0}` to the class"
    )]
    Region(String),
    #[error("volume `{0}` exists with different parameters")]
    Different(String),
    #[error("there is no volume `{0}`")]
    Missing(String),
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    #[error("volume `{0}` has more objects to delete: retry")]
    Incomplete(String),
}

impl From<RequestError> for Status {
    fn from(error: RequestError) -> Self {
        let code = match &error {
            RequestError::Name
            | RequestError::Id
            | RequestError::Capabilities
            | RequestError::AccessMode
            | RequestError::Unsupported(_)
            | RequestError::Source
            | RequestError::Mutable
            | RequestError::Class(_)
            | RequestError::Prefix
            | RequestError::Region(_) => Code::InvalidArgument,
            RequestError::Capacity { .. } => Code::OutOfRange,
            RequestError::Different(_) => Code::AlreadyExists,
            RequestError::Missing(_) => Code::NotFound,
            RequestError::Provision(error) => error.code(),
            RequestError::Incomplete(_) => Code::Aborted,
        };
        Self::new(code, error.to_string())
    }
}

/// `None` if the request has none: csi-provisioner sends none for a class without a Secret, nor for a Secret without data.
pub(super) fn credentials(secrets: HashMap<String, String>) -> Result<Option<Credentials>, ProvisionError> {
    let secrets: BTreeMap<String, String> = secrets.into_iter().collect();
    if secrets.is_empty() {
        return Ok(None);
    }
    Ok(Some(Credentials::from_secret(&secrets, "the provisioner secret")?))
}

pub(super) fn mount_flags(capability: &VolumeCapability) -> &[String] {
    match &capability.access_type {
        Some(AccessType::Mount(mount)) => &mount.mount_flags,
        Some(AccessType::Block(_)) | None => &[],
    }
}

/// Those that the node service mounts.
pub(super) fn check_capabilities(capabilities: &[VolumeCapability]) -> Result<(), RequestError> {
    if capabilities.is_empty() {
        return Err(RequestError::Capabilities);
    }
    for capability in capabilities {
        match &capability.access_type {
            Some(AccessType::Block(_)) => {
                let message = "block volumes are not supported: use `volumeMode: Filesystem`";
                return Err(RequestError::Unsupported(message.to_owned()));
            }
            Some(AccessType::Mount(_)) => {}
            None => return Err(RequestError::Capabilities),
        }
        let mode = capability.access_mode.as_ref().ok_or(RequestError::AccessMode)?.mode();
        if matches!(mode, Mode::Unknown | Mode::MultiNodeSingleWriter) {
            let message = format!("access mode {} is not supported: use ReadWriteMany", mode.as_str_name());
            return Err(RequestError::Unsupported(message));
        }
    }
    Ok(())
}

/// Enough for late retries; the oldest is forgotten first.
const MAX_CREATED: usize = 1000;

/// What a volume was created with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CreatedWith {
    pub(super) required: i64,
    pub(super) limit: i64,
    pub(super) parameters: BTreeMap<String, String>,
}

/// The volumes that this process has created: a repeated request must have the same parameters. S3 stores none of them, so
/// that a restart forgets them; the owner of a bucket, which would matter, S3 checks itself.
#[derive(Default)]
pub(super) struct CreatedVolumes(Mutex<Created>);

#[derive(Default)]
struct Created {
    count: u64,
    volumes: HashMap<String, (u64, CreatedWith)>,
}

impl CreatedVolumes {
    /// Whether the volume was created with other parameters.
    pub(super) fn differs(&self, volume: &str, parameters: &CreatedWith) -> bool {
        self.0.lock().volumes.get(volume).is_some_and(|(_, before)| before != parameters)
    }

    pub(super) fn insert(&self, volume: &str, parameters: CreatedWith) {
        let mut created = self.0.lock();
        created.count += 1;
        let count = created.count;
        created.volumes.insert(volume.to_owned(), (count, parameters));
        if created.volumes.len() > MAX_CREATED {
            let oldest =
                created.volumes.iter().min_by_key(|(_, (at, _))| *at).map(|(volume, _)| volume.clone());
            oldest.and_then(|volume| created.volumes.remove(&volume));
        }
    }

    pub(super) fn remove(&self, volume: &str) {
        self.0.lock().volumes.remove(volume);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_parameters_differ_and_the_oldest_volume_is_forgotten() {
        let parameters = |required| CreatedWith { required, limit: 0, parameters: BTreeMap::new() };
        let created = CreatedVolumes::default();
        created.insert("0", parameters(1));
        assert!(created.differs("0", &parameters(2)) && !created.differs("0", &parameters(1)));
        assert!(!created.differs("1", &parameters(2)));
        (1..=MAX_CREATED).for_each(|number| created.insert(&number.to_string(), parameters(1)));
        assert!(!created.differs("0", &parameters(2)) && created.differs("1", &parameters(2)));
        created.remove("1");
        assert!(!created.differs("1", &parameters(2)));
    }
}
