//! Attachments in the world, and the sharing keys they belong to.

use std::collections::BTreeSet;

use contract::sharing::SharingKey;

use super::demand::source_of;
use super::state::{World, remove_from};
use crate::key::Key;
use crate::observed::Attachment;

impl World {
    pub fn set_attachment(&mut self, attachment: Attachment) -> Vec<Key> {
        let name = attachment.name.clone();
        let known = self.attachments.get(&name);
        // A watch may still report what was before our own last write.
        if known.is_some_and(|known| {
            known.uid == attachment.uid && known.resource_version >= attachment.resource_version
        }) {
            return Vec::new();
        }
        let before = self.unindex(&name);
        for uid in attachment.spec.workload_uids() {
            self.attachments_by_workload.entry(uid.to_owned()).or_default().insert(name.clone());
        }
        for pod in attachment.spec.mountpoint_pods.keys() {
            self.attachments_by_pod.entry(pod.clone()).or_default().insert(name.clone());
        }
        let volume = attachment.spec.persistent_volume_name.clone();
        self.attachments_by_volume.entry(volume).or_default().insert(name.clone());
        let uids: Vec<String> = attachment.spec.workload_uids().map(str::to_owned).collect();
        let node = attachment.spec.node_name.clone();
        self.attachments_by_node.entry(node.clone()).or_default().insert(name.clone());
        self.attachments.insert(name.clone(), attachment);
        self.regroup(&name);
        let mut keys = self.groups_of(&BTreeSet::from([name]));
        keys.extend(self.warm_key(&node).filter(|_| before.is_none()));
        keys.extend(self.headroom.keys_of(uids.iter().map(String::as_str)));
        keys.extend(uids.iter().flat_map(|uid| self.recompute_demand(uid)).collect::<Vec<_>>());
        keys.extend(before.iter().flat_map(|before| self.released_by(before)).collect::<Vec<_>>());
        keys
    }

    pub fn remove_attachment(&mut self, name: &str) -> Vec<Key> {
        let group = self.group_of_attachment.get(name).cloned().map(Key::Group);
        let Some(before) = self.unindex(name) else { return Vec::new() };
        group.into_iter().chain(self.released_by(&before)).collect()
    }

    fn unindex(&mut self, name: &str) -> Option<Attachment> {
        let attachment = self.attachments.remove(name)?;
        if let Some(group) = self.group_of_attachment.remove(name) {
            remove_from(&mut self.attachments_by_group, &group, name);
        }
        remove_from(&mut self.attachments_by_volume, &attachment.spec.persistent_volume_name, name);
        remove_from(&mut self.attachments_by_node, &attachment.spec.node_name, name);
        for pod in attachment.spec.mountpoint_pods.keys() {
            remove_from(&mut self.attachments_by_pod, pod, name);
        }
        for uid in attachment.spec.workload_uids() {
            remove_from(&mut self.attachments_by_workload, uid, name);
        }
        Some(attachment)
    }

    /// Keys of the pods and workloads that an attachment named before and that none names now.
    fn released_by(&mut self, before: &Attachment) -> Vec<Key> {
        let pods = before.spec.mountpoint_pods.keys().filter(|pod| !self.is_named(pod));
        let mut keys: Vec<Key> = pods.cloned().map(Key::Pod).collect();
        self.lost.retain(|name| self.attachments_by_pod.contains_key(name));
        for uid in before.spec.workload_uids() {
            if !self.attachments_by_workload.contains_key(uid) {
                self.departed.remove(uid);
                keys.extend(self.recompute_demand(uid));
            }
        }
        keys
    }

    pub(super) fn groups_of(&self, attachments: &BTreeSet<String>) -> Vec<Key> {
        attachments
            .iter()
            .filter_map(|name| self.group_of_attachment.get(name))
            .cloned()
            .map(Key::Group)
            .collect()
    }

    pub(super) fn groups_listing(&self, uid: &str) -> Vec<Key> {
        self.attachments_by_workload
            .get(uid)
            .map(|attachments| self.groups_of(attachments))
            .unwrap_or_default()
    }

    pub(super) fn key_of(&self, attachment: &Attachment) -> SharingKey {
        let volume = self.volumes.get(&attachment.spec.persistent_volume_name);
        SharingKey::of(&attachment.spec, volume.map(source_of).unwrap_or_default())
    }

    pub(super) fn regroup(&mut self, attachment: &str) {
        let Some(group) = self.attachments.get(attachment).map(|found| self.key_of(found).attachment_name())
        else {
            return;
        };
        if let Some(before) = self.group_of_attachment.insert(attachment.to_owned(), group.clone()) {
            remove_from(&mut self.attachments_by_group, &before, attachment);
        }
        self.attachments_by_group.entry(group).or_default().insert(attachment.to_owned());
    }
}
