//! Workloads and volumes in the world.

use super::state::{World, remove_from};
use crate::key::Key;
use crate::observed::{S3Volume, Workload};

impl World {
    pub fn set_workload(&mut self, workload: Workload) -> Vec<Key> {
        let uid = workload.uid.clone();
        if self.workloads.get(&uid) == Some(&workload) {
            return Vec::new();
        }
        self.departed.remove(&uid);
        for claim in &workload.claims {
            let claim = (workload.namespace.clone(), claim.clone());
            self.workloads_by_claim.entry(claim).or_default().insert(uid.clone());
        }
        let mut keys = if workload.is_alive() { Vec::new() } else { self.groups_listing(&uid) };
        self.workloads.insert(uid.clone(), workload);
        keys.extend(self.recompute_demand(&uid));
        keys
    }

    pub fn remove_workload(&mut self, uid: &str) -> Vec<Key> {
        let Some(workload) = self.workloads.remove(uid) else { return Vec::new() };
        self.roles.remove(uid);
        for claim in &workload.claims {
            remove_from(&mut self.workloads_by_claim, &(workload.namespace.clone(), claim.clone()), uid);
        }
        let mut keys = self.recompute_demand(uid);
        if self.attachments_by_workload.contains_key(uid) {
            self.departed.insert(uid.to_owned(), (workload.namespace, workload.name));
        }
        keys.extend(self.groups_listing(uid));
        keys
    }

    pub fn set_volume(&mut self, volume: S3Volume) -> Vec<Key> {
        if self.volumes.get(&volume.name) == Some(&volume) {
            return Vec::new();
        }
        let name = volume.name.clone();
        let mut keys = self.remove_volume(&name);
        if let Some(claim) = &volume.claim {
            self.volume_by_claim.insert(claim.clone(), name.clone());
        }
        self.volumes_by_handle.entry(volume.handle.clone()).or_default().insert(name.clone());
        let claim = volume.claim.clone();
        self.volumes.insert(name.clone(), volume);
        // Attachments of older drivers do not say where their credentials come from; their volume does.
        let attachments = self.attachments_by_volume.get(&name).cloned().unwrap_or_default();
        for attachment in &attachments {
            self.regroup(attachment);
        }
        keys.extend(self.groups_of(&attachments));
        keys.extend(claim.iter().flat_map(|claim| self.recompute_demand_of_claim(claim)).collect::<Vec<_>>());
        keys.extend(claim.iter().flat_map(|claim| self.headroom.keys_of_claim(claim)));
        keys
    }

    pub fn remove_volume(&mut self, name: &str) -> Vec<Key> {
        let Some(volume) = self.volumes.remove(name) else { return Vec::new() };
        remove_from(&mut self.volumes_by_handle, &volume.handle, name);
        let Some(claim) = volume.claim else { return Vec::new() };
        if self.volume_by_claim.get(&claim).is_some_and(|bound| bound == name) {
            self.volume_by_claim.remove(&claim);
        }
        self.recompute_demand_of_claim(&claim)
    }
}
