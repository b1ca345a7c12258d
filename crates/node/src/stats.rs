//! `NodeGetVolumeStats`: the condition of a mount. Needs no API server.

use std::io;
use std::path::{Path, PathBuf};

use contract::names::sources_on_node;
use service::csi::volume_usage::Unit;
use service::csi::{NodeGetVolumeStatsResponse, VolumeCondition, VolumeUsage};
use thiserror::Error;
use tonic::Status;

use crate::context::Context;
use crate::events::VISIBILITY;
use crate::liveness::{Liveness, REPLACED_AFTER};

#[derive(Debug, Error)]
pub enum StatsError {
    #[error("Volume ID not provided")]
    VolumeId,
    #[error("Volume path not provided")]
    VolumePath,
    #[error("{0} is not a volume of this node")]
    NotOnThisNode(PathBuf),
    #[error("no bucket is mounted at {0}")]
    NotMounted(PathBuf),
    #[error("cannot read the mount table: {0}")]
    MountTable(#[from] io::Error),
}

impl From<StatsError> for Status {
    fn from(error: StatsError) -> Self {
        let message = error.to_string();
        match error {
            StatsError::VolumeId | StatsError::VolumePath => Self::invalid_argument(message),
            StatsError::NotOnThisNode(_) | StatsError::NotMounted(_) => Self::not_found(message),
            StatsError::MountTable(_) => Self::internal(message),
        }
    }
}

pub async fn stats(
    context: &Context,
    volume_id: &str,
    path: &str,
) -> Result<NodeGetVolumeStatsResponse, StatsError> {
    if volume_id.is_empty() {
        return Err(StatsError::VolumeId);
    }
    if path.is_empty() {
        return Err(StatsError::VolumePath);
    }
    let path = Path::new(path);
    if !context.kubelet.contains(path) {
        return Err(StatsError::NotOnThisNode(path.to_owned()));
    }
    let table = context.mounts.table()?;
    let buckets = table.at(path).filter(|mount| mount.bucket).count();
    if buckets == 0 {
        return Err(StatsError::NotMounted(path.to_owned()));
    }
    let sources = sources_on_node(context.kubelet.path());
    let source = table.copies(path).find(|mount| mount.point.starts_with(&sources));
    let expired = source.and_then(|source| context.expired_keys(&source.point));
    let (abnormal, message) = condition(&context.liveness.check(path).await, buckets > 1, expired);
    // A bucket has no known size or limit, so no figures are given.
    let usage = VolumeUsage { unit: Unit::Bytes.into(), ..VolumeUsage::default() };
    Ok(NodeGetVolumeStatsResponse {
        usage: vec![usage],
        volume_condition: Some(VolumeCondition { abnormal, message }),
    })
}

fn condition(liveness: &Liveness, remounted: bool, expired_keys: Option<String>) -> (bool, String) {
    match (liveness, expired_keys) {
        (Liveness::Alive, Some(why)) => (true, why),
        (Liveness::Alive, None) if remounted => (false, format!("the volume was remounted; {VISIBILITY}")),
        (Liveness::Alive, None) => (false, "the volume is mounted".to_owned()),
        (Liveness::NotMounted, _) => (true, "the volume is being unmounted".to_owned()),
        (Liveness::Dead(error), _) => (
            true,
            format!("the mount process died ({error}) and the volume is being remounted; {VISIBILITY}"),
        ),
        (Liveness::Unresponsive, _) => (
            true,
            format!(
                "the mount process is not responding; it will be replaced if it does not answer for {} s",
                REPLACED_AFTER.as_secs()
            ),
        ),
    }
}
