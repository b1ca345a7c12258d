//! Headroom: room on a node for Mountpoint Pods that do not exist yet. A workload that asks for it with a scheduling gate is
//! scheduled only after there is a headroom pod for each of its volumes, which follows it to its node and whose place the
//! Mountpoint Pod then takes. (Warm Mountpoint Pods, which already run, are in [`crate::warm`].)
//!
//! Whatever fails here must not keep a workload waiting: a volume for which none can be reserved is left out.

mod observed;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use contract::names::headroom_pod;
use contract::volume::Volume;
use jiff::Timestamp;

pub use observed::{GatedWorkload, HeadroomPod, Mark};

use crate::step::Step;

/// Claims are not watched here, and their volumes may be of other drivers.
const CLAIMS_AGAIN: Duration = Duration::from_secs(5);
/// A claim that was not bound for long is rarely bound in the next seconds, and many pods that wait for claims like that must not
/// keep the API server busy.
const CLAIMS_AGAIN_AT_LAST: Duration = Duration::from_mins(2);

/// Everything that the decision about one workload's headroom is based on.
#[derive(Clone, Debug)]
pub struct Headroom {
    /// Whether the installation reserves headroom.
    pub is_on: bool,
    /// The workload; nothing if it is gone.
    pub gated: Option<GatedWorkload>,
    /// Its volumes that can be served, by name.
    pub volumes: BTreeMap<String, Volume>,
    /// A claim of it will be bound before it is scheduled, and is not yet: perhaps to a volume that needs headroom.
    pub awaits_claims: bool,
    /// Volumes whose headroom pod the API server refuses.
    pub refused: BTreeSet<String>,
    /// Volumes whose Mountpoint Pod the scheduler finds no room for.
    pub unschedulable: BTreeSet<String>,
    /// All headroom pods of the workload.
    pub pods: Vec<HeadroomPod>,
}

impl Headroom {
    pub fn decide(&self) -> Vec<Step> {
        match self.gated.as_ref().filter(|gated| self.is_on && gated.workload.awaits_volumes()) {
            Some(gated) if gated.has_gate => self.reserve(gated),
            Some(_) => self.keep(),
            None => self.release(),
        }
    }

    /// When to look again at a workload that is not scheduled yet: it then has waited a quarter longer at most.
    pub fn look_again(&self, now: Timestamp) -> Option<Duration> {
        let waits = |gated: &&GatedWorkload| self.is_on && self.awaits_claims && gated.has_gate;
        let created = self.gated.as_ref().filter(waits)?.workload.created.as_ref();
        let waited = created.and_then(|created| Duration::try_from(now.duration_since(created.0)).ok());
        Some((waited.unwrap_or_default() / 4).clamp(CLAIMS_AGAIN, CLAIMS_AGAIN_AT_LAST))
    }

    /// The label comes first, because the scheduler places a headroom pod by it, and the gate last.
    fn reserve(&self, gated: &GatedWorkload) -> Vec<Step> {
        let wanted: Vec<(&String, &Volume)> =
            self.volumes.iter().filter(|(name, _)| !self.refused.contains(*name)).collect();
        let is_wanted = |pod: &HeadroomPod| wanted.iter().any(|(name, _)| **name == pod.volume_name);
        let label = (!wanted.is_empty() && !gated.has_label).then(|| gated.label());
        let deleted = self.deleted(|pod| pod.has_ended || !is_wanted(pod));
        let is_there = |name: &str| {
            self.pods.iter().any(|pod| pod.volume_name == name && !pod.has_ended && !pod.terminating)
        };
        let missing = wanted.iter().filter(|(name, _)| !is_there(name));
        let created = missing.map(|(name, volume)| Step::CreateHeadroomPod {
            name: headroom_pod(&gated.workload.uid, name),
            workload: gated.workload_ref(),
            volume_name: (*name).clone(),
            volume: Box::new((*volume).clone()),
        });
        let ungate = (!self.awaits_claims).then(|| gated.remove_gate());
        label.into_iter().chain(deleted).chain(created).chain(ungate).collect()
    }

    /// A headroom pod that was preempted is not created again. One whose Mountpoint Pod is unschedulable makes room: not every
    /// Mountpoint Pod can preempt it, because workloads that did not ask for headroom may have been there first.
    fn keep(&self) -> Vec<Step> {
        self.deleted(|pod| pod.has_ended || self.unschedulable.contains(&pod.volume_name)).collect()
    }

    fn release(&self) -> Vec<Step> {
        let labelled = self.gated.as_ref().filter(|gated| self.is_on && gated.has_label);
        self.deleted(|_| true).chain(labelled.map(GatedWorkload::unlabel)).collect()
    }

    fn deleted<'a>(&'a self, is_over: impl Fn(&HeadroomPod) -> bool + 'a) -> impl Iterator<Item = Step> + 'a {
        let over = self.pods.iter().filter(move |pod| !pod.terminating && is_over(pod));
        over.map(|pod| Step::DeleteHeadroomPod { name: pod.name.clone(), uid: pod.uid.clone() })
    }
}

#[cfg(test)]
mod tests;
