//! The decision about one sharing key: who is served by which Mountpoint Pod, from what is there now.
//!
//! One rule heals every crash: *what an attachment names exists and is healthy; what no attachment names is unmounted*.
//! So attachments are always written first, and pods are made true to them afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use contract::attachment::{AttachmentSpec, WorkloadAttachment};
use contract::names::{mountpoint_pod, replacement};
use contract::sharing::SharingKey;
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::observed::{Attachment, MountpointPod, Phase};
use crate::step::Step;

/// A pod that failed without ever having run was turned away by its node, and the next one would be, too: with a full disk,
/// several a second, for as long as it is full.
const TURNED_AWAY_FOR: SignedDuration = SignedDuration::from_secs(15);

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
    /// UIDs of workloads whose attachment was deleted by hand, each with the Mountpoint Pod that serves it and that is
    /// known, from a live read, not to be leaving.
    pub returning: Vec<(String, String)>,
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
        self.take_back(&mut drafts);
        let homeless = self.evict_broken(&mut drafts);
        self.settle(&mut drafts, homeless);
        for draft in &mut drafts {
            draft.entries.retain(|_, workloads| !workloads.is_empty());
        }
        self.write(&drafts)
    }

    /// When to look again at a pod that is not replaced yet.
    pub fn look_again(&self) -> Option<Duration> {
        self.pods.values().filter_map(|pod| self.turned_away_for(pod)).min()
    }

    /// How long its workloads still wait with a pod that its node has turned away.
    fn turned_away_for(&self, pod: &MountpointPod) -> Option<Duration> {
        let turned_away = pod.phase == Phase::Failed && !pod.started && !pod.terminating;
        let age = self.now.0.duration_since(pod.created.as_ref().filter(|_| turned_away)?.0);
        Duration::try_from(TURNED_AWAY_FOR - age).ok().filter(|left| !left.is_zero())
    }

    /// Whether those who are listed with the pod need another one, now.
    fn is_to_be_replaced(&self, pod: &MountpointPod) -> bool {
        is_broken(pod) && self.turned_away_for(pod).is_none()
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

    /// With the pod that they have their mounts from: another one would take these from them.
    fn take_back(&self, drafts: &mut Vec<Draft<'_>>) {
        for (uid, pod) in &self.returning {
            if drafts.is_empty() {
                drafts.push(Draft { current: None, entries: BTreeMap::new() });
            }
            let workload = WorkloadAttachment::new(uid, self.now.clone());
            drafts[0].entries.entry(pod.clone()).or_default().push(workload);
        }
    }

    /// Takes the workloads out of entries whose pod will serve no more, with the name their next pod derives from.
    fn evict_broken(&self, drafts: &mut [Draft<'_>]) -> Vec<(String, WorkloadAttachment)> {
        let mut homeless = Vec::new();
        for draft in drafts {
            for (name, workloads) in &mut draft.entries {
                if self.pods.get(name).is_some_and(|pod| self.is_to_be_replaced(pod)) {
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
            let serves = !is_broken(pod) && matches!(pod.phase, Phase::Pending | Phase::Running);
            // One more of them would be turned away as well.
            (serves || self.turned_away_for(pod).is_some())
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

#[cfg(test)]
mod tests {
    use super::*;
    use contract::sharing::Identity;
    use jiff::Timestamp;

    const VERSION: &str = "1";

    /// A workload on a node, listed with a pod that failed; another one wants the same.
    fn group(age: i64, started: bool) -> Group {
        let key = SharingKey {
            node: "node".into(),
            volume_name: "pv".into(),
            volume_id: "bucket".into(),
            mount_options: String::new(),
            fs_group: String::new(),
            identity: Identity::Driver,
        };
        let at = |second| Time(Timestamp::from_second(second).unwrap());
        let pod = MountpointPod {
            name: "mp".into(),
            uid: "p".into(),
            resource_version: 1,
            node: Some("node".into()),
            phase: Phase::Failed,
            created: Some(at(1000)),
            terminating: false,
            started,
            needs_unmount: false,
            no_new_workload: false,
            driver_version: VERSION.into(),
            attachment: None,
            volume_name: None,
            workload_uid: None,
            trouble: None,
        };
        let listed = vec![WorkloadAttachment::new("one", at(1000))];
        let spec = AttachmentSpec { mountpoint_pods: [("mp".to_owned(), listed)].into(), ..key.spec() };
        let attachment = Attachment {
            name: key.attachment_name(),
            uid: "a".into(),
            resource_version: 1,
            spec,
            conditions: Vec::new(),
            terminating: false,
        };
        Group {
            key,
            now: at(1000 + age),
            driver_version: VERSION.into(),
            attachments: vec![attachment],
            wanting: vec!["two".into()],
            returning: vec![],
            gone: BTreeSet::new(),
            pods: [("mp".to_owned(), pod)].into(),
            node_gone: false,
        }
    }

    #[test]
    fn whoever_lost_its_attachment_gets_one_with_the_pod_it_has() {
        let mut group = group(0, true);
        group.attachments.clear();
        group.returning = vec![("one".into(), "mp".into())];
        group.pods.get_mut("mp").unwrap().phase = Phase::Running;
        let steps = group.decide();
        let [Step::CreateAttachment { spec, .. }] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!(spec.mountpoint_pod_of("one"), Some("mp"));
        assert_eq!(spec.mountpoint_pod_of("two"), Some("mp"), "and new ones join it");
    }

    /// How many workloads each pod has, and which are made.
    fn outcome(group: &Group) -> (BTreeMap<String, usize>, Vec<String>) {
        let (mut entries, mut made) = (BTreeMap::new(), Vec::new());
        for step in group.decide() {
            match step {
                Step::UpdateAttachment { entries: changed, .. } => {
                    entries =
                        changed.into_iter().map(|(pod, all)| (pod, all.map_or(0, |all| all.len()))).collect();
                }
                Step::CreatePod { name, .. } => made.push(name),
                _ => {}
            }
        }
        (entries, made)
    }

    #[test]
    fn a_pod_that_was_turned_away_is_not_replaced_before_its_time() {
        let early = group(5, false);
        assert_eq!(outcome(&early), ([("mp".to_owned(), 2)].into(), vec![]), "the new one waits with it");
        assert_eq!(early.look_again(), Some(Duration::from_secs(10)));
        for group in [group(15, false), group(5, true)] {
            let (entries, made) = outcome(&group);
            assert_eq!(entries, [("mp".to_owned(), 0), ("mp-2".to_owned(), 2)].into());
            assert_eq!(made, ["mp-2"]);
            assert_eq!(group.look_again(), None);
        }
    }
}
