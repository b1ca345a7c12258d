//! The decision about one sharing key: which Mountpoint Pod serves which workload.
//!
//! One rule heals every crash: *what an attachment names exists and is healthy; what no attachment names is unmounted*.
//! So attachments are always written first, and pods follow them. A warm pod is claimed before: if the attachment then is
//! not written, the pod is one that no attachment names, and the workload that it was claimed for comes back to it.
//!
//! The file is long because all parts of the decision change one draft of the attachments, and read best in their order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use contract::attachment::{AttachmentSpec, WorkloadAttachment};
use contract::authentication::AuthenticationSource;
use contract::mountpoint_pod::EarlyMount;
use contract::names::{mountpoint_pod, replacement};
use contract::sharing::SharingKey;
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::observed::{Attachment, MountpointPod, Phase};
use crate::step::Step;

/// The kubelet rejected a pod that failed without ever having run, and would reject the next one, too: with a full disk,
/// several a second. So the next one is created only after this.
const REJECTED_FOR: SignedDuration = SignedDuration::from_secs(15);

/// A drain evicts Mountpoint Pods and workloads at the same time. A pod that is still serving is replaced only after this,
/// so that workloads that are ending, too, get no new pod.
const KEEPS_WORKLOADS_FOR: SignedDuration = SignedDuration::from_secs(10);

/// Everything a decision is based on.
#[derive(Clone, Debug)]
pub struct Group {
    pub key: SharingKey,
    pub now: Time,
    pub driver_version: String,
    /// Normally one or none. More, under foreign names, when another driver wrote them.
    pub attachments: Vec<Attachment>,
    /// UIDs of workloads that wait for this key and that no attachment of the volume lists.
    pub waiting: Vec<String>,
    /// Those of them with headroom.
    pub with_headroom: BTreeSet<String>,
    /// UIDs of workloads whose attachment was deleted by hand, each with the Mountpoint Pod that serves it and that is
    /// known, from a live read, not to be leaving.
    pub detached: Vec<(String, String)>,
    /// Listed UIDs that are known, from a live read, to do no more I/O.
    pub gone: BTreeSet<String>,
    /// Listed UIDs that are terminating.
    pub ending: BTreeSet<String>,
    /// The Mountpoint Pods there are, by name; all that attachments name, and whichever names are taken.
    pub pods: BTreeMap<String, MountpointPod>,
    /// A pod of the node that waits for a volume like this one, reserved for this decision.
    pub warm: Option<MountpointPod>,
    /// What its node may mount at once.
    pub early_mount: Option<EarlyMount>,
    /// Whose credentials the volume asks for. `None` if there is no such volume, or an invalid one.
    pub authentication: Option<AuthenticationSource>,
    /// Whether the node is known, from a live read, to be gone.
    pub node_gone: bool,
    /// Whether mounts move away from pods of other versions now.
    pub upgrades: bool,
}

/// Workloads by the name of their Mountpoint Pod.
type Entries = BTreeMap<String, Vec<WorkloadAttachment>>;

/// An attachment as it should be.
struct Draft<'a> {
    current: Option<&'a Attachment>,
    entries: Entries,
}

fn is_named(drafts: &[Draft<'_>], mountpoint_pod: &str) -> bool {
    drafts.iter().any(|draft| draft.entries.contains_key(mountpoint_pod))
}

impl Group {
    pub fn decide(&self) -> Vec<Step> {
        if self.node_gone {
            // A node may be registered again while its pods keep running: keep them as long as the cluster does.
            let mut listed = self.attachments.iter().flat_map(|attachment| attachment.spec.workload_uids());
            return if listed.all(|uid| self.gone.contains(uid)) { self.abandon() } else { Vec::new() };
        }
        let mut drafts: Vec<Draft<'_>> = self
            .attachments
            .iter()
            .filter(|attachment| !attachment.terminating)
            .map(|it| Draft { current: Some(it), entries: it.spec.mountpoint_pods.clone() })
            .collect();
        // For workloads that need a new attachment; not written if there are none.
        if drafts.is_empty() {
            drafts.push(Draft { current: None, entries: Entries::new() });
        }
        self.remove_gone_and_duplicates(&mut drafts);
        self.reattach(&mut drafts);
        let evicted = self.evict_from_ending(&mut drafts);
        self.assign(&mut drafts, evicted);
        for draft in &mut drafts {
            draft.entries.retain(|_, workloads| !workloads.is_empty());
        }
        drafts.retain(|draft| draft.current.is_some() || !draft.entries.is_empty());
        self.write(&drafts)
    }

    /// When to look again at a pod that is not replaced yet.
    pub fn look_again(&self) -> Option<Duration> {
        let left = |pod| self.rejection_left(pod).into_iter().chain(self.serving_left(pod));
        self.pods.values().flat_map(left).min()
    }

    /// How long a pod that was deleted keeps all its workloads.
    fn serving_left(&self, pod: &MountpointPod) -> Option<Duration> {
        let age = self.now.0.duration_since(pod.deleted.as_ref().filter(|_| serves_until_grace_end(pod))?.0);
        Duration::try_from(KEEPS_WORKLOADS_FOR - age).ok().filter(|left| !left.is_zero())
    }

    /// How long a pod that the kubelet rejected is still kept.
    fn rejection_left(&self, pod: &MountpointPod) -> Option<Duration> {
        let is_rejected = pod.phase == Phase::Failed && !pod.started && !pod.terminating;
        let age = self.now.0.duration_since(pod.created.as_ref().filter(|_| is_rejected)?.0);
        Duration::try_from(REJECTED_FOR - age).ok().filter(|left| !left.is_zero())
    }

    /// Whether the workloads that are listed with the pod need another one, now.
    fn is_to_be_replaced(&self, pod: &MountpointPod) -> bool {
        (pod.is_ending() && self.rejection_left(pod).is_none()) || self.must_upgrade(pod)
    }

    /// Whether its mount moves to a pod of this version.
    fn must_upgrade(&self, pod: &MountpointPod) -> bool {
        self.upgrades && is_outdated(pod, &self.driver_version)
    }

    /// On a node that is gone, nothing can be unmounted, and nothing needs to be.
    fn abandon(&self) -> Vec<Step> {
        let attachments = self.attachments.iter().filter(|attachment| !attachment.terminating);
        let named = self.attachments.iter().flat_map(|attachment| attachment.spec.mountpoint_pods.keys());
        let pods = named.filter_map(|name| self.pods.get(name)).map(|pod| Step::DeletePod {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            by_force: true,
        });
        attachments.map(delete_attachment).chain(pods).collect()
    }

    /// Keeps only the oldest entry of each workload, in case another driver listed it twice.
    fn remove_gone_and_duplicates(&self, drafts: &mut [Draft<'_>]) {
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

    /// Lists detached workloads with the pods that they have their mounts from: with another one, they would lose these.
    fn reattach(&self, drafts: &mut [Draft<'_>]) {
        for (uid, pod) in &self.detached {
            let workload = WorkloadAttachment::new(uid, self.now.clone());
            drafts[0].entries.entry(pod.clone()).or_default().push(workload);
        }
    }

    /// Removes workloads from pods that are ending or outdated. Returns them with the name that their next pod derives from.
    fn evict_from_ending(&self, drafts: &mut [Draft<'_>]) -> Vec<(String, WorkloadAttachment)> {
        let mut evicted = Vec::new();
        for draft in drafts {
            for (name, workloads) in &mut draft.entries {
                let Some(pod) = self.pods.get(name).filter(|pod| self.is_to_be_replaced(pod)) else {
                    continue;
                };
                // They share one mount, which can be in one place only.
                let all_are_ending = workloads.iter().all(|it| self.ending.contains(&it.workload_pod_uid));
                let stay = (self.must_upgrade(pod) && all_are_ending)
                    || (serves_until_grace_end(pod) && (all_are_ending || self.serving_left(pod).is_some()));
                if !stay {
                    evicted.extend(workloads.drain(..).map(|workload| (name.clone(), workload)));
                }
            }
        }
        evicted
    }

    /// Assigns the workloads that have no pod: to one that takes new workloads, else to a new one. A mount that can move needs a
    /// pod of its own, because a pod serves one mount.
    fn assign(&self, drafts: &mut [Draft<'_>], evicted: Vec<(String, WorkloadAttachment)>) {
        let has_mount = |pod: &String| self.pods.get(pod).is_some_and(|pod| pod.movable && pod.started);
        let (with_mount, without): (Vec<_>, Vec<_>) = evicted
            .into_iter()
            .map(|(pod, workload)| {
                (pod, WorkloadAttachment { attachment_time: self.now.clone(), ..workload })
            })
            .partition(|(pod, _)| has_mount(pod));
        let mut successors: BTreeMap<String, String> = BTreeMap::new();
        for (from, workload) in with_mount {
            let successor = successors.entry(from.clone());
            let name = successor.or_insert_with(|| self.unused_name(drafts, &from)).clone();
            drafts[0].entries.entry(name).or_default().push(workload);
        }
        let new = self.waiting.iter().map(|uid| {
            (mountpoint_pod(uid, &self.key.volume_name), WorkloadAttachment::new(uid, self.now.clone()))
        });
        for (name, workload) in without.into_iter().chain(new) {
            let open = drafts.iter().enumerate().find_map(|(index, draft)| {
                let name = draft.entries.keys().find(|name| self.takes_new_workloads(name))?;
                Some((index, name.clone()))
            });
            let (index, name) = open.unwrap_or_else(|| {
                let warm = self.warm.as_ref().filter(|warm| !is_named(drafts, &warm.name));
                let name = warm.map_or_else(|| self.unused_name(drafts, &name), |warm| warm.name.clone());
                (0, name)
            });
            drafts[index].entries.entry(name).or_default().push(workload);
        }
    }

    fn unused_name(&self, drafts: &[Draft<'_>], base: &str) -> String {
        replacement(base, |name| self.pods.contains_key(name) || is_named(drafts, name))
    }

    /// A pod that does not exist yet will be created by this driver, and takes new workloads.
    fn takes_new_workloads(&self, name: &str) -> bool {
        self.pods.get(name).is_none_or(|pod| {
            let serves = !pod.is_ending() && matches!(pod.phase, Phase::Pending | Phase::Running);
            // The kubelet would reject another pod as well.
            (serves || self.rejection_left(pod).is_some())
                && !pod.no_new_workload
                && pod.driver_version == self.driver_version
        })
    }

    fn write(&self, drafts: &[Draft<'_>]) -> Vec<Step> {
        let (mut claims, mut steps, mut pods) = (Vec::new(), Vec::new(), Vec::new());
        for draft in drafts {
            let name =
                draft.current.map_or_else(|| self.key.attachment_name(), |current| current.name.clone());
            steps.extend(match draft.current {
                Some(current) => update_attachment(current, &draft.entries),
                None => Some(self.create_attachment(name.clone(), &draft.entries)),
            });
            for (pod, workloads) in &draft.entries {
                if let Some(warm) = self.warm.as_ref().filter(|warm| warm.name == *pod) {
                    claims.push(Step::ClaimPod {
                        name: pod.clone(),
                        resource_version: warm.resource_version,
                        early_mount: self.early_mount.clone(),
                        attachment: name.clone(),
                        workload_uid: workloads[0].workload_pod_uid.clone(),
                    });
                } else if !self.pods.contains_key(pod) {
                    let has_headroom =
                        |it: &WorkloadAttachment| self.with_headroom.contains(&it.workload_pod_uid);
                    pods.push(Step::CreatePod {
                        name: pod.clone(),
                        attachment: name.clone(),
                        workload_uid: workloads[0].workload_pod_uid.clone(),
                        preempts: workloads.iter().any(has_headroom),
                    });
                }
            }
        }
        let before = self.attachments.iter().flat_map(|attachment| attachment.spec.mountpoint_pods.keys());
        let retired =
            before.filter(|name| !is_named(drafts, name)).filter_map(|name| retire(self.pods.get(name)?));
        let named = drafts.iter().flat_map(|draft| draft.entries.keys());
        let recorded = named.filter_map(|name| self.record(self.pods.get(name)?));
        claims.into_iter().chain(steps).chain(pods).chain(retired).chain(recorded).collect()
    }

    /// Pods of the reference driver and of older versions lack the record. Their nodes cannot tell a Secret without data, of
    /// a volume that asks for keys of its own, from a volume that asks for nothing.
    fn record(&self, pod: &MountpointPod) -> Option<Step> {
        let source = self.authentication.filter(|asked| pod.authentication != Some(*asked))?;
        // The claim of a warm pod writes it, too.
        let has_volume = pod.warm.is_none();
        has_volume.then(|| Step::RecordAuthentication {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            source,
        })
    }

    fn create_attachment(&self, name: String, entries: &Entries) -> Step {
        let spec = AttachmentSpec { mountpoint_pods: entries.clone(), ..self.key.spec() };
        Step::CreateAttachment { name, spec: Box::new(spec) }
    }
}

/// Whether it is of another version, and its mount could move, or it has none yet. Perhaps it never starts, and the version that
/// made it was rolled back for that.
pub fn is_outdated(pod: &MountpointPod, driver_version: &str) -> bool {
    let can_be_left = pod.phase == Phase::Running || !pod.started;
    pod.movable && can_be_left && pod.driver_version != driver_version && !pod.is_ending()
}

/// Whether it serves the workloads that it has during the grace period of its deletion.
fn serves_until_grace_end(pod: &MountpointPod) -> bool {
    pod.terminating && pod.started && !pod.needs_unmount && !pod.has_ended()
}

/// What becomes of a pod that attachments no longer name.
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

fn update_attachment(attachment: &Attachment, entries: &Entries) -> Option<Step> {
    let before = &attachment.spec.mountpoint_pods;
    if entries.is_empty() {
        return Some(delete_attachment(attachment));
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

fn delete_attachment(attachment: &Attachment) -> Step {
    Step::DeleteAttachment {
        name: attachment.name.clone(),
        uid: attachment.uid.clone(),
        resource_version: attachment.resource_version,
    }
}

#[cfg(test)]
mod tests;
