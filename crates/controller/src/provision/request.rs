//! What a call of the CSI controller service must have, and why it is refused.

use std::collections::{BTreeMap, HashMap};

use service::csi::VolumeCapability;
use service::csi::volume_capability::AccessType;
use service::csi::volume_capability::access_mode::Mode;
use thiserror::Error;
use tonic::{Code, Status};

use super::asked_keys::AskedKeysError;
use super::credentials::Credentials;
use super::storage_class::ClassError;
use super::volume::VolumeError;

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
    #[error("capacity: {required} bytes are required, and at most {limit} allowed")]
    Capacity { required: i64, limit: i64 },
    #[error("a bucket cannot be made from a snapshot or a volume: remove the claim's dataSource")]
    Source,
    #[error("volumes cannot be modified: remove the VolumeAttributesClass")]
    Mutable,
    #[error("failed to parse StorageClass parameters: {0}")]
    Class(#[from] ClassError),
    #[error(
        "`bucketName` gives each claim a prefix, which csi-provisioner cannot write into the volume: use the driver's own \
         provisioner (--provisioning=on)"
    )]
    Prefix,
    #[error(
        "volumes are mounted with the driver's region unless told otherwise: add the mount option `region={0}` to the class"
    )]
    Region(String),
    #[error("volume `{0}` exists with other parameters")]
    Other(String),
    #[error("there is no volume `{0}`")]
    Missing(String),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    Keys(Box<AskedKeysError>),
    #[error("deleting objects of `{0}`: there are more")]
    Partly(String),
}

impl From<AskedKeysError> for RequestError {
    fn from(error: AskedKeysError) -> Self {
        Self::Keys(Box::new(error))
    }
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
            RequestError::Other(_) => Code::AlreadyExists,
            RequestError::Missing(_) => Code::NotFound,
            RequestError::Volume(error) => error.code(),
            RequestError::Keys(error) => error.code(),
            RequestError::Partly(_) => Code::Aborted,
        };
        Self::new(code, error.to_string())
    }
}

/// Nothing, if the call has none: csi-provisioner sends none for a class that names no Secret, and for a Secret that has no
/// data.
pub(super) fn given(secrets: HashMap<String, String>) -> Result<Option<Credentials>, VolumeError> {
    let secrets: BTreeMap<String, String> = secrets.into_iter().collect();
    if secrets.is_empty() {
        return Ok(None);
    }
    Ok(Some(Credentials::of_secret(&secrets, "the provisioner secret")?))
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
                let message =
                    "block volumes are not supported: a bucket is a file system; use volumeMode: Filesystem";
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
