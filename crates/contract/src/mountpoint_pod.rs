//! A Mountpoint Pod as controller and node see it.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

use crate::authentication::AuthenticationSource;
use crate::names::{CACHE_VOLUME, annotation, label};
use crate::quantity::Quantity;
use crate::slim::{SlimContainerStatus, SlimPod, SlimPodStatus, version};
use crate::volume::cache_share;

/// A pod's `status.phase`.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Display,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

impl Phase {
    pub const ALL: &[Self] = Self::VARIANTS;

    pub fn of(status: &SlimPodStatus) -> Self {
        status.phase.as_deref().map_or(Self::Pending, |phase| phase.parse().unwrap_or(Self::Unknown))
    }

    pub fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own about the pod")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountpointPod {
    pub name: String,
    pub uid: String,
    pub resource_version: u64,
    pub node: Option<String>,
    pub phase: Phase,
    pub created: Option<Time>,
    pub terminating: bool,
    /// When its deletion was requested.
    pub deleted: Option<Time>,
    /// A container of it has run at some time, so that there may be something to unmount.
    pub started: bool,
    /// Since when its container runs; `None` while it does not.
    pub running_since: Option<Time>,
    pub needs_unmount: bool,
    pub no_new_workload: bool,
    /// Its mount can be moved to another pod while programs use it.
    pub movable: bool,
    pub driver_version: String,
    /// The attachment it was created for; older drivers did not record it.
    pub attachment: Option<String>,
    /// `None` for one that was created for a volume, or is claimed.
    pub warm: Option<Warm>,
    /// It was warm until then.
    pub claimed: bool,
    pub early_mount: Option<EarlyMount>,
    pub volume_name: Option<String>,
    /// The workload it was created for; others may have joined since.
    pub workload_uid: Option<String>,
    /// Whose credentials its volume asks for, as the controller read it there.
    pub authentication: Option<AuthenticationSource>,
    /// How many MiB its cache on disk may use; the kubelet evicts a pod that uses more than its limit.
    pub cache_mebibytes: Option<u128>,
    pub start_failure: Option<StartFailure>,
    /// The last end of its container that the kubelet has reported.
    pub last_end: Option<ContainerEnd>,
}

/// How a container has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerEnd {
    /// In whole seconds.
    pub at: Time,
    /// The kubelet's word, such as `OOMKilled`.
    pub reason: String,
    /// What the mounter has left to say; may be empty.
    pub message: String,
}

/// What is known of a pod that is kept ready for a volume to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warm {
    /// Where, even if it is not scheduled yet.
    pub node: String,
    /// Only a controller that makes pods of the same shape may claim it.
    pub shape: String,
}

/// The parts of a volume that the node does not read anywhere else and gets from the kubelet otherwise.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct EarlyMount {
    pub attributes: BTreeMap<String, String>,
    pub mount_options: Vec<String>,
}

impl MountpointPod {
    /// `None` for a pod without the driver's labels.
    pub fn of(pod: &SlimPod) -> Option<Self> {
        let driver_version = pod.labels().get(label::DRIVER_VERSION)?.clone();
        let annotation = |name| pod.annotations().get(name);
        let is_set = |name| annotation(name).is_some_and(|value| value == "true");
        let phase = Phase::of(&pod.status);
        Some(Self {
            name: pod.name_any(),
            uid: pod.metadata.uid.clone()?,
            resource_version: version(&pod.metadata),
            node: pod.spec.node_name.clone().filter(|node| !node.is_empty()),
            phase,
            created: pod.creation_timestamp(),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            deleted: deleted(pod),
            started: phase == Phase::Running || pod.status.container_statuses.iter().any(has_run),
            running_since: pod.status.container_statuses.iter().find_map(running_since),
            needs_unmount: is_set(annotation::NEEDS_UNMOUNT),
            no_new_workload: is_set(annotation::NO_NEW_WORKLOAD),
            movable: is_set(annotation::MOVABLE),
            driver_version,
            attachment: annotation(annotation::ATTACHMENT).cloned(),
            warm: annotation(annotation::WARM_ON).map(|node| Warm {
                node: node.clone(),
                shape: annotation(annotation::WARM_SHAPE).cloned().unwrap_or_default(),
            }),
            claimed: annotation(annotation::EARLY_MOUNT).is_some(),
            early_mount: annotation(annotation::EARLY_MOUNT).and_then(|text| serde_json::from_str(text).ok()),
            volume_name: annotation(annotation::VOLUME_NAME).cloned(),
            workload_uid: pod.labels().get(label::WORKLOAD_UID).cloned(),
            authentication: annotation(annotation::AUTHENTICATION_SOURCE)
                .and_then(|source| AuthenticationSource::parse(source)),
            cache_mebibytes: cache_mebibytes(pod),
            start_failure: StartFailure::of(&pod.status),
            last_end: pod.status.container_statuses.iter().find_map(last_end),
        })
    }

    /// It has ended, or will once its current workloads are gone.
    pub fn is_ending(&self) -> bool {
        self.terminating || self.needs_unmount || self.has_ended()
    }

    pub fn has_ended(&self) -> bool {
        self.phase.has_ended()
    }
}

fn running_since(container: &SlimContainerStatus) -> Option<Time> {
    container.state.running.as_ref()?.started_at.clone()
}

fn last_end(container: &SlimContainerStatus) -> Option<ContainerEnd> {
    let ended = container.state.terminated.as_ref().or(container.last_state.terminated.as_ref())?;
    Some(ContainerEnd {
        at: ended.finished_at.clone()?,
        reason: ended.reason.clone()?,
        message: ended.message.clone().unwrap_or_default(),
    })
}

impl fmt::Display for ContainerEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, message, .. } = self;
        if message.is_empty() {
            formatter.write_str(reason)
        } else {
            // It quotes output, with its line breaks.
            write!(formatter, "{reason}: {}", message.replace(|c: char| c.is_control(), " "))
        }
    }
}

/// The API server adds the grace period to the time of the request.
fn deleted(pod: &SlimPod) -> Option<Time> {
    let end = pod.metadata.deletion_timestamp.as_ref()?;
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds?);
    end.0.checked_sub(grace).ok().map(Time)
}

fn has_run(container: &SlimContainerStatus) -> bool {
    container.started == Some(true)
        || container.state.terminated.is_some()
        || container.last_state.terminated.is_some()
}

fn cache_mebibytes(pod: &SlimPod) -> Option<u128> {
    let cache = pod.spec.volumes.iter().find(|volume| volume.name == CACHE_VOLUME)?.empty_dir.as_ref()?;
    // One in memory cannot grow beyond its limit.
    let limit = cache.size_limit.as_ref().filter(|_| cache.medium.as_deref() != Some("Memory"))?;
    Some(cache_share(&Quantity::parse(limit)?))
}

/// Why a pod does not run and will not without help, in the words of the kubelet or the scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StartFailure {
    /// Never empty.
    pub reason: String,
    pub message: String,
}

/// Reasons of the kubelet for a container that is about to start. Any other reason means that it cannot: the kubelet has
/// many for that, and adds new ones.
pub const STARTING: &[&str] = &["ContainerCreating", "PodInitializing"];

impl StartFailure {
    pub fn of(status: &SlimPodStatus) -> Option<Self> {
        let failure = |reason: &str, message: Option<&String>| {
            Some(Self { reason: reason.to_owned(), message: message.cloned().unwrap_or_default() })
        };
        if Phase::of(status) == Phase::Failed {
            return failure(given(status.reason.as_ref()).unwrap_or("Failed"), status.message.as_ref());
        }
        let scheduled = status.conditions.iter().find(|condition| condition.kind == "PodScheduled");
        if let Some(condition) = scheduled.filter(|condition| condition.status == "False") {
            let reason = given(condition.reason.as_ref()).unwrap_or("Unschedulable");
            return failure(reason, condition.message.as_ref());
        }
        status.containers().find_map(|container| {
            let waiting = container.state.waiting.as_ref()?;
            let reason = given(waiting.reason.as_ref()).filter(|reason| !STARTING.contains(reason))?;
            // Its own last message says more than that it is restarted with a delay.
            let last = container.last_state.terminated.as_ref().and_then(|ended| ended.message.as_ref());
            let last = last.filter(|message| !message.is_empty());
            failure(reason, last.or(waiting.message.as_ref()))
        })
    }
}

fn given(reason: Option<&String>) -> Option<&str> {
    reason.map(String::as_str).filter(|reason| !reason.is_empty())
}

impl fmt::Display for StartFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, message } = self;
        if message.is_empty() {
            formatter.write_str(reason)
        } else {
            write!(formatter, "{reason}: {message}")
        }
    }
}

#[cfg(test)]
mod tests;
