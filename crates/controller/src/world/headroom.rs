//! Workloads that ask for headroom, and the headroom pods that reserve it, in the world.

use std::collections::{BTreeMap, BTreeSet};

use contract::volume::Volume;
use contract::volume_plan::VolumePlan;

use super::state::{ObjectName, World, remove_from};
use crate::headroom::{GatedWorkload, Headroom, HeadroomPod, Mark};
use crate::key::Key;
use crate::observed::S3Volume;
use crate::room::lacked_by_mountpoint_pod;

fn claims_of(gated: &GatedWorkload) -> impl Iterator<Item = ObjectName> + '_ {
    let namespace = &gated.workload.namespace;
    gated.workload.claims.iter().map(|claim| (namespace.clone(), claim.clone()))
}

impl World {
    pub(super) fn remove_headroom_pod(&mut self, name: &str) -> Option<Key> {
        let pod = self.headroom.pods.remove(name)?;
        remove_from(&mut self.headroom.pods_by_workload, &pod.workload_uid, name);
        Some(Key::Headroom(pod.workload_uid))
    }

    /// Takes the workload as the watch for this mark has shown it.
    pub fn set_marked(&mut self, mark: Mark, gated: GatedWorkload) -> Vec<Key> {
        let uid = gated.workload.uid.clone();
        if !gated.has(mark) {
            return self.remove_marked(mark, &uid);
        }
        if self.headroom.is_old(&gated) || self.headroom.marked(mark).get(&uid) == Some(&gated) {
            return Vec::new();
        }
        self.remove_marked(mark, &uid);
        for claim in claims_of(&gated).filter(|_| mark == Mark::Gate) {
            self.headroom.gated_by_claim.entry(claim).or_default().insert(uid.clone());
        }
        self.headroom.marked_mut(mark).insert(uid.clone(), gated);
        vec![Key::Headroom(uid)]
    }

    pub fn remove_marked(&mut self, mark: Mark, uid: &str) -> Vec<Key> {
        let Some(gated) = self.headroom.marked_mut(mark).remove(uid) else { return Vec::new() };
        for claim in claims_of(&gated).filter(|_| mark == Mark::Gate) {
            remove_from(&mut self.headroom.gated_by_claim, &claim, uid);
        }
        vec![Key::Headroom(uid.to_owned())]
    }

    /// Takes the workload as our own write has left it.
    pub fn set_gated(&mut self, gated: &GatedWorkload) -> Vec<Key> {
        for mark in [Mark::Gate, Mark::Label] {
            self.set_marked(mark, gated.clone());
        }
        Vec::new()
    }

    pub fn set_headroom_pod(&mut self, pod: HeadroomPod) -> Vec<Key> {
        let known = self.headroom.pods.get(&pod.name);
        if known.is_some_and(|known| known.uid == pod.uid && known.resource_version >= pod.resource_version) {
            return Vec::new();
        }
        let uid = pod.workload_uid.clone();
        self.remove_headroom_pod(&pod.name);
        self.headroom.pods_by_workload.entry(uid.clone()).or_default().insert(pod.name.clone());
        self.headroom.pods.insert(pod.name.clone(), pod);
        vec![Key::Headroom(uid)]
    }

    /// Workloads with headroom pods that wait for this Mountpoint Pod.
    pub(super) fn headroom_keys_of_pod(&self, pod: &str) -> Vec<Key> {
        let attachments = self.attachments_in(self.attachments_by_pod.get(pod));
        self.headroom.keys_of(attachments.flat_map(|attachment| attachment.spec.workload_uids()))
    }

    /// What is known about a workload's headroom, and the claims that no volume of ours is bound to, as far as we know.
    /// `awaits_claims` is for live reads to tell.
    pub fn headroom_of(&self, uid: &str) -> (Headroom, Vec<ObjectName>) {
        let gated = self.headroom.gated(uid).cloned();
        let pods = self.headroom.pods_by_workload.get(uid).into_iter().flatten();
        let mut headroom = Headroom {
            is_on: self.headroom.is_on,
            gated,
            volumes: BTreeMap::new(),
            awaits_claims: false,
            refused: BTreeSet::new(),
            unschedulable: self.unschedulable(uid),
            pods: pods.filter_map(|name| self.headroom.pods.get(name)).cloned().collect(),
        };
        let mut unknown = Vec::new();
        for claim in headroom.gated.iter().filter(|gated| gated.has_gate).flat_map(claims_of) {
            match self.volume_by_claim.get(&claim).and_then(|name| self.volumes.get(name)) {
                // What is wrong with a volume is reported when its workload is scheduled.
                Some(volume) => headroom.volumes.extend(usable(volume)),
                None => unknown.push(claim),
            }
        }
        (headroom, unknown)
    }

    /// The workload's volumes whose Mountpoint Pod the scheduler finds no room for.
    fn unschedulable(&self, uid: &str) -> BTreeSet<String> {
        let attachments = self.attachments_in(self.attachments_by_workload.get(uid));
        let unschedulable = attachments.filter(|attachment| {
            let pod = attachment.spec.mountpoint_pod_of(uid).and_then(|name| self.pods.get(name));
            // Its headroom pod has what it lacks, whatever that is: both request the same.
            pod.is_some_and(|pod| !lacked_by_mountpoint_pod(pod).is_empty() && !pod.is_ending())
        });
        unschedulable.map(|attachment| attachment.spec.persistent_volume_name.clone()).collect()
    }
}

fn usable(volume: &S3Volume) -> Option<(String, Volume)> {
    let VolumePlan { volume: parsed, .. } = volume.plan().ok()?;
    Some((volume.name.clone(), parsed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::Workload;
    use crate::world::tests::{attachment, unscheduled, volume, workload};

    fn gated(version: u64) -> GatedWorkload {
        let workload = Workload { node: String::new(), ..workload("w") };
        GatedWorkload { workload, resource_version: version, has_gate: true, has_label: false }
    }

    fn headroom(volume: &str) -> HeadroomPod {
        HeadroomPod {
            name: format!("hr-{volume}"),
            uid: format!("hr-{volume}"),
            resource_version: 1,
            workload_uid: "w".into(),
            workload: Some(("ns".into(), "pod-w".into())),
            volume_name: volume.into(),
            terminating: false,
            has_ended: false,
        }
    }

    fn key() -> Vec<Key> {
        vec![Key::Headroom("w".into())]
    }

    fn world() -> World {
        let mut world = World::default();
        world.headroom.is_on = true;
        world
    }

    #[test]
    fn a_bound_volume_wakes_the_workload_that_waits_for_it() {
        let mut world = world();
        assert_eq!(world.set_marked(Mark::Gate, gated(1)), key());
        let (headroom, unknown) = world.headroom_of("w");
        assert_eq!((headroom.volumes.len(), unknown), (0, vec![("ns".to_owned(), "c".to_owned())]));
        let mut volume = volume("", "driver");
        volume.attributes.insert("bucketName".into(), "bucket".into());
        assert_eq!(world.set_volume(volume), key());
        let (headroom, unknown) = world.headroom_of("w");
        assert_eq!((headroom.volumes.len(), unknown.len()), (1, 0));
        world.remove_marked(Mark::Gate, "w");
        assert!(world.headroom.gated_by_claim.is_empty() && world.all_keys().is_empty());
    }

    #[test]
    fn an_invalid_volume_is_left_out_and_not_waited_for() {
        let mut world = world();
        world.set_marked(Mark::Gate, gated(1));
        world.set_volume(volume("", "driver"));
        let (headroom, unknown) = world.headroom_of("w");
        assert_eq!((headroom.volumes.len(), unknown.len()), (0, 0));
    }

    #[test]
    fn the_watch_that_is_ahead_counts() {
        let mut world = world();
        let labelled = GatedWorkload { has_label: true, ..gated(2) };
        world.set_marked(Mark::Gate, gated(1));
        world.set_gated(&labelled);
        assert_eq!(world.set_marked(Mark::Gate, gated(1)), [], "old news");
        assert!(world.headroom_of("w").0.gated.unwrap().has_label);
        world.set_gated(&GatedWorkload { has_gate: false, has_label: true, ..gated(3) });
        assert!(
            world.headroom.marked(Mark::Gate).is_empty()
                && world.headroom.marked(Mark::Label).contains_key("w")
        );
    }

    #[test]
    fn headroom_pods_are_looked_at_until_they_are_gone() {
        let mut world = world();
        assert_eq!(world.set_headroom_pod(headroom("pv")), key());
        assert_eq!(world.set_headroom_pod(headroom("pv")), []);
        assert_eq!(world.all_keys(), key(), "a later leader looks at it, too");
        world.mark_deleted("hr-pv", "hr-pv");
        assert!(world.headroom_of("w").0.pods[0].terminating);
        assert_eq!(world.remove_pod("hr-pv"), key());
        assert_eq!(world.all_keys(), []);
    }

    #[test]
    fn a_mountpoint_pod_without_room_wakes_the_workload_whose_headroom_pod_has_it() {
        let mut world = world();
        world.set_headroom_pod(headroom("pv"));
        world.set_attachment(attachment(1, "", "mp", &["w"]));
        let claim = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found";
        world.set_pod(unscheduled("mp", 1, claim));
        assert_eq!(
            world.headroom_of("w").0.unschedulable,
            BTreeSet::new(),
            "the volume of its cache is made"
        );
        let full = unscheduled("mp", 2, "0/1 nodes are available: 1 Insufficient cpu.");
        assert!(world.set_pod(full).contains(&key()[0]));
        assert_eq!(world.headroom_of("w").0.unschedulable, BTreeSet::from(["pv".to_owned()]));
    }
}
