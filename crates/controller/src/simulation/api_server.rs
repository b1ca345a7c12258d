//! The API server and the nodes, as far as decisions can tell.

use std::collections::{BTreeMap, BTreeSet};

use contract::attachment::AttachmentSpec;
use contract::sharing::{Identity, SharingKey};

use crate::observed::{Attachment, MountpointPod, Phase};
use crate::step::Step;

pub(super) const VERSION: &str = "1";

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Workload {
    /// Which of the two nodes.
    pub(super) node: usize,
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
    /// How often the volume's mount options were edited.
    pub(super) edition: usize,
}

impl Server {
    pub(super) fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    pub(super) fn key(node: usize, edition: usize) -> SharingKey {
        SharingKey {
            node: format!("node-{node}"),
            volume_name: "pv".into(),
            volume_id: "bucket".into(),
            mount_options: format!("uid={edition}"),
            fs_group: String::new(),
            identity: Identity::Driver,
        }
    }

    pub(super) fn key_of(spec: &AttachmentSpec) -> SharingKey {
        SharingKey::of(spec, contract::volume::AuthenticationSource::Driver)
    }

    /// Every key that an attachment has or a workload may want.
    pub(super) fn keys(&self) -> Vec<SharingKey> {
        let wanted = (0..2).map(|node| Self::key(node, self.edition));
        let held = self.attachments.values().map(|attachment| Self::key_of(&attachment.spec));
        wanted.chain(held).collect::<BTreeSet<_>>().into_iter().collect()
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
            Step::CreatePod { name, attachment, workload_uid } => {
                if let Some(pod) = self.pods.get(&name) {
                    return pod.attachment.as_ref() == Some(&attachment) && !pod.is_ending();
                }
                let version = self.next();
                let pod = MountpointPod {
                    name: name.clone(),
                    uid: format!("p{version}"),
                    resource_version: version,
                    node: None,
                    phase: Phase::Pending,
                    created: None,
                    terminating: false,
                    started: false,
                    needs_unmount: false,
                    no_new_workload: false,
                    driver_version: VERSION.into(),
                    attachment: Some(attachment),
                    volume_name: Some("pv".into()),
                    workload_uid: Some(workload_uid),
                    authentication: None,
                    cache_mebibytes: None,
                    start_failure: None,
                };
                self.pods.insert(name, pod);
                true
            }
            Step::MarkUnmount { name, uid } => match self.pods.get_mut(&name) {
                Some(pod) if pod.uid == uid => {
                    pod.needs_unmount = true;
                    true
                }
                _ => false,
            },
            Step::SetCondition { .. } => unreachable!("a decision does not write conditions"),
            Step::DeletePod { name, uid, by_force } => match self.pods.get_mut(&name) {
                Some(pod) if pod.uid == uid => {
                    if by_force || !pod.started || matches!(pod.phase, Phase::Succeeded | Phase::Failed) {
                        self.pods.remove(&name);
                    } else {
                        pod.terminating = true;
                    }
                    true
                }
                _ => false,
            },
        }
    }

    /// Applies in order until one fails or `limit` is reached.
    pub(super) fn apply_some(&mut self, steps: &[Step], limit: usize) {
        let _ = steps.iter().take(limit).all(|step| {
            let applied = self.apply(step);
            self.check();
            applied
        });
    }
}
