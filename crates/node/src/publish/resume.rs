//! Finishes or undoes a move during which an earlier node service has ended.

use std::io;

use contract::mountpoint_pod::MountpointPod;
use contract::names::sources_on_node;
use thiserror::Error;

use super::relocate::go_back;
use super::serving::{Serves, wait_until_known_at};
use crate::context::Context;
use crate::kernel;
use crate::mounter_client::MounterError;

/// The mount is left as it is, and the next attempt decides.
#[derive(Debug, Error)]
pub(crate) enum ResumeError {
    #[error("cannot read the mount table: {0}")]
    MountTable(#[from] io::Error),
    #[error("Mountpoint Pod {0}, to which the mount was moving, does not say whether it serves it")]
    Unknown(String),
    #[error("the Mountpoint Pod that the mount has left cannot serve it again: {0}")]
    NotServed(#[from] MounterError),
}

/// The mount of this pod has left it. Either the next pod serves it already, or this one continues. Does nothing without a
/// mount table: it could end what the next pod serves.
pub(crate) async fn resume(context: &Context, pod: &MountpointPod) -> Result<(), ResumeError> {
    let _lock = context.locks.mountpoint_pod(&pod.name).await;
    let (source, sources) = (context.source(&pod.name), sources_on_node(context.kubelet.path()));
    let table = context.mounts.table()?;
    let others = table.copies(&source).filter(|copy| copy.point.starts_with(&sources));
    for other in others.map(|copy| copy.point.clone()).collect::<Vec<_>>() {
        let is_served = match wait_until_known_at(context, &other).await {
            Serves::Yes => true,
            Serves::No => false,
            Serves::Unknown => {
                let next = other.file_name().unwrap_or_default();
                return Err(ResumeError::Unknown(next.to_string_lossy().into_owned()));
            }
        };
        let leftover = if is_served { &source } else { &other };
        if let Err(error) = context.kubelet.locate(leftover).and_then(|path| kernel::detach(&path)) {
            tracing::warn!(%error, source = %leftover.display(), "cannot detach what a move has left");
        }
        if is_served {
            tracing::info!(mountpoint_pod = pod.name, "an interrupted move is complete");
            context.descriptors.drop(&pod.uid);
            return Ok(());
        }
    }
    if let Some((uid, kept)) = context.descriptors.of_pod(&pod.name) {
        go_back(context, &uid, &kept).await?;
    }
    Ok(())
}
