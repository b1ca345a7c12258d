//! Mountpoint Pods, nodes and roles in the world.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::state::{Demand, World, remove_from};
use crate::key::Key;
use crate::observed::{MountpointPod, Phase};
use crate::room::lacked_by_mountpoint_pod;
use crate::upgrade::{Assigned, NodeUpgrade};

impl World {
    pub fn set_pod(&mut self, pod: MountpointPod) -> Vec<Key> {
        let known = self.pods.get(&pod.name);
        if known.is_some_and(|known| known.uid == pod.uid && known.resource_version >= pod.resource_version) {
            return Vec::new();
        }
        let name = pod.name.clone();
        self.lost.remove(&name);
        let before = self.forget_pod(&name);
        let has_started = before.as_ref().is_some_and(|before| before.phase == Phase::Pending)
            && pod.phase != Phase::Pending;
        let was_warm_on = before.and_then(|before| self.unindex_warm(&before));
        // One that is claimed leaves a place to fill.
        let claimed = was_warm_on.filter(|_| pod.warm.is_none()).map(Key::WarmPods);
        let unplaced = self.index_warm(&pod);
        if let Some(attachment) = &pod.attachment {
            self.pods_by_attachment.entry(attachment.clone()).or_default().insert(name.clone());
        }
        let has_room = lacked_by_mountpoint_pod(&pod).is_empty();
        let headroom = if has_room { Vec::new() } else { self.headroom_keys_of_pod(&name) };
        self.pods.insert(name.clone(), pod);
        // The next warm pod waits for that.
        let home = self.attachments_in(self.attachments_by_pod.get(&name)).next().filter(|_| has_started);
        let started = home.and_then(|attachment| self.warm_key(&attachment.spec.node_name));
        let keys = self.keys_of_pod(&name).into_iter().chain(claimed).chain(unplaced);
        keys.chain(headroom).chain(started).collect()
    }

    /// It was deleted; until the watch shows that, it must not be deleted again.
    pub fn mark_deleted(&mut self, name: &str, uid: &str) -> Vec<Key> {
        if let Some(pod) = self.pods.get_mut(name).filter(|pod| pod.uid == uid) {
            pod.terminating = true;
        }
        self.headroom.mark_deleted(name, uid);
        Vec::new()
    }

    pub fn remove_pod(&mut self, name: &str) -> Vec<Key> {
        if let Some(key) = self.remove_headroom_pod(name) {
            return vec![key];
        }
        let keys = self.keys_of_pod(name);
        let Some(pod) = self.forget_pod(name) else { return Vec::new() };
        self.unindex_warm(&pod);
        if self.is_named(name) {
            self.lost.insert(name.to_owned());
        }
        keys
    }

    fn forget_pod(&mut self, name: &str) -> Option<MountpointPod> {
        let pod = self.pods.remove(name)?;
        if let Some(attachment) = &pod.attachment {
            remove_from(&mut self.pods_by_attachment, attachment, name);
        }
        Some(pod)
    }

    pub fn set_node(&mut self, name: String) -> Vec<Key> {
        if self.nodes.contains(&name) {
            return Vec::new();
        }
        let mut keys = self.keys_on(&name);
        let waiting = self.demand.values().flatten().filter_map(|demand| match demand {
            Demand::Group { name: group, key } if key.node == name => Some(Key::Group(group.clone())),
            _ => None,
        });
        keys.extend(waiting.collect::<Vec<_>>());
        self.nodes.insert(name);
        keys
    }

    pub fn remove_node(&mut self, name: &str) -> Vec<Key> {
        self.forget_node(name);
        if self.nodes.remove(name) { self.keys_on(name) } else { Vec::new() }
    }

    fn keys_on(&self, node: &str) -> Vec<Key> {
        let pods = self.pods.values().filter(|pod| pod.node.as_deref() == Some(node) && self.is_unnamed(pod));
        let pods = pods.map(|pod| Key::Pod(pod.name.clone()));
        let attachments = self.attachments_by_node.get(node).map(|names| self.groups_of(names));
        attachments.into_iter().flatten().chain(pods).chain(self.warm_key(node)).collect()
    }

    pub fn set_role(&mut self, uid: &str, role: String) -> Vec<Key> {
        // It may have left while its role was read, and the entry would stay forever.
        if !self.workloads.contains_key(uid) {
            return Vec::new();
        }
        self.roles.insert(uid.to_owned(), role);
        self.recompute_demand(uid)
    }

    /// Everything there is to look at: on becoming leader, and once in a while in case a change was missed.
    pub fn all_keys(&self) -> Vec<Key> {
        let groups =
            self.attachments_by_group.keys().chain(self.waiting.keys()).map(|name| Key::Group(name.clone()));
        let unnamed = || self.pods.values().filter(|pod| self.is_unnamed(pod));
        let pods = unnamed().map(|pod| Key::Pod(pod.name.clone()));
        // They may serve workloads whose attachment was deleted by hand.
        let groups_without_attachment = unnamed().filter_map(|pod| pod.attachment.clone()).map(Key::Group);
        let asking = self.demand.iter().filter(|(_, demand)| demand.contains(&Demand::Role));
        let roles = asking.map(|(uid, _)| Key::Role(uid.clone()));
        let all = groups
            .chain(groups_without_attachment)
            .chain(pods)
            .chain(roles)
            .chain(self.warm_keys())
            .chain(self.headroom.keys());
        all.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Reserves the node for one mount that moves to this version, if it is the turn of another one.
    pub fn begin_upgrade(&mut self, node: &str, driver_version: &str, now: &Time) -> bool {
        let attachments = self.attachments_on(node).map(|attachment| Assigned {
            named: attachment.spec.mountpoint_pods.keys().map(|name| self.pods.get(name)).collect(),
            unnamed: self.unnamed_of(&attachment.name).collect(),
        });
        let attachments = attachments.collect();
        let may_go_on = NodeUpgrade { now, driver_version, attachments }.may_go_on();
        may_go_on && self.upgrading.insert(node.to_owned())
    }

    /// Those that were created for the attachment.
    fn unnamed_of(&self, attachment: &str) -> impl Iterator<Item = &MountpointPod> {
        let created = self.pods_by_attachment.get(attachment).into_iter().flatten();
        created.filter_map(|name| self.pods.get(name)).filter(|pod| self.is_unnamed(pod))
    }

    pub fn is_named(&self, pod: &str) -> bool {
        self.attachments_by_pod.contains_key(pod)
    }

    /// Whether it is left over: neither serving nor kept ready.
    pub fn is_unnamed(&self, pod: &MountpointPod) -> bool {
        pod.warm.is_none() && !self.is_named(&pod.name)
    }

    fn keys_of_pod(&self, name: &str) -> Vec<Key> {
        match self.attachments_by_pod.get(name) {
            Some(attachments) => self.groups_of(attachments),
            None => match self.pods.get(name).and_then(|pod| pod.warm.as_ref()) {
                Some(warm) => vec![Key::WarmPods(warm.node.clone())],
                None => vec![Key::Pod(name.to_owned())],
            },
        }
    }
}
