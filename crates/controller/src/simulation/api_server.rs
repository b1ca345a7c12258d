//! The API server and the nodes, as far as decisions can tell.

use std::collections::{BTreeMap, BTreeSet};

use contract::attachment::AttachmentSpec;
use contract::authentication::AuthenticationSource;
use contract::mountpoint_pod::Warm;
use contract::sharing::{Identity, SharingKey};

use crate::conditions;
use crate::group::Group;
use crate::observed::{Attachment, MountpointPod, Phase, created};
use crate::step::Step;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Workload {
    /// Which of the two nodes.
    pub(super) node: usize,
    /// Which of the two volumes, which compete for warm pods.
    pub(super) volume: usize,
    pub(super) alive: bool,
    pub(super) waits: bool,
}

/// The API server and the nodes, as far as decisions can tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Server {
    pub(super) version: u64,
    pub(super) attachments: BTreeMap<String, Attachment>,
    pub(super) pods: BTreeMap<String, MountpointPod>,
    pub(super) workloads: BTreeMap<String, Workload>,
    pub(super) vanished: BTreeSet<usize>,
    /// How often the mount options of the volumes were edited.
    pub(super) edition: usize,
    /// How often the driver was upgraded.
    pub(super) driver: usize,
}

impl Server {
    pub(super) fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    pub(super) fn key(node: usize, volume: usize, edition: usize) -> SharingKey {
        SharingKey {
            node: format!("node-{node}"),
            volume_name: format!("pv-{volume}"),
            volume_id: format!("bucket-{volume}"),
            mount_options: format!("uid={edition}"),
            fs_group: String::new(),
            identity: Identity::Driver,
        }
    }

    pub(super) fn key_of(spec: &AttachmentSpec) -> SharingKey {
        SharingKey::of(spec, AuthenticationSource::Driver)
    }

    /// Every key that an attachment has or a workload may want.
    pub(super) fn keys(&self) -> Vec<SharingKey> {
        let wanted = Self::keys_of_edition(self.edition);
        let held = self.attachments.values().map(|attachment| Self::key_of(&attachment.spec));
        wanted.chain(held).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn keys_of_edition(edition: usize) -> impl Iterator<Item = SharingKey> {
        (0..2).flat_map(move |node| (0..2).map(move |volume| Self::key(node, volume, edition)))
    }

    /// The volume of the attachment with this name, which may not be there yet.
    fn volume_of(&self, attachment: &str) -> Option<String> {
        let mut keys = (0..=self.edition).flat_map(Self::keys_of_edition);
        keys.find(|key| key.attachment_name() == attachment).map(|key| key.volume_name)
    }

    pub(super) fn lists(&self, uid: &str) -> usize {
        let all = self.attachments.values().flat_map(|attachment| attachment.spec.workload_uids());
        all.filter(|listed| *listed == uid).count()
    }

    pub(super) fn names(&self, pod: &str) -> bool {
        self.attachments.values().any(|attachment| attachment.spec.mountpoint_pods.contains_key(pod))
    }

    /// As the API server would take it; `false` for a conflict.
    pub(super) fn apply(&mut self, step: &Step) -> bool {
        match step.clone() {
            Step::CreateAttachment { name, spec } => {
                if self.attachments.contains_key(&name) {
                    return false;
                }
                let version = self.next();
                let (uid, resource_version) = (format!("a{version}"), version);
                let made = Attachment {
                    name: name.clone(),
                    uid,
                    resource_version,
                    spec: *spec,
                    conditions: vec![],
                    terminating: false,
                };
                self.attachments.insert(name, made);
                true
            }
            Step::UpdateAttachment { name, resource_version, entries } => {
                let version = self.next();
                let Some(attachment) = self.attachments.get_mut(&name) else { return false };
                if attachment.resource_version != resource_version {
                    return false;
                }
                for (pod, workloads) in entries {
                    match workloads {
                        Some(workloads) => attachment.spec.mountpoint_pods.insert(pod, workloads),
                        None => attachment.spec.mountpoint_pods.remove(&pod),
                    };
                }
                attachment.resource_version = version;
                true
            }
            Step::DeleteAttachment { name, uid, resource_version } => {
                let current = self.attachments.get(&name);
                let same = current
                    .is_some_and(|found| found.uid == uid && found.resource_version == resource_version);
                if same {
                    self.attachments.remove(&name);
                }
                same
            }
            Step::SetCondition { attachment, condition } => {
                let version = self.next();
                let Some(attachment) = self.attachments.get_mut(&attachment) else { return false };
                attachment.conditions = vec![*condition];
                attachment.resource_version = version;
                true
            }
            step => self.apply_to_pod(step),
        }
    }

    fn apply_to_pod(&mut self, step: Step) -> bool {
        match step {
            Step::CreatePod { name, attachment, workload_uid, .. } => {
                if let Some(pod) = self.pods.get(&name) {
                    return pod.attachment.as_ref() == Some(&attachment) && !pod.is_ending();
                }
                let volume_name = self.volume_of(&attachment);
                let (attachment, workload_uid) = (Some(attachment), Some(workload_uid));
                let authentication = self.recorded_by_this_version();
                let new = self.new_pod(&name);
                let pod = MountpointPod { attachment, volume_name, workload_uid, authentication, ..new };
                self.pods.insert(name, pod);
                true
            }
            Step::CreateWarmPod { name, node, .. } => {
                let warm = Some(Warm { node, shape: self.shape() });
                let pod = MountpointPod { warm, ..self.new_pod(&name) };
                self.pods.insert(name, pod).is_none()
            }
            Step::ClaimPod { name, resource_version, attachment, workload_uid, .. } => {
                let Some(pod) = self.pods.get(&name).filter(|pod| pod.resource_version == resource_version)
                else {
                    return false;
                };
                assert!(pod.warm.is_some() && !pod.is_ending(), "claimed: {pod:?}");
                let authentication = self.recorded_by_this_version();
                let volume_name = self.volume_of(&attachment);
                self.change(&name, |pod| {
                    pod.warm = None;
                    pod.claimed = true;
                    pod.attachment = Some(attachment);
                    pod.volume_name = volume_name;
                    pod.workload_uid = Some(workload_uid);
                    pod.authentication = authentication;
                });
                true
            }
            Step::DeleteWarmPod { name, uid, resource_version, by_force } => {
                let Some(pod) = self.pods.get(&name).filter(|pod| pod.resource_version == resource_version)
                else {
                    return false;
                };
                assert!(pod.warm.is_some(), "{pod:?} may serve");
                self.apply_to_pod(Step::DeletePod { name, uid, by_force })
            }
            Step::MarkUnmount { name, uid } => {
                let is_same = self.pods.get(&name).is_some_and(|pod| pod.uid == uid);
                self.change(&name, |pod| pod.needs_unmount |= is_same);
                is_same
            }
            Step::RecordAuthentication { name, uid, source } => {
                let is_same = self.pods.get(&name).is_some_and(|pod| pod.uid == uid);
                if is_same {
                    self.change(&name, |pod| pod.authentication = Some(source));
                }
                is_same
            }
            Step::DeletePod { name, uid, by_force } => {
                let Some(pod) = self.pods.get(&name).filter(|pod| pod.uid == uid) else { return false };
                if by_force || !pod.started || matches!(pod.phase, Phase::Succeeded | Phase::Failed) {
                    self.pods.remove(&name);
                } else {
                    self.change(&name, |pod| pod.terminating = true);
                }
                true
            }
            other => unreachable!("{other:?} is not about a pod"),
        }
    }

    /// Every change makes a claim that was decided before fail.
    pub(super) fn change(&mut self, pod: &str, change: impl FnOnce(&mut MountpointPod)) {
        let version = self.next();
        if let Some(pod) = self.pods.get_mut(pod) {
            pod.resource_version = version;
            change(pod);
        }
    }

    /// Of the pods that a controller of this version makes.
    pub(super) fn shape(&self) -> String {
        format!("shape of version {}", self.driver)
    }

    /// The first one recorded nothing.
    fn recorded_by_this_version(&self) -> Option<AuthenticationSource> {
        (self.driver > 0).then_some(AuthenticationSource::Driver)
    }

    fn new_pod(&mut self, name: &str) -> MountpointPod {
        let resource_version = self.next();
        MountpointPod {
            uid: format!("p{resource_version}"),
            resource_version,
            driver_version: self.driver.to_string(),
            ..created(name)
        }
    }

    /// As the reconciler does: if the warm pod can no longer be claimed, it goes on without it, and in the end it writes conditions.
    /// It stops after `limit` steps.
    pub(super) fn write(&mut self, mut group: Group, limit: usize) {
        let steps = group.decide();
        let mut applied = self.apply_some(&steps, limit);
        if applied < limit && steps.get(applied).is_some_and(Step::claims) {
            group.warm = None;
            applied += self.apply_some(&group.decide(), limit - applied);
        }
        let is_of_key = |attachment: &&Attachment| Self::key_of(&attachment.spec) == group.key;
        let attachments: Vec<Attachment> = self.attachments.values().filter(is_of_key).cloned().collect();
        let conditions = conditions::changes("ns", &attachments, &self.pods, None, &group.now);
        self.apply_some(&conditions, limit - applied);
    }

    /// Whether the attachments of claimed pods that serve say so.
    pub(super) fn claims_are_said(&self) -> bool {
        self.attachments.values().all(|attachment| {
            let named = attachment.spec.mountpoint_pods.keys();
            let pods: Vec<&MountpointPod> = named.filter_map(|name| self.pods.get(name)).collect();
            let is_claimed = pods.iter().any(|pod| pod.claimed);
            let serves = pods.iter().all(|pod| pod.phase == Phase::Running);
            let reasons = attachment.conditions.iter().map(|condition| condition.reason.as_str());
            !is_claimed || !serves || reasons.eq(["WarmMountpointPodClaimed"])
        })
    }

    /// Applies in order until one fails or `limit` is reached, and returns how many were applied.
    fn apply_some(&mut self, steps: &[Step], limit: usize) -> usize {
        let applies = |step: &&Step| {
            let applied = self.apply(step);
            self.check();
            applied
        };
        steps.iter().take(limit).take_while(applies).count()
    }
}
