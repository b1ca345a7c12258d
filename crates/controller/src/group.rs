//! The decision about one sharing key: who is served by which Mountpoint Pod, from what is there now.
//!
//! One rule heals every crash: *what an attachment names exists and is healthy; what no attachment names is unmounted*.
//! So attachments are always written first, and pods are made true to them afterwards.

use std::collections::{BTreeMap, BTreeSet};

use contract::attachment::{AttachmentSpec, WorkloadAttachment};
use contract::names::{mountpoint_pod, replacement};
use contract::sharing::SharingKey;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::observed::{Attachment, MountpointPod, Phase};
use crate::step::Step;

/// Everything a decision looks at.
#[derive(Clone, Debug)]
pub struct Group {
    pub key: SharingKey,
    pub now: Time,
    pub driver_version: String,
    /// Normally one or none. More, under foreign names, when another driver wrote them.
    pub attachments: Vec<Attachment>,
    /// UIDs of workloads that wait for this key and that no attachment of the volume lists.
    pub wanting: Vec<String>,
    /// Listed UIDs that are known, from a live read, to do no more I/O.
    pub gone: BTreeSet<String>,
    /// The Mountpoint Pods there are, by name; all that attachments name, and whichever names are taken.
    pub pods: BTreeMap<String, MountpointPod>,
    /// Known, from a live read, to be no more.
    pub node_gone: bool,
}

/// An attachment as it shall be.
struct Draft<'a> {
    current: Option<&'a Attachment>,
    entries: BTreeMap<String, Vec<WorkloadAttachment>>,
}

impl Group {
    pub fn decide(&self) -> Vec<Step> {
        if self.node_gone {
            // A node may be registered anew while its pods run on: as long as the cluster keeps them, so do we.
            let mut listed = self.attachments.iter().flat_map(|attachment| attachment.spec.workload_uids());
            return if listed.all(|uid| self.gone.contains(uid)) { self.abandon() } else { Vec::new() };
        }
        let mut drafts: Vec<Draft<'_>> = self
            .attachments
            .iter()
            .filter(|attachment| !attachment.terminating)
            .map(|attachment| Draft {
                current: Some(attachment),
                entries: attachment.spec.mountpoint_pods.clone(),
            })
            .collect();
        self.drop_gone(&mut drafts);
        let homeless = self.evict_broken(&mut drafts);
        self.settle(&mut drafts, homeless);
        for draft in &mut drafts {
            draft.entries.retain(|_, workloads| !workloads.is_empty());
        }
        self.write(&drafts)
    }

    /// Nothing on a node that is gone can be unmounted in order, and nothing needs to be.
    fn abandon(&self) -> Vec<Step> {
        let attachments = self.attachments.iter().filter(|attachment| !attachment.terminating).map(delete);
        let named = self.attachments.iter().flat_map(|attachment| attachment.spec.mountpoint_pods.keys());
        let pods = named.filter_map(|name| self.pods.get(name)).map(|pod| Step::DeletePod {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            by_force: true,
        });
        attachments.chain(pods).collect()
    }

    /// Also leaves each workload in one place only, its oldest, should another driver have listed it twice.
    fn drop_gone(&self, drafts: &mut [Draft<'_>]) {
        let mut places: BTreeMap<String, (Time, usize, String)> = BTreeMap::new();
        for (index, draft) in drafts.iter().enumerate() {
            for (pod, workloads) in &draft.entries {
                for workload in workloads {
                    let place = (workload.attachment_time.clone(), index, pod.clone());
                    let known =
                        places.entry(workload.workload_pod_uid.clone()).or_insert_with(|| place.clone());
                    if place < *known {
                        *known = place;
                    }
                }
            }
        }
        for (index, draft) in drafts.iter_mut().enumerate() {
            for (pod, workloads) in &mut draft.entries {
                let mut seen = BTreeSet::new();
                workloads.retain(|workload| {
                    let uid = &workload.workload_pod_uid;
                    let here = places.get(uid).is_some_and(|(_, at, name)| *at == index && name == pod);
                    here && !self.gone.contains(uid) && seen.insert(uid.clone())
                });
            }
        }
    }

    /// Takes the workloads out of entries whose pod will serve no more, with the name their next pod derives from.
    fn evict_broken(&self, drafts: &mut [Draft<'_>]) -> Vec<(String, WorkloadAttachment)> {
        let mut homeless = Vec::new();
        for draft in drafts {
            for (name, workloads) in &mut draft.entries {
                if self.pods.get(name).is_some_and(is_broken) {
                    homeless.extend(workloads.drain(..).map(|workload| (name.clone(), workload)));
                }
            }
        }
        homeless
    }

    /// Gives a place to everybody who has none: with a pod that takes new workloads, else with a pod to be made.
    fn settle(&self, drafts: &mut Vec<Draft<'_>>, homeless: Vec<(String, WorkloadAttachment)>) {
        let moved = homeless.into_iter().map(|(pod, workload)| {
            (pod, WorkloadAttachment { attachment_time: self.now.clone(), ..workload })
        });
        let new = self.wanting.iter().map(|uid| {
            (mountpoint_pod(uid, &self.key.volume_name), WorkloadAttachment::new(uid, self.now.clone()))
        });
        for (name, workload) in moved.chain(new) {
            let open = drafts.iter().enumerate().find_map(|(index, draft)| {
                let name = draft.entries.keys().find(|name| self.takes_new_workloads(name))?;
                Some((index, name.clone()))
            });
            let (index, name) = open.unwrap_or_else(|| {
                let named = |name: &str| drafts.iter().any(|draft| draft.entries.contains_key(name));
                (0, replacement(&name, |name| self.pods.contains_key(name) || named(name)))
            });
            if drafts.is_empty() {
                drafts.push(Draft { current: None, entries: BTreeMap::new() });
            }
            drafts[index].entries.entry(name).or_default().push(workload);
        }
    }

    /// A pod that is not there yet will be made by this driver; until then nothing speaks against it.
    fn takes_new_workloads(&self, name: &str) -> bool {
        self.pods.get(name).is_none_or(|pod| {
            !is_broken(pod)
                && matches!(pod.phase, Phase::Pending | Phase::Running)
                && !pod.no_new_workload
                && pod.driver_version == self.driver_version
        })
    }

    fn write(&self, drafts: &[Draft<'_>]) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut pods = Vec::new();
        for draft in drafts {
            let name =
                draft.current.map_or_else(|| self.key.attachment_name(), |current| current.name.clone());
            steps.extend(draft.current.map_or_else(
                || Some(self.open(&name, draft.entries.clone())),
                |current| change(current, &draft.entries),
            ));
            for (pod, workloads) in &draft.entries {
                if !self.pods.contains_key(pod) {
                    pods.push(Step::CreatePod {
                        name: pod.clone(),
                        attachment: name.clone(),
                        workload_uid: workloads[0].workload_pod_uid.clone(),
                    });
                }
            }
        }
        let before = self.attachments.iter().flat_map(|attachment| attachment.spec.mountpoint_pods.keys());
        let still_named = |name: &String| drafts.iter().any(|draft| draft.entries.contains_key(name));
        let retired =
            before.filter(|name| !still_named(name)).filter_map(|name| retire(self.pods.get(name)?));
        steps.into_iter().chain(pods).chain(retired).collect()
    }

    fn open(&self, name: &str, mountpoint_pods: BTreeMap<String, Vec<WorkloadAttachment>>) -> Step {
        let spec = AttachmentSpec { mountpoint_pods, ..self.key.spec() };
        Step::CreateAttachment { name: name.to_owned(), spec: Box::new(spec) }
    }
}

/// Will serve no more, or is about to stop.
pub fn is_broken(pod: &MountpointPod) -> bool {
    pod.terminating || pod.needs_unmount || matches!(pod.phase, Phase::Succeeded | Phase::Failed)
}

/// What becomes of a pod that no attachment names any more.
pub fn retire(pod: &MountpointPod) -> Option<Step> {
    let delete = || Step::DeletePod { name: pod.name.clone(), uid: pod.uid.clone(), by_force: false };
    match pod.phase {
        Phase::Succeeded | Phase::Failed if !pod.terminating => Some(delete()),
        Phase::Succeeded | Phase::Failed => None,
        // It never had anything to unmount, and without a start it would never end.
        _ if !pod.started => (!pod.terminating).then(delete),
        _ => (!pod.needs_unmount).then(|| Step::MarkUnmount { name: pod.name.clone(), uid: pod.uid.clone() }),
    }
}

fn change(attachment: &Attachment, entries: &BTreeMap<String, Vec<WorkloadAttachment>>) -> Option<Step> {
    let before = &attachment.spec.mountpoint_pods;
    if entries.is_empty() {
        return Some(delete(attachment));
    }
    let removed = before.keys().filter(|name| !entries.contains_key(*name)).map(|name| (name.clone(), None));
    let written = entries.iter().filter(|(name, workloads)| before.get(*name) != Some(*workloads));
    let written = written.map(|(name, workloads)| (name.clone(), Some(workloads.clone())));
    let entries: BTreeMap<_, _> = removed.chain(written).collect();
    (!entries.is_empty()).then(|| Step::UpdateAttachment {
        name: attachment.name.clone(),
        resource_version: attachment.resource_version,
        entries,
    })
}

fn delete(attachment: &Attachment) -> Step {
    Step::DeleteAttachment {
        name: attachment.name.clone(),
        uid: attachment.uid.clone(),
        resource_version: attachment.resource_version,
    }
}
