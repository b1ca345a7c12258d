//! Mountpoint Pods that are kept running on a node without a volume, so that the next volume need not wait for the start of
//! one. They take the place of pods that would be created: whatever becomes of them, the usual way stays open.

use std::str::FromStr;
use std::time::Duration;

use contract::slim::SlimPod;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use strum::IntoStaticStr;

use crate::observed::{MountpointPod, Phase};
use crate::step::Step;

/// How long a node that no longer uses buckets counts as one that does, and a burst as recent.
const RECENT: SignedDuration = SignedDuration::from_hours(1);
/// Another pod would end like the one before: with a full disk, several a second.
const FAILED_FOR: SignedDuration = SignedDuration::from_mins(1);
/// A node without room is not asked again before this, because the scheduler prefers a waiting Mountpoint Pod to the
/// workloads that wait for the same room.
const FULL_FOR: SignedDuration = SignedDuration::from_mins(10);
/// The kubelet is starting the workload that has just claimed a pod; the start of the next warm pod would slow it down.
const REPLACED_AFTER: SignedDuration = SignedDuration::from_secs(2);
/// The same for Mountpoint Pods that workloads wait for. One that takes longer, for its image perhaps, takes nothing from others.
const STARTS_WITHIN: SignedDuration = SignedDuration::from_secs(30);

/// How many warm pods an installation keeps on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerNode {
    /// On every node where the driver runs.
    Fixed(usize),
    /// One on nodes that use buckets, two where one was not enough recently.
    Auto,
}

impl FromStr for PerNode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            ("off", _) => Ok(Self::Fixed(0)),
            (_, Ok(number)) => Ok(Self::Fixed(number)),
            _ => Err("is neither a number nor `off` or `auto`".to_owned()),
        }
    }
}

/// Whether a new volume found a warm Mountpoint Pod, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Warmth {
    Hit,
    /// The volume needs a pod with another spec.
    OtherShape,
    /// It was claimed or deleted meanwhile, or must not be changed.
    Lost,
    /// Those of the node are claimed, or do not run yet.
    BeingReplaced,
    /// The node keeps none: it is closed, or `auto` found no bucket in use there.
    NotKept,
    NodeFull,
    /// The installation's limit for all nodes is reached.
    LimitReached,
    /// There should be one, and there is none: the first of a node, or it has failed.
    NoneReady,
}

/// Everything that the decision about a node's warm pods is based on.
#[derive(Clone, Debug)]
pub struct WarmNode {
    pub node: String,
    pub now: Time,
    /// Shape of the pods that this controller makes.
    pub shape: String,
    pub per_node: PerNode,
    /// How many more the installation allows on all nodes together.
    pub quota_left: usize,
    /// How many of this node's are beyond that.
    pub beyond: usize,
    /// Its UID, if the driver runs there and pods may be added: it is neither cordoned nor drained nor short of anything.
    pub open: Option<String>,
    /// Known, from a live read, to be no more.
    pub node_gone: bool,
    /// When a bucket was last attached there; now, if one is.
    pub used: Option<Time>,
    /// When there was last a burst: volumes that found none because others had just claimed them.
    pub missed: Option<Time>,
    /// When a volume claimed one there, the first of those that are not replaced yet.
    pub claimed: Option<Time>,
    /// When the last of the node's Mountpoint Pods was created that serve a volume and do not run yet.
    pub starting: Option<Time>,
    /// When the scheduler last found no room there for a Mountpoint Pod, warm or not, or nowhere for a workload.
    pub full: Option<Time>,
    /// All of the node, whatever their state.
    pub warm: Vec<MountpointPod>,
}

impl WarmNode {
    /// `unique` makes a name that was never used.
    pub fn decide(&self, unique: impl FnMut() -> String) -> Vec<Step> {
        let (mut kept, others): (Vec<_>, Vec<_>) = self.warm.iter().partition(|pod| self.is_useful(pod));
        // Those that run first, because they are what is wanted.
        kept.sort_by_key(|pod| (pod.phase != Phase::Running, pod.created.clone()));
        let allowed = if self.beyond > 0 { kept.len().saturating_sub(self.beyond) } else { usize::MAX };
        let wanted = self.wanted().min(allowed);
        let surplus = kept.split_off(wanted.min(kept.len()));
        let deleted = surplus.into_iter().chain(others).filter(|pod| !pod.terminating || self.node_gone);
        let deleted = deleted.filter(|pod| wanted == 0 || self.failure_left(pod).is_none());
        let deleted = deleted.map(|pod| Step::DeleteWarmPod {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            resource_version: pod.resource_version,
            by_force: self.node_gone,
        });
        let failing = self.warm.iter().filter(|pod| self.failure_left(pod).is_some()).count();
        let is_quiet = self.left(self.claimed.as_ref(), REPLACED_AFTER).is_none()
            && self.left(self.starting.as_ref(), STARTS_WITHIN).is_none();
        let missing = wanted.saturating_sub(kept.len() + failing).min(self.quota_left);
        let names: Vec<String> =
            std::iter::repeat_with(unique).take(if is_quiet { missing } else { 0 }).collect();
        let created = self.open.iter().cycle().zip(names).map(|(node_uid, name)| Step::CreateWarmPod {
            name,
            node: self.node.clone(),
            node_uid: node_uid.clone(),
        });
        deleted.chain(created).collect()
    }

    /// Why a volume that could use one finds none.
    pub fn why_none(&self) -> Warmth {
        let are_coming = self.warm.iter().any(|pod| self.is_useful(pod)) || self.claimed.is_some();
        if self.left(self.full.as_ref(), FULL_FOR).is_some() {
            Warmth::NodeFull
        } else if self.wanted() == 0 {
            Warmth::NotKept
        } else if are_coming {
            Warmth::BeingReplaced
        } else if self.quota_left == 0 {
            Warmth::LimitReached
        } else {
            Warmth::NoneReady
        }
    }

    /// When the decision may be another one without any change that a watch would report.
    pub fn look_again(&self) -> Option<Duration> {
        let failures = self.warm.iter().filter_map(|pod| self.failure_left(pod));
        let since = [
            (&self.claimed, REPLACED_AFTER),
            (&self.starting, STARTS_WITHIN),
            (&self.full, FULL_FOR),
            (&self.used, RECENT),
            (&self.missed, RECENT),
        ];
        let since = since.into_iter().filter_map(|(since, lasts)| self.left(since.as_ref(), lasts));
        failures.chain(since).min()
    }

    fn wanted(&self) -> usize {
        if self.open.is_none() || self.node_gone || self.left(self.full.as_ref(), FULL_FOR).is_some() {
            return 0;
        }
        let recently = |time: &Option<Time>| self.left(time.as_ref(), RECENT).is_some();
        match self.per_node {
            PerNode::Fixed(number) => number,
            PerNode::Auto if !recently(&self.used) => 0,
            PerNode::Auto => 1 + usize::from(recently(&self.missed)),
        }
    }

    /// Can be claimed, now or once it runs.
    fn is_useful(&self, pod: &MountpointPod) -> bool {
        let is_of_shape = pod.warm.as_ref().is_some_and(|warm| warm.shape == self.shape);
        is_of_shape && !pod.is_ending() && pod.phase != Phase::Unknown
    }

    /// How long a pod that has ended by itself stays, so that no other is created in its place.
    fn failure_left(&self, pod: &MountpointPod) -> Option<Duration> {
        let has_ended = matches!(pod.phase, Phase::Failed | Phase::Succeeded);
        let created = pod.created.as_ref().filter(|_| has_ended && !pod.terminating);
        self.left(created, FAILED_FOR)
    }

    /// What is left of the time that something lasts.
    fn left(&self, since: Option<&Time>, lasts: SignedDuration) -> Option<Duration> {
        let left = lasts - self.now.0.duration_since(since?.0);
        Duration::try_from(left).ok().filter(|left| !left.is_zero())
    }
}

/// Whether a volume would be served by it at once. The phase of a pod whose container crashes again and again is `Running`, too.
pub fn is_ready(pod: &MountpointPod) -> bool {
    let runs = pod.phase == Phase::Running && pod.start_failure.is_none();
    runs && !pod.is_ending() && !pod.no_new_workload
}

/// Whether a workload is older than warm pods make room for one. If it lacks room when a controller starts, an earlier one has
/// already made room for it.
pub fn has_had_room(pod: &SlimPod, now: Timestamp) -> bool {
    let created = pod.metadata.creation_timestamp.as_ref();
    created.is_some_and(|created| now.duration_since(created.0) >= FULL_FOR)
}

#[cfg(test)]
mod tests;
