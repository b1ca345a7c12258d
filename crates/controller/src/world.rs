//! What the watches have told so far, with the indexes that decisions are gathered by. Every change answers the question
//! whose affairs it may have touched.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use contract::sharing::{Identity, SharingKey};
use contract::volume::{AuthenticationSource, attribute};

use crate::observed::{Attachment, MountpointPod, S3Volume, Workload};

/// One unit of work. Two of the same kind and name are never handled at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A sharing key, by the name of its attachment.
    Group(String),
    /// A Mountpoint Pod that no attachment names.
    Pod(String),
    /// A service account whose role is asked for and not yet known.
    Role { namespace: String, account: String },
}

/// (namespace, name)
pub(crate) type Claim = (String, String);

#[derive(Debug, Default)]
pub struct World {
    pub workloads: HashMap<String, Workload>,
    pub volumes: HashMap<String, S3Volume>,
    pub attachments: HashMap<String, Attachment>,
    /// Sorted: replacements of a pod are its neighbours.
    pub pods: BTreeMap<String, MountpointPod>,
    pub nodes: HashSet<String>,
    /// Mountpoint Pods that a decision under way will mark or delete.
    pub retiring: HashSet<String>,
    /// Of service accounts that were looked up.
    roles: HashMap<(String, String), String>,
    /// Names of workloads that have left, as long as an attachment lists them: who confirms that they are gone must
    /// know where to look.
    pub(crate) departed: HashMap<String, Claim>,

    workloads_by_claim: HashMap<Claim, BTreeSet<String>>,
    volume_by_claim: HashMap<Claim, String>,
    pub(crate) volumes_by_handle: HashMap<String, BTreeSet<String>>,
    attachments_by_workload: HashMap<String, BTreeSet<String>>,
    attachments_by_pod: HashMap<String, BTreeSet<String>>,
    attachments_by_volume: HashMap<String, BTreeSet<String>>,
    pub(crate) attachments_by_group: HashMap<String, BTreeSet<String>>,
    group_of_attachment: HashMap<String, String>,
    pub(crate) wanting: HashMap<String, BTreeSet<String>>,
    pub(crate) wants: HashMap<String, Vec<Want>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Group { name: String, key: Box<SharingKey> },
    Role { namespace: String, account: String },
}

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
        keys.extend(self.rethink(&uid));
        keys
    }

    pub fn remove_workload(&mut self, uid: &str) -> Vec<Key> {
        let Some(workload) = self.workloads.remove(uid) else { return Vec::new() };
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
        if self.pods.remove(name).is_some() { self.keys_of_pod(name) } else { Vec::new() }
    }

    pub fn remove_node(&mut self, name: &str) -> Vec<Key> {
        if !self.nodes.remove(name) {
            return Vec::new();
        }
        let attachments = self.attachments.values().filter(|attachment| attachment.spec.node_name == name);
        let attachments: BTreeSet<String> = attachments.map(|attachment| attachment.name.clone()).collect();
        let pods = self.pods.values().filter(|pod| pod.node.as_deref() == Some(name));
        self.groups_of(&attachments).into_iter().chain(pods.map(|pod| Key::Pod(pod.name.clone()))).collect()
    }

    pub fn set_role(&mut self, namespace: &str, account: &str, role: String) -> Vec<Key> {
        self.roles.insert((namespace.to_owned(), account.to_owned()), role);
        let asking = self.asking_for_role(namespace, account);
        asking.iter().flat_map(|workload| self.rethink(&workload.uid)).collect()
    }

    pub fn asking_for_role(&self, namespace: &str, account: &str) -> Vec<Workload> {
        let role = Want::Role { namespace: namespace.to_owned(), account: account.to_owned() };
        let asking = self.wants.iter().filter(|(_, wants)| wants.contains(&role));
        asking.filter_map(|(uid, _)| self.workloads.get(uid)).cloned().collect()
    }

    /// Accounts change; whoever comes next asks again.
    pub fn forget_roles(&mut self) {
        self.roles.clear();
    }

    /// Everything there is to look at: on start, and once in a while for what nobody told us.
    pub fn all_keys(&self) -> Vec<Key> {
        let groups =
            self.attachments_by_group.keys().chain(self.wanting.keys()).map(|name| Key::Group(name.clone()));
        let pods =
            self.pods.keys().filter(|pod| !self.attachments_by_pod.contains_key(*pod)).cloned().map(Key::Pod);
        groups.chain(pods).collect::<BTreeSet<_>>().into_iter().collect()
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

    pub(crate) fn key_of(&self, attachment: &Attachment) -> SharingKey {
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

    fn rethink_claim(&mut self, claim: &Claim) -> Vec<Key> {
        let workloads = self.workloads_by_claim.get(claim).cloned().unwrap_or_default();
        workloads.iter().flat_map(|uid| self.rethink(uid)).collect()
    }

    /// Works out anew which keys a workload waits for; the answer touches those it waits for and those it did before.
    fn rethink(&mut self, uid: &str) -> Vec<Key> {
        let now = self.wants_of(uid);
        let before = self.wants.remove(uid).unwrap_or_default();
        for want in &before {
            if let Want::Group { name, .. } = want {
                remove_from(&mut self.wanting, name, uid);
            }
        }
        let changed = now.iter().filter(|want| !before.contains(want)).map(|want| match want {
            Want::Group { name, .. } => Key::Group(name.clone()),
            Want::Role { namespace, account } => {
                Key::Role { namespace: namespace.clone(), account: account.clone() }
            }
        });
        let keys = changed.collect();
        for want in &now {
            if let Want::Group { name, .. } = want {
                self.wanting.entry(name.clone()).or_default().insert(uid.to_owned());
            }
        }
        if !now.is_empty() {
            self.wants.insert(uid.to_owned(), now);
        }
        keys
    }

    fn wants_of(&self, uid: &str) -> Vec<Want> {
        let Some(workload) = self.workloads.get(uid).filter(|workload| workload.awaits_volumes()) else {
            return Vec::new();
        };
        let claims = workload.claims.iter().map(|claim| (workload.namespace.clone(), claim.clone()));
        let volumes = claims.filter_map(|claim| self.volumes.get(self.volume_by_claim.get(&claim)?));
        // By UID first: a volume that was edited since must not attach its workload a second time.
        let unattached = volumes.filter(|volume| !self.is_attached(uid, &volume.name));
        unattached.map(|volume| self.want(workload, volume)).collect()
    }

    fn is_attached(&self, uid: &str, volume: &str) -> bool {
        let attachments = self.attachments_by_workload.get(uid).into_iter().flatten();
        let mut attachments = attachments.filter_map(|name| self.attachments.get(name));
        attachments.any(|attachment| attachment.spec.persistent_volume_name == volume)
    }

    fn want(&self, workload: &Workload, volume: &S3Volume) -> Want {
        let (namespace, account) = (workload.namespace.clone(), workload.service_account.clone());
        let identity = match source_of(volume) {
            AuthenticationSource::Driver => Identity::Driver,
            AuthenticationSource::Secret => Identity::Secret,
            AuthenticationSource::Pod => match self.roles.get(&(namespace.clone(), account.clone())) {
                Some(role) => Identity::Pod { namespace, service_account: account, role: role.clone() },
                None => return Want::Role { namespace, account },
            },
        };
        let key = SharingKey {
            node: workload.node.clone(),
            volume_name: volume.name.clone(),
            volume_id: volume.handle.clone(),
            mount_options: volume.mount_options.join(","),
            fs_group: workload.fs_group.clone(),
            identity,
        };
        Want::Group { name: key.attachment_name(), key: Box::new(key) }
    }
}

/// What the volume says; what it says wrongly is refused where the volume is looked at whole.
fn source_of(volume: &S3Volume) -> AuthenticationSource {
    let text = volume.attributes.get(attribute::AUTHENTICATION_SOURCE).map_or("", String::as_str);
    AuthenticationSource::parse(text).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::Phase;
    use contract::attachment::{AttachmentSpec, WorkloadAttachment};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn workload(uid: &str) -> Workload {
        Workload {
            uid: uid.into(),
            namespace: "ns".into(),
            name: format!("pod-{uid}"),
            node: "n".into(),
            fs_group: String::new(),
            service_account: "sa".into(),
            claims: vec!["c".into()],
            phase: Phase::Pending,
            terminating: false,
        }
    }

    fn volume(options: &str, source: &str) -> S3Volume {
        S3Volume {
            name: "pv".into(),
            handle: "h".into(),
            attributes: BTreeMap::from([("authenticationSource".into(), source.into())]),
            mount_options: vec![options.into()],
            claim: Some(("ns".into(), "c".into())),
        }
    }

    /// As another driver writes it: under a name of its own, without the source of credentials.
    fn attachment(version: u64, options: &str, pod: &str, uids: &[&str]) -> Attachment {
        let workloads =
            uids.iter().map(|uid| WorkloadAttachment::new(uid, Time(jiff::Timestamp::UNIX_EPOCH))).collect();
        let spec = AttachmentSpec {
            node_name: "n".into(),
            persistent_volume_name: "pv".into(),
            volume_id: "h".into(),
            mount_options: options.into(),
            mountpoint_pods: BTreeMap::from([(pod.to_owned(), workloads)]),
            ..AttachmentSpec::default()
        };
        Attachment {
            name: "a".into(),
            uid: "a".into(),
            resource_version: version,
            spec,
            conditions: vec![],
            terminating: false,
        }
    }

    fn groups(keys: &[Key]) -> Vec<&str> {
        keys.iter()
            .filter_map(|key| if let Key::Group(name) = key { Some(name.as_str()) } else { None })
            .collect()
    }

    #[test]
    fn whichever_comes_last_makes_the_workload_want() {
        let (mut one, mut other) = (World::default(), World::default());
        assert_eq!(one.set_workload(workload("w")), []);
        let late_volume = one.set_volume(volume("", "driver"));
        assert_eq!(other.set_volume(volume("", "driver")), []);
        let late_workload = other.set_workload(workload("w"));
        assert_eq!(late_volume, late_workload);
        let view = one.view(groups(&late_volume)[0]).unwrap();
        assert_eq!(view.wanting, [workload("w")]);
    }

    #[test]
    fn an_attached_workload_wants_nothing_even_if_its_volume_was_edited() {
        let mut world = World::default();
        world.set_volume(volume("uid=1", "driver"));
        world.set_workload(workload("w"));
        world.set_attachment(attachment(1, "uid=1", "mp", &["w"]));
        let keys = world.set_volume(volume("uid=2", "driver"));
        let wanting: Vec<_> =
            groups(&keys).iter().filter_map(|name| world.view(name)).flat_map(|view| view.wanting).collect();
        assert_eq!(wanting, []);
    }

    #[test]
    fn an_unrecorded_source_is_the_volumes() {
        let mut world = World::default();
        world.set_attachment(attachment(1, "uid=1", "mp", &["other"]));
        world.set_volume(volume("uid=1", "secret"));
        let keys = world.set_workload(workload("w"));
        let view = world.view(groups(&keys)[0]).unwrap();
        assert_eq!((view.attachments.len(), view.wanting.len()), (1, 1), "the workload finds the attachment");
    }

    #[test]
    fn whoever_leaves_is_suspected_and_can_be_looked_up() {
        let mut world = World::default();
        world.set_volume(volume("", "driver"));
        world.set_workload(workload("w"));
        world.set_attachment(attachment(1, "", "mp", &["w", "unknown"]));
        let keys = world.remove_workload("w");
        // Another write to the attachment in between does not make us forget where it was.
        world.set_attachment(attachment(2, "", "mp", &["w", "unknown"]));
        let view = world.view(groups(&keys)[0]).unwrap();
        let place = ("ns".to_owned(), "pod-w".to_owned());
        assert_eq!(view.suspects, BTreeMap::from([("w".into(), Some(place)), ("unknown".into(), None)]));
    }

    #[test]
    fn old_news_is_no_news() {
        let mut world = World::default();
        world.set_attachment(attachment(5, "", "mp-2", &["w"]));
        assert_eq!(world.set_attachment(attachment(4, "", "mp-1", &["w"])), []);
        assert!(world.names("mp-2") && !world.names("mp-1"));
        let keys = world.set_attachment(attachment(6, "", "mp-3", &["w"]));
        assert!(keys.contains(&Key::Pod("mp-2".into())), "nobody names it any more: {keys:?}");
    }

    #[test]
    fn roles_are_asked_for_once_and_then_part_of_the_key() {
        let mut world = World::default();
        world.set_volume(volume("", "pod"));
        let asked = world.set_workload(workload("w"));
        assert_eq!(asked, [Key::Role { namespace: "ns".into(), account: "sa".into() }]);
        let keys = world.set_role("ns", "sa", "arn".into());
        let view = world.view(groups(&keys)[0]).unwrap();
        let identity =
            Identity::Pod { namespace: "ns".into(), service_account: "sa".into(), role: "arn".into() };
        assert_eq!(view.key.identity, identity);
    }
}
