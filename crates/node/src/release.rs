//! Giving a workload's mount back, and saying how a mount is. Neither needs the API server.

use std::path::Path;

use service::csi::volume_usage::Unit;
use service::csi::{NodeGetVolumeStatsResponse, VolumeCondition, VolumeUsage};
use tonic::Status;

use crate::kernel::{self, Pulse};
use crate::publish::Publisher;
use crate::silence::REPLACED_AFTER;
use crate::target::Target;

/// Whom a mount that was made anew reaches.
pub(crate) const REACHES: &str = "a container that has been running since before sees it at once if it mounts the volume with \
    mountPropagation: HostToContainer, else after a restart";

impl Publisher {
    /// Takes everything away from the target, and then its folder: dead or alive, one or several upon each other, there or
    /// not.
    pub fn unpublish(&self, volume_id: &str, target: &str) -> Result<(), Status> {
        if volume_id.is_empty() {
            return Err(Status::invalid_argument("Volume ID not provided"));
        }
        let parsed = Target::parse(target, self.kubelet.path());
        let Target { path, pod_uid, .. } =
            parsed.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let Some(_target) = self.turns.target(&path) else {
            return Err(Status::aborted("another call is working on this target; try again"));
        };
        let failed =
            |error: std::io::Error| Status::internal(format!("Could not unmount \"{target}\": {error}"));
        let place = match self.kubelet.place(&path) {
            Ok(place) => place,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.forget(&path);
                return Ok(());
            }
            Err(error) => return Err(failed(error)),
        };
        kernel::clear(&self.mounts, &place, &path).map_err(failed)?;
        place.remove_folder().map_err(failed)?;
        self.forget(&path);
        tracing::info!(volume_id, pod_uid, "unpublished");
        Ok(())
    }

    pub(crate) fn forget(&self, target: &Path) {
        self.asked.forget(target);
        self.teller.forget(target);
    }

    pub async fn stats(&self, volume_id: &str, path: &str) -> Result<NodeGetVolumeStatsResponse, Status> {
        if volume_id.is_empty() {
            return Err(Status::invalid_argument("Volume ID not provided"));
        }
        if path.is_empty() {
            return Err(Status::invalid_argument("Volume path not provided"));
        }
        let path = Path::new(path);
        if !self.kubelet.contains(path) {
            return Err(Status::not_found(format!("{} is no volume of this node", path.display())));
        }
        let table = self.mounts.table().map_err(|error| Status::internal(error.to_string()))?;
        let mounted: Vec<_> = table.at(path).filter(|mount| mount.bucket).collect();
        if mounted.is_empty() {
            return Err(Status::not_found(format!("no bucket is mounted at {}", path.display())));
        }
        let (abnormal, message) = match self.pulses.feel(path).await {
            Pulse::Alive if mounted.len() > 1 => (false, format!("the bucket is served again; {REACHES}")),
            Pulse::Alive => (false, "the bucket is served".to_owned()),
            Pulse::Dead(error) => (
                true,
                format!(
                    "the process that served the bucket is gone ({error}); it is being mounted again; {REACHES}"
                ),
            ),
            Pulse::Nobody => (true, "it is being unmounted".to_owned()),
            Pulse::Silent => (
                true,
                format!(
                    "the process that serves the bucket does not answer; it is replaced when it has not for {} s",
                    REPLACED_AFTER.as_secs()
                ),
            ),
        };
        // A bucket has no size that could be known: nothing is claimed.
        let usage = VolumeUsage { unit: Unit::Bytes.into(), ..VolumeUsage::default() };
        Ok(NodeGetVolumeStatsResponse {
            usage: vec![usage],
            volume_condition: Some(VolumeCondition { abnormal, message }),
        })
    }
}
