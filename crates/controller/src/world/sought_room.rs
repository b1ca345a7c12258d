//! What is known of workloads that ask for room, and of headroom pods.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::key::Key;
use crate::reserved_room::{HeadroomPod, Mark, Seeker};

/// What the watches have shown of them. Without reserved room, there are only headroom pods from before it was turned off.
#[derive(Debug, Default)]
pub struct SoughtRoom {
    /// Whether the installation reserves room.
    pub is_on: bool,
    /// Workloads that wait for their gate to be removed, and those with the label, by UID; most of the gated ones soon have it.
    marked: [HashMap<String, Seeker>; 2],
    pub(super) pods: BTreeMap<String, HeadroomPod>,
    pub(super) pods_by_workload: HashMap<String, BTreeSet<String>>,
    /// By namespace and name of the claims that they wait for.
    pub(super) gated_by_claim: HashMap<(String, String), BTreeSet<String>>,
}

impl SoughtRoom {
    pub fn marked(&self, mark: Mark) -> &HashMap<String, Seeker> {
        &self.marked[mark as usize]
    }

    pub(super) fn marked_mut(&mut self, mark: Mark) -> &mut HashMap<String, Seeker> {
        &mut self.marked[mark as usize]
    }

    pub fn pod_names(&self) -> impl Iterator<Item = &String> {
        self.pods.keys()
    }

    /// Everything there is to look at.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        let uids = self.marked.iter().flat_map(HashMap::keys).chain(self.pods_by_workload.keys());
        uids.cloned().map(Key::ReservedRoom)
    }

    /// Those of these workloads that have headroom pods.
    pub(super) fn keys_of<'a>(&self, uids: impl Iterator<Item = &'a str>) -> Vec<Key> {
        let with_room = uids.filter(|uid| self.pods_by_workload.contains_key(*uid));
        with_room.map(|uid| Key::ReservedRoom(uid.to_owned())).collect()
    }

    /// The workloads that wait for this claim.
    pub(super) fn keys_of_claim(&self, claim: &(String, String)) -> Vec<Key> {
        let waiting = self.gated_by_claim.get(claim).into_iter().flatten();
        waiting.cloned().map(Key::ReservedRoom).collect()
    }

    pub(super) fn mark_deleted(&mut self, name: &str, uid: &str) {
        if let Some(pod) = self.pods.get_mut(name).filter(|pod| pod.uid == uid) {
            pod.terminating = true;
        }
    }

    /// As the last of the two watches has shown it.
    pub(super) fn seeker(&self, uid: &str) -> Option<&Seeker> {
        let both = self.marked.iter().filter_map(|marked| marked.get(uid));
        both.max_by_key(|seeker| seeker.resource_version)
    }

    pub(super) fn is_old(&self, seeker: &Seeker) -> bool {
        let known = self.seeker(&seeker.workload.uid);
        known.is_some_and(|known| known.resource_version > seeker.resource_version)
    }
}
