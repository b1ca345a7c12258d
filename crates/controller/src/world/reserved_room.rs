//! Workloads that ask for room, and the headroom pods that keep it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use contract::volume_plan::VolumePlan;

use super::state::{Claim, World, remove_from};
use crate::key::Key;
use crate::observed::S3Volume;
use crate::reserved_room::{HeadroomPod, ReservedRoom, Seeker};

/// What the watches have shown of them. Without reserved room, there are only headroom pods from before it was turned off.
#[derive(Debug, Default)]
pub struct SoughtRoom {
    /// Whether the installation reserves room.
    pub is_on: bool,
    /// Workloads that wait for their gate to be removed, by UID.
    pub gated: HashMap<String, Seeker>,
    /// Those with the label, by UID; most of the gated ones soon are.
    pub labelled: HashMap<String, Seeker>,
    pods: BTreeMap<String, HeadroomPod>,
    pods_by_workload: HashMap<String, BTreeSet<String>>,
    gated_by_claim: HashMap<Claim, BTreeSet<String>>,
}

impl SoughtRoom {
    pub fn pod_names(&self) -> impl Iterator<Item = &String> {
        self.pods.keys()
    }

    /// Everything there is to look at.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        let uids = self.gated.keys().chain(self.labelled.keys()).chain(self.pods_by_workload.keys());
        uids.cloned().map(Key::ReservedRoom)
    }

    /// Those of these workloads that have headroom pods.
    pub(super) fn keys_of<'a>(&self, uids: impl Iterator<Item = &'a str>) -> Vec<Key> {
        let with_room = uids.filter(|uid| self.pods_by_workload.contains_key(*uid));
        with_room.map(|uid| Key::ReservedRoom(uid.to_owned())).collect()
    }

    /// The workloads that wait for this claim.
    pub(super) fn keys_of_claim(&self, claim: &Claim) -> Vec<Key> {
        let waiting = self.gated_by_claim.get(claim).into_iter().flatten();
        waiting.cloned().map(Key::ReservedRoom).collect()
    }

    pub(super) fn mark_deleted(&mut self, name: &str, uid: &str) {
        if let Some(pod) = self.pods.get_mut(name).filter(|pod| pod.uid == uid) {
            pod.terminating = true;
        }
    }

    pub(super) fn remove_pod(&mut self, name: &str) -> Option<Key> {
        let pod = self.pods.remove(name)?;
        remove_from(&mut self.pods_by_workload, &pod.workload_uid, name);
        Some(Key::ReservedRoom(pod.workload_uid))
    }

    /// As the last of the two watches has shown it.
    fn seeker(&self, uid: &str) -> Option<&Seeker> {
        let both = self.gated.get(uid).into_iter().chain(self.labelled.get(uid));
        both.max_by_key(|seeker| seeker.resource_version)
    }

    fn is_old(&self, seeker: &Seeker) -> bool {
        let known = self.seeker(&seeker.workload.uid);
        known.is_some_and(|known| known.resource_version > seeker.resource_version)
    }

    fn forget_gated(&mut self, uid: &str) -> Option<Seeker> {
        let seeker = self.gated.remove(uid)?;
        for claim in claims_of(&seeker) {
            remove_from(&mut self.gated_by_claim, &claim, uid);
        }
        Some(seeker)
    }
}

fn claims_of(seeker: &Seeker) -> impl Iterator<Item = Claim> + '_ {
    let namespace = &seeker.workload.namespace;
    seeker.workload.claims.iter().map(|claim| (namespace.clone(), claim.clone()))
}

impl World {
    pub fn set_gated(&mut self, seeker: Seeker) -> Vec<Key> {
        let uid = seeker.workload.uid.clone();
        if self.room.is_old(&seeker) || self.room.gated.get(&uid) == Some(&seeker) {
            return Vec::new();
        }
        self.room.forget_gated(&uid);
        for claim in claims_of(&seeker) {
            self.room.gated_by_claim.entry(claim).or_default().insert(uid.clone());
        }
        self.room.gated.insert(uid.clone(), seeker);
        vec![Key::ReservedRoom(uid)]
    }

    pub fn remove_gated(&mut self, uid: &str) -> Vec<Key> {
        self.room.forget_gated(uid).map(|_| Key::ReservedRoom(uid.to_owned())).into_iter().collect()
    }

    pub fn set_labelled(&mut self, seeker: Seeker) -> Vec<Key> {
        let uid = seeker.workload.uid.clone();
        if self.room.is_old(&seeker) || self.room.labelled.get(&uid) == Some(&seeker) {
            return Vec::new();
        }
        self.room.labelled.insert(uid.clone(), seeker);
        vec![Key::ReservedRoom(uid)]
    }

    pub fn remove_labelled(&mut self, uid: &str) -> Vec<Key> {
        self.room.labelled.remove(uid).map(|_| Key::ReservedRoom(uid.to_owned())).into_iter().collect()
    }

    /// As our own write has left it.
    pub fn set_seeker(&mut self, seeker: Seeker) -> Vec<Key> {
        let uid = seeker.workload.uid.clone();
        if seeker.is_gated {
            self.set_gated(seeker.clone());
        } else {
            self.remove_gated(&uid);
        }
        if seeker.is_labelled {
            self.set_labelled(seeker);
        } else {
            self.remove_labelled(&uid);
        }
        Vec::new()
    }

    pub fn set_headroom_pod(&mut self, pod: HeadroomPod) -> Vec<Key> {
        let known = self.room.pods.get(&pod.name);
        if known.is_some_and(|known| known.uid == pod.uid && known.resource_version >= pod.resource_version) {
            return Vec::new();
        }
        let uid = pod.workload_uid.clone();
        self.room.remove_pod(&pod.name);
        self.room.pods_by_workload.entry(uid.clone()).or_default().insert(pod.name.clone());
        self.room.pods.insert(pod.name.clone(), pod);
        vec![Key::ReservedRoom(uid)]
    }

    /// Workloads with headroom pods that wait for this Mountpoint Pod.
    pub(super) fn rooms_of_pod(&self, pod: &str) -> Vec<Key> {
        let attachments = self.attachments_by_pod.get(pod).into_iter().flatten();
        let attachments = attachments.filter_map(|name| self.attachments.get(name));
        self.room.keys_of(attachments.flat_map(|attachment| attachment.spec.workload_uids()))
    }

    /// What is known about a workload's room, and the claims that no volume of ours is bound to, as far as we know. `awaits_claims`
    /// is for live reads to tell.
    pub fn reserved_room(&self, uid: &str) -> (ReservedRoom, Vec<Claim>) {
        let seeker = self.room.seeker(uid).cloned();
        let pods = self.room.pods_by_workload.get(uid).into_iter().flatten();
        let mut room = ReservedRoom {
            is_on: self.room.is_on,
            seeker,
            volumes: BTreeMap::new(),
            awaits_claims: false,
            refused: BTreeSet::new(),
            crowded: self.crowded(uid),
            pods: pods.filter_map(|name| self.room.pods.get(name)).cloned().collect(),
        };
        let mut unknown = Vec::new();
        for claim in room.seeker.iter().filter(|seeker| seeker.is_gated).flat_map(claims_of) {
            match self.volume_by_claim.get(&claim).and_then(|name| self.volumes.get(name)) {
                // What is wrong with a volume is reported when its workload is scheduled.
                Some(volume) => room.volumes.extend(usable(volume)),
                None => unknown.push(claim),
            }
        }
        (room, unknown)
    }

    /// The workload's volumes whose Mountpoint Pod the scheduler finds no room for.
    fn crowded(&self, uid: &str) -> BTreeSet<String> {
        let attachments = self.attachments_by_workload.get(uid).into_iter().flatten();
        let attachments = attachments.filter_map(|name| self.attachments.get(name));
        let crowded = attachments.filter(|attachment| {
            let pod = attachment.spec.mountpoint_pod_of(uid).and_then(|name| self.pods.get(name));
            pod.is_some_and(|pod| pod.is_unschedulable() && !pod.is_ending())
        });
        crowded.map(|attachment| attachment.spec.persistent_volume_name.clone()).collect()
    }
}

fn usable(volume: &S3Volume) -> Option<(String, contract::volume::Volume)> {
    let VolumePlan { volume: parsed, .. } = volume.plan().ok()?;
    Some((volume.name.clone(), parsed))
}
