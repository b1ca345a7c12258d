//! What the watches have told so far, with the indexes that decisions are gathered by. Every change answers the question
//! whose affairs it may have touched.

pub(crate) mod returning;
#[cfg(test)]
mod tests;
mod view;
mod wants;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use std::time::{Duration, Instant};

use contract::sharing::SharingKey;

pub use view::View;
use wants::{Want, source_of};

use crate::observed::{Attachment, MountpointPod, S3Volume, Workload};
use crate::provision::ledger::Ledger;

/// One unit of work. Two of the same kind and name are never handled at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A sharing key, by the name of its attachment.
    Group(String),
    /// A Mountpoint Pod that no attachment names.
    Pod(String),
    /// A workload, by UID, whose service account's role is asked for and not yet known.
    Role(String),
    /// A claim that a volume is to be made for, by namespace and name.
    Claim(String, String),
    /// A volume that was made for a claim.
    Volume(String),
}

impl Key {
    /// Whether it may wait for the S3 server.
    pub fn is_of_provisioning(&self) -> bool {
        match self {
            Self::Claim(..) | Self::Volume(_) => true,
            Self::Group(_) | Self::Pod(_) | Self::Role(_) => false,
        }
    }
}

/// Longer than the election takes to notice that a lease was lost (it waits up to 30 s between tries) and than a write
/// that another controller has begun may last (10 s).
const DOUBT_LASTS: Duration = Duration::from_secs(45);

/// (namespace, name)
pub type Claim = (String, String);

#[derive(Debug, Default)]
pub struct World {
    pub workloads: HashMap<String, Workload>,
    pub volumes: HashMap<String, S3Volume>,
    pub attachments: HashMap<String, Attachment>,
    /// Sorted: replacements of a pod are its neighbours.
    pub pods: BTreeMap<String, MountpointPod>,
    pub nodes: HashSet<String>,
    /// Since when no other controller can be at work, as far as we know; never, if nobody is elected.
    pub alone_from: Option<Instant>,
    /// Mountpoint Pods that a decision under way will mark or delete.
    pub retiring: HashSet<String>,
    /// What waits to be provisioned or deleted.
    pub provision: Ledger,
    /// Of workloads whose service account was looked up.
    roles: HashMap<String, String>,
    /// Mountpoint Pods that were there and vanished while an attachment names them.
    lost: BTreeSet<String>,
    /// Names of workloads that have left, as long as an attachment lists them: who confirms that they are gone must
    /// know where to look.
    departed: HashMap<String, Claim>,

    workloads_by_claim: HashMap<Claim, BTreeSet<String>>,
    volume_by_claim: HashMap<Claim, String>,
    volumes_by_handle: HashMap<String, BTreeSet<String>>,
    attachments_by_workload: HashMap<String, BTreeSet<String>>,
    attachments_by_pod: HashMap<String, BTreeSet<String>>,
    /// By the attachment that each pod was made for, whether it is there or not.
    pods_by_attachment: HashMap<String, BTreeSet<String>>,
    attachments_by_volume: HashMap<String, BTreeSet<String>>,
    attachments_by_group: HashMap<String, BTreeSet<String>>,
    group_of_attachment: HashMap<String, String>,
    wanting: HashMap<String, BTreeSet<String>>,
    wants: HashMap<String, Vec<Want>>,
}

impl World {
    /// Contact with the API server was lost: the lease may have passed to another, and caches may have gone back in time.
    pub fn doubt(&mut self) {
        self.alone_from = self.alone_from.map(|from| from.max(Instant::now() + DOUBT_LASTS));
    }

    pub fn is_alone(&self) -> bool {
        self.alone_from.is_some_and(|from| Instant::now() >= from)
    }

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
        keys.extend(self.rethink(&uid));
        keys
    }

    pub fn remove_workload(&mut self, uid: &str) -> Vec<Key> {
        let Some(workload) = self.workloads.remove(uid) else { return Vec::new() };
        self.roles.remove(uid);
        for claim in &workload.claims {
            remove_from(&mut self.workloads_by_claim, &(workload.namespace.clone(), claim.clone()), uid);
        }
        let mut keys = self.rethink(uid);
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
        keys.extend(claim.iter().flat_map(|claim| self.rethink_claim(claim)).collect::<Vec<_>>());
        keys
    }

    pub fn remove_volume(&mut self, name: &str) -> Vec<Key> {
        let Some(volume) = self.volumes.remove(name) else { return Vec::new() };
        remove_from(&mut self.volumes_by_handle, &volume.handle, name);
        let Some(claim) = volume.claim else { return Vec::new() };
        if self.volume_by_claim.get(&claim).is_some_and(|bound| bound == name) {
            self.volume_by_claim.remove(&claim);
        }
        self.rethink_claim(&claim)
    }

    pub fn set_attachment(&mut self, attachment: Attachment) -> Vec<Key> {
        let name = attachment.name.clone();
        let known = self.attachments.get(&name);
        // A watch may still be telling what was before our own last write.
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
        self.attachments.insert(name.clone(), attachment);
        self.regroup(&name);
        let mut keys = self.groups_of(&BTreeSet::from([name]));
        keys.extend(uids.iter().flat_map(|uid| self.rethink(uid)).collect::<Vec<_>>());
        keys.extend(before.iter().flat_map(|before| self.let_go(before)).collect::<Vec<_>>());
        keys
    }

    pub fn remove_attachment(&mut self, name: &str) -> Vec<Key> {
        let group = self.group_of_attachment.get(name).cloned().map(Key::Group);
        let Some(before) = self.unindex(name) else { return Vec::new() };
        group.into_iter().chain(self.let_go(&before)).collect()
    }

    fn unindex(&mut self, name: &str) -> Option<Attachment> {
        let attachment = self.attachments.remove(name)?;
        if let Some(group) = self.group_of_attachment.remove(name) {
            remove_from(&mut self.attachments_by_group, &group, name);
        }
        remove_from(&mut self.attachments_by_volume, &attachment.spec.persistent_volume_name, name);
        for pod in attachment.spec.mountpoint_pods.keys() {
            remove_from(&mut self.attachments_by_pod, pod, name);
        }
        for uid in attachment.spec.workload_uids() {
            remove_from(&mut self.attachments_by_workload, uid, name);
        }
        Some(attachment)
    }

    /// Whom an attachment named before and nobody names now.
    fn let_go(&mut self, before: &Attachment) -> Vec<Key> {
        let pods = before.spec.mountpoint_pods.keys().filter(|pod| !self.names(pod));
        let mut keys: Vec<Key> = pods.cloned().map(Key::Pod).collect();
        self.lost.retain(|name| self.attachments_by_pod.contains_key(name));
        for uid in before.spec.workload_uids() {
            if !self.attachments_by_workload.contains_key(uid) {
                self.departed.remove(uid);
                keys.extend(self.rethink(uid));
            }
        }
        keys
    }

    pub fn set_pod(&mut self, pod: MountpointPod) -> Vec<Key> {
        let known = self.pods.get(&pod.name);
        if known.is_some_and(|known| known.uid == pod.uid && known.resource_version >= pod.resource_version) {
            return Vec::new();
        }
        let name = pod.name.clone();
        self.lost.remove(&name);
        self.forget_pod(&name);
        if let Some(attachment) = &pod.attachment {
            self.pods_by_attachment.entry(attachment.clone()).or_default().insert(name.clone());
        }
        self.pods.insert(name.clone(), pod);
        self.keys_of_pod(&name)
    }

    /// We have deleted it; until the watch says so, nobody shall delete it again.
    pub fn expect_end_of_pod(&mut self, name: &str, uid: &str) -> Vec<Key> {
        if let Some(pod) = self.pods.get_mut(name).filter(|pod| pod.uid == uid) {
            pod.terminating = true;
        }
        Vec::new()
    }

    pub fn remove_pod(&mut self, name: &str) -> Vec<Key> {
        if !self.forget_pod(name) {
            return Vec::new();
        }
        if self.names(name) {
            self.lost.insert(name.to_owned());
        }
        self.keys_of_pod(name)
    }

    fn forget_pod(&mut self, name: &str) -> bool {
        let pod = self.pods.remove(name);
        if let Some(attachment) = pod.as_ref().and_then(|pod| pod.attachment.as_ref()) {
            remove_from(&mut self.pods_by_attachment, attachment, name);
        }
        pod.is_some()
    }

    pub fn set_node(&mut self, name: String) -> Vec<Key> {
        if self.nodes.contains(&name) {
            return Vec::new();
        }
        let mut keys = self.keys_on(&name);
        let wanted = self.wants.values().flatten().filter_map(|want| match want {
            Want::Group { name: group, key } if key.node == name => Some(Key::Group(group.clone())),
            _ => None,
        });
        keys.extend(wanted.collect::<Vec<_>>());
        self.nodes.insert(name);
        keys
    }

    pub fn remove_node(&mut self, name: &str) -> Vec<Key> {
        if self.nodes.remove(name) { self.keys_on(name) } else { Vec::new() }
    }

    fn keys_on(&self, node: &str) -> Vec<Key> {
        let attachments = self.attachments.values().filter(|attachment| attachment.spec.node_name == node);
        let attachments: BTreeSet<String> = attachments.map(|attachment| attachment.name.clone()).collect();
        let pods =
            self.pods.values().filter(|pod| pod.node.as_deref() == Some(node) && !self.names(&pod.name));
        self.groups_of(&attachments).into_iter().chain(pods.map(|pod| Key::Pod(pod.name.clone()))).collect()
    }

    pub fn set_role(&mut self, uid: &str, role: String) -> Vec<Key> {
        // It may have left while its role was asked for, and nobody would ever take this away.
        if !self.workloads.contains_key(uid) {
            return Vec::new();
        }
        self.roles.insert(uid.to_owned(), role);
        self.rethink(uid)
    }

    /// Everything there is to look at: on start, and once in a while for what nobody told us.
    pub fn all_keys(&self) -> Vec<Key> {
        let groups =
            self.attachments_by_group.keys().chain(self.wanting.keys()).map(|name| Key::Group(name.clone()));
        let unnamed = || self.pods.values().filter(|pod| !self.names(&pod.name));
        let pods = unnamed().map(|pod| Key::Pod(pod.name.clone()));
        // They may serve workloads whose attachment was deleted by hand.
        let bereft = unnamed().filter_map(|pod| pod.attachment.clone()).map(Key::Group);
        let asking = self.wants.iter().filter(|(_, wants)| wants.contains(&Want::Role));
        let roles = asking.map(|(uid, _)| Key::Role(uid.clone()));
        let all = groups.chain(bereft).chain(pods).chain(roles).chain(self.provision.keys());
        all.collect::<BTreeSet<_>>().into_iter().collect()
    }

    pub fn names(&self, pod: &str) -> bool {
        self.attachments_by_pod.contains_key(pod)
    }

    fn keys_of_pod(&self, name: &str) -> Vec<Key> {
        match self.attachments_by_pod.get(name) {
            Some(attachments) => self.groups_of(attachments),
            None => vec![Key::Pod(name.to_owned())],
        }
    }

    fn groups_of(&self, attachments: &BTreeSet<String>) -> Vec<Key> {
        attachments
            .iter()
            .filter_map(|name| self.group_of_attachment.get(name))
            .cloned()
            .map(Key::Group)
            .collect()
    }

    fn groups_listing(&self, uid: &str) -> Vec<Key> {
        self.attachments_by_workload
            .get(uid)
            .map(|attachments| self.groups_of(attachments))
            .unwrap_or_default()
    }

    fn key_of(&self, attachment: &Attachment) -> SharingKey {
        let volume = self.volumes.get(&attachment.spec.persistent_volume_name);
        SharingKey::of(&attachment.spec, volume.map(source_of).unwrap_or_default())
    }

    fn regroup(&mut self, attachment: &str) {
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

fn remove_from<K, Q>(index: &mut HashMap<K, BTreeSet<String>>, key: &Q, member: &str)
where
    K: std::borrow::Borrow<Q> + Eq + std::hash::Hash,
    Q: Eq + std::hash::Hash + ?Sized,
{
    if let Some(members) = index.get_mut(key) {
        members.remove(member);
        if members.is_empty() {
            index.remove(key);
        }
    }
}
