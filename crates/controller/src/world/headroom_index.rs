//! What is known of workloads that ask for headroom, and of headroom pods.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::headroom::{GatedWorkload, HeadroomPod, Mark};
use crate::key::Key;

/// What the watches have shown of them. Where none is reserved, there are only headroom pods from before it was turned off.
#[derive(Debug, Default)]
pub struct HeadroomIndex {
    /// Whether the installation reserves headroom.
    pub is_on: bool,
    /// Workloads that wait for their gate to be removed, and those with the label, by UID; most of the gated ones soon have it.
    marked: [HashMap<String, GatedWorkload>; 2],
    pub(super) pods: BTreeMap<String, HeadroomPod>,
    pub(super) pods_by_workload: HashMap<String, BTreeSet<String>>,
    /// Keyed by namespace and name of the claims that they wait for.
    pub(super) gated_by_claim: HashMap<(String, String), BTreeSet<String>>,
}

impl HeadroomIndex {
    pub fn marked(&self, mark: Mark) -> &HashMap<String, GatedWorkload> {
        &self.marked[mark as usize]
    }

    pub(super) fn marked_mut(&mut self, mark: Mark) -> &mut HashMap<String, GatedWorkload> {
        &mut self.marked[mark as usize]
    }

    pub fn pod_names(&self) -> impl Iterator<Item = &String> {
        self.pods.keys()
    }

    /// Everything there is to look at.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        let uids = self.marked.iter().flat_map(HashMap::keys).chain(self.pods_by_workload.keys());
        uids.cloned().map(Key::Headroom)
    }

    /// Those of these workloads that have headroom pods.
    pub(super) fn keys_of<'a>(&self, uids: impl Iterator<Item = &'a str>) -> Vec<Key> {
        let with_headroom = uids.filter(|uid| self.pods_by_workload.contains_key(*uid));
        with_headroom.map(|uid| Key::Headroom(uid.to_owned())).collect()
    }

    /// The workloads that wait for this claim.
    pub(super) fn keys_of_claim(&self, claim: &(String, String)) -> Vec<Key> {
        let waiting = self.gated_by_claim.get(claim).into_iter().flatten();
        waiting.cloned().map(Key::Headroom).collect()
    }

    pub(super) fn mark_deleted(&mut self, name: &str, uid: &str) {
        if let Some(pod) = self.pods.get_mut(name).filter(|pod| pod.uid == uid) {
            pod.terminating = true;
        }
    }

    /// The workload as the newer of the two watches has shown it.
    pub(super) fn gated(&self, uid: &str) -> Option<&GatedWorkload> {
        let both = self.marked.iter().filter_map(|marked| marked.get(uid));
        both.max_by_key(|gated| gated.resource_version)
    }

    pub(super) fn is_old(&self, gated: &GatedWorkload) -> bool {
        let known = self.gated(&gated.workload.uid);
        known.is_some_and(|known| known.resource_version > gated.resource_version)
    }
}
