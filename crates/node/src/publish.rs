//! A bucket for a workload: from kubelet's request to a bind mount. Every step can be the last one of a life; the next
//! publish goes on from whatever is there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use contract::names::source_on_node;
use contract::volume::AuthenticationSource;
use service::csi::NodePublishVolumeRequest;
use service::keys::DriverKeys;

use crate::comm;
use crate::credentials::{self, CredentialsError};
use crate::failure::{PublishError, kernel_error};
use crate::heal::Asked;
use crate::kernel::{self, Pulse, Pulses};
use crate::known::{Known, MountpointPod};
use crate::metrics::{Metrics, Stage};
use crate::mounts::Mounts;
use crate::place::Root;
use crate::plan::{Step, Wanted, plan};
use crate::request::Publish;
use crate::target::Target;
use crate::tell::Teller;
use crate::turn::Turns;

/// kubelet mounts one pod of a volume at a time: a publish that waits keeps all the others waiting, and kubelet tries
/// again by itself. So one ends within 30 s: this much is for waiting, 10 s for the hand-over, the rest for servers that
/// are there and do not answer.
const WAIT_WITHIN: Duration = Duration::from_secs(14);

/// What is the same for every volume of this installation.
#[derive(Clone, Debug)]
pub struct Installation {
    pub driver_keys: DriverKeys,
    /// Endpoint, region and the like.
    pub environment: BTreeMap<String, String>,
    pub mountpoint_namespace: String,
}

pub struct Publisher {
    pub kubelet: Root,
    pub known: Known,
    pub mounts: Mounts,
    pub turns: Turns,
    pub pulses: Pulses,
    pub installation: Installation,
    pub metrics: Metrics,
    pub asked: Asked,
    pub teller: Teller,
}

impl Publisher {
    pub async fn publish(&self, request: NodePublishVolumeRequest) -> Result<(), PublishError> {
        let publish = Publish::parse(request.clone(), self.kubelet.path())?;
        let Some(_turn) = self.turns.target(&publish.target) else { return Err(PublishError::Busy) };
        if self.is_left_alone(&publish).await? {
            return Ok(());
        }
        // Before: if this fails, whoever mounts it again must do so with the newest Secret.
        self.asked.update(&publish.target, &request);
        self.make_so(&publish, Instant::now() + WAIT_WITHIN).await?;
        self.asked.remember(&publish.target, request);
        Ok(())
    }

    /// The same for a target whose mount has died, unless it was given back meanwhile: nobody would unmount it again.
    pub async fn publish_again(&self, target: &Path, until: Instant) -> Result<(), PublishError> {
        let Some(_turn) = self.turns.target(target) else { return Err(PublishError::Busy) };
        let Some(request) = self.asked.get(target) else { return Ok(()) };
        let publish = Publish::parse(request, self.kubelet.path())?;
        self.teller.lost(&publish);
        self.make_so(&publish, until).await
    }

    /// Waits until `until` at most, then mounts what is missing.
    async fn make_so(&self, publish: &Publish, until: Instant) -> Result<(), PublishError> {
        let asked = Instant::now();
        let began = asked;
        let pod = self.assigned(publish, until).await?;
        self.metrics.stage(Stage::Assignment, began.elapsed());
        let began = Instant::now();
        // A source that somebody answers for needs no mounter to listen.
        let served = self.pulses.feel(&source_on_node(self.kubelet.path(), &pod.name)).await == Pulse::Alive;
        if !served {
            self.listening(&pod, until).await?;
        }
        self.metrics.stage(Stage::Listening, began.elapsed());
        let turn = tokio::time::timeout_at(until.into(), self.turns.of(&pod.name)).await;
        let _turn = turn.map_err(|_| PublishError::Waiting(pod.name.clone()))?;
        self.check_alone(publish)?;
        let began = Instant::now();
        let source = self.provide(publish, &pod)?;
        let changed = self.mount(publish, &pod, source, served).await?;
        self.teller.restored(publish);
        self.metrics.stage(Stage::Mount, began.elapsed());
        if changed {
            tracing::info!(
                volume_id = publish.volume_id,
                pod_uid = publish.pod_uid,
                mountpoint_pod = pod.name,
                milliseconds = asked.elapsed().as_secs_f64() * 1000.0,
                "published"
            );
        }
        Ok(())
    }

    /// What is mounted, served, and assigned to nobody stays as it is: it was mounted by a driver of the time before
    /// Mountpoint Pods, or its workload is just leaving, and the unmount must not wait for us to wait.
    async fn is_left_alone(&self, publish: &Publish) -> Result<bool, PublishError> {
        let Publish { volume_name, volume_id, pod_uid, target, .. } = publish;
        if self.known.assignment(volume_name, volume_id, pod_uid).is_some() {
            return Ok(false);
        }
        let table = self.mounts.table().map_err(kernel_error("read the mounts for", target))?;
        let mounted = table.top(target).is_some_and(|top| top.bucket);
        Ok(mounted && self.pulses.feel(target).await == Pulse::Alive)
    }

    /// Puts the keys in place, every time: a changed Secret reaches a mount that has been running for long.
    fn provide(&self, publish: &Publish, pod: &MountpointPod) -> Result<AuthenticationSource, PublishError> {
        if publish.arguments.has("no-sign-request") {
            return Ok(publish.volume.authentication);
        }
        let driver = &self.installation.driver_keys;
        let asked = publish.volume.authentication;
        let (keys, source) = credentials::choose(asked, pod.authentication, &publish.secrets, driver)?;
        let comm = comm::open(&self.kubelet, &pod.uid).map_err(CredentialsError::Write)?;
        if credentials::provide(&comm, &pod.name, &keys)? {
            self.metrics.credentials_written();
            tracing::info!(
                volume_id = publish.volume_id,
                mountpoint_pod = pod.name,
                source = source.as_str(),
                "credentials written"
            );
        }
        Ok(source)
    }

    /// One pod at a time is what was asked for; how others are served does not matter.
    fn check_alone(&self, publish: &Publish) -> Result<(), PublishError> {
        if !publish.alone {
            return Ok(());
        }
        let table = self.mounts.table().map_err(kernel_error("read the mounts for", &publish.target))?;
        let is_others = |point: &Path| {
            Target::of_mount(point, self.kubelet.path())
                .is_some_and(|it| it.volume_name == publish.volume_name && it.path != publish.target)
        };
        let other = table.0.iter().find(|mount| mount.bucket && is_others(&mount.point));
        other.map_or(Ok(()), |other| Err(PublishError::UsedElsewhere(other.point.clone())))
    }

    /// `served` if somebody has just answered for the source. Says whether anything was missing.
    async fn mount(
        &self,
        publish: &Publish,
        pod: &MountpointPod,
        authentication: AuthenticationSource,
        served: bool,
    ) -> Result<bool, PublishError> {
        let source = source_on_node(self.kubelet.path(), &pod.name);
        let create = |path: &PathBuf| self.kubelet.create(path).map_err(kernel_error("create", path));
        let (source_place, target_place) = (create(&source)?, create(&publish.target)?);
        let table = self.mounts.table().map_err(kernel_error("read the mounts for", &publish.target))?;
        let source_device = table.top(&source).map(|mount| mount.device);
        let alive = match source_device {
            None => false,
            Some(_) if served => true,
            Some(_) => match self.pulses.feel(&source).await {
                Pulse::Alive => true,
                Pulse::Dead(_) | Pulse::Nobody => false,
                // It may be busy; replacing it would take it from those whom it serves.
                Pulse::Silent => return Err(PublishError::Silent(source.clone())),
            },
        };
        let read_only = publish.read_only || publish.source_read_only;
        let lost = match table.top(&publish.target).filter(|top| top.bucket) {
            None => false,
            Some(top) if source_device == Some(top.device) => !alive,
            Some(_) => matches!(self.pulses.feel(&publish.target).await, Pulse::Dead(_)),
        };
        if lost {
            self.teller.lost(publish);
        }
        let wanted = Wanted { source: &source, target: &publish.target, read_only, alive };
        let steps = plan(&table, wanted);
        for step in &steps {
            let (volume_id, pod_uid, mountpoint_pod) = (&publish.volume_id, &publish.pod_uid, &pod.name);
            tracing::debug!(volume_id, pod_uid, mountpoint_pod, ?step, "mounting");
            match step {
                Step::UnmountSource => {
                    kernel::detach(&source_place).map_err(kernel_error("unmount", &source))?;
                }
                Step::Serve => self.serve(publish, pod, &source_place, &source, authentication).await?,
                Step::Seal => kernel::seal(&target_place).map_err(kernel_error("seal", &publish.target))?,
                Step::UnmountTarget => {
                    kernel::detach(&target_place).map_err(kernel_error("unmount", &publish.target))?;
                }
                Step::Bind => {
                    let bound = kernel::bind(&source_place, &target_place, read_only);
                    if bound.is_err() && steps.contains(&Step::Seal) {
                        // kubelet removes the folder of a failed mount, and would not ask for an unmount first.
                        let _ = kernel::detach(&target_place);
                    }
                    bound.map_err(kernel_error("bind", &publish.target))?;
                }
            }
        }
        Ok(!steps.is_empty())
    }
}
