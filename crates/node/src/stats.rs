//! `NodeGetVolumeStats`: the condition of a mount. Needs no API server.

use std::io;
use std::path::{Path, PathBuf};

use service::csi::volume_usage::Unit;
use service::csi::{NodeGetVolumeStatsResponse, VolumeCondition, VolumeUsage};
use thiserror::Error;
use tonic::Status;

use crate::comm;
use crate::context::Context;
use crate::events::VISIBILITY;
use crate::liveness::{Liveness, REPLACED_AFTER};

const WITHOUT_JOURNAL: &str = "it will not survive its mount process: it has no journal, because Linux is older than 6.9 or \
    the memory of its Mountpoint Pod was full";

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
    let Some(top) = table.top(path).filter(|_| buckets > 0) else {
        return Err(StatsError::NotMounted(path.to_owned()));
    };
    let comm = context.source_of(&table, top.device).and_then(|source| context.comm_of(source));
    let mount = Mount {
        liveness: context.liveness.check(path).await,
        was_remounted: buckets > 1,
        expired_keys: comm.as_ref().and_then(comm::expired_keys),
        survives: comm.as_ref().is_none_or(comm::has_journal),
    };
    let (abnormal, message) = mount.condition();
    // A bucket has no known size or limit, so no figures are given.
    let usage = VolumeUsage { unit: Unit::Bytes.into(), ..VolumeUsage::default() };
    Ok(NodeGetVolumeStatsResponse {
        usage: vec![usage],
        volume_condition: Some(VolumeCondition { abnormal, message }),
    })
}

/// What the condition is made of.
struct Mount {
    liveness: Liveness,
    was_remounted: bool,
    /// Why they have expired, if they have.
    expired_keys: Option<String>,
    /// Whether another process could continue it.
    survives: bool,
}

impl Mount {
    fn condition(self) -> (bool, String) {
        match (self.liveness, self.expired_keys) {
            (Liveness::Alive, Some(why)) => (true, why),
            (Liveness::Alive, None) => {
                let mounted = if self.was_remounted {
                    format!("the volume was remounted; {VISIBILITY}")
                } else {
                    "the volume is mounted".to_owned()
                };
                (false, if self.survives { mounted } else { format!("{mounted}; {WITHOUT_JOURNAL}") })
            }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alive() -> Mount {
        Mount { liveness: Liveness::Alive, was_remounted: false, expired_keys: None, survives: true }
    }

    #[test]
    fn a_mount_that_ends_with_its_process_is_not_abnormal_but_says_so() {
        assert_eq!(alive().condition(), (false, "the volume is mounted".to_owned()));
        for was_remounted in [false, true] {
            let (abnormal, message) = Mount { was_remounted, survives: false, ..alive() }.condition();
            assert!(!abnormal && message.contains("will not survive its mount process"), "{message}");
            assert_eq!(message.contains(VISIBILITY), was_remounted, "{message}");
        }
    }

    #[test]
    fn what_is_wrong_now_comes_first() {
        let expired_keys = Some("the keys have expired".to_owned());
        let expired = Mount { expired_keys, survives: false, ..alive() };
        assert_eq!(expired.condition(), (true, "the keys have expired".to_owned()));
        for liveness in [Liveness::Dead("gone".to_owned()), Liveness::Unresponsive, Liveness::NotMounted] {
            let (abnormal, message) = Mount { liveness, survives: false, ..alive() }.condition();
            assert!(abnormal && !message.contains("survive"), "{message}");
        }
    }
}
