//! Checks the requests of the CSI controller service.

use std::collections::{BTreeMap, HashMap};

use service::csi::VolumeCapability;
use service::csi::volume_capability::AccessType;
use service::csi::volume_capability::access_mode::Mode;
use thiserror::Error;
use tonic::{Code, Status};

use super::claims::claim::Unsupported;
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
    #[error(transparent)]
    Claim(Unsupported),
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
    #[error(
        "cannot tell whether the StorageClass names a Secret, because the request has no secrets and does not name its claim: \
         start csi-provisioner with `--extra-create-metadata`"
    )]
    ClaimUnnamed,
    #[error(
        "volume `{0}` asks for keys of its own (`authenticationSource: secret`), and neither the request nor a \
         PersistentVolume names them: send them as secrets of the request"
    )]
    KeysMissing(String),
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
            | RequestError::Claim(_)
            | RequestError::Class(_)
            | RequestError::Prefix
            | RequestError::Region(_) => Code::InvalidArgument,
            RequestError::Capacity { .. } => Code::OutOfRange,
            RequestError::ClaimUnnamed | RequestError::KeysMissing(_) => Code::FailedPrecondition,
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
                return Err(RequestError::Unsupported(Unsupported::Block.to_string()));
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
