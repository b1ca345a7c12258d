//! `NodeUnpublishVolume`: removes a target, whatever is mounted there, dead or alive. Needs no API server.

use std::io;

use contract::trace;
use thiserror::Error;
use tonic::Status;

use crate::context::Context;
use crate::kernel;
use crate::target::{Target, TargetError};

#[derive(Debug, Error)]
pub enum UnpublishError {
    #[error("Volume ID not provided")]
    VolumeId,
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("another operation on this target is in progress; the kubelet will retry")]
    Busy,
    #[error("Could not unmount \"{target}\": {source}")]
    Unmount { target: String, source: io::Error },
}

impl From<UnpublishError> for Status {
    fn from(error: UnpublishError) -> Self {
        let message = error.to_string();
        match error {
            UnpublishError::VolumeId | UnpublishError::Target(_) => Self::invalid_argument(message),
            UnpublishError::Busy => Self::aborted(message),
            UnpublishError::Unmount { .. } => Self::internal(message),
        }
    }
}

pub fn unpublish(context: &Context, volume_id: &str, target: &str) -> Result<(), UnpublishError> {
    if volume_id.is_empty() {
        return Err(UnpublishError::VolumeId);
    }
    let Target { path, pod_uid, .. } = Target::parse(target, context.kubelet.path())?;
    let _guard = context.locks.try_target(&path).ok_or(UnpublishError::Busy)?;
    kernel::remove_mount_point(&context.mounts, &context.kubelet, &path)
        .map_err(|source| UnpublishError::Unmount { target: target.to_owned(), source })?;
    context.forget(&path);
    tracing::info!(volume_id, trace_id = trace::id(&pod_uid), pod_uid, "unpublished");
    Ok(())
}
