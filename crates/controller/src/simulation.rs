//! Crash at every step: random histories of a small cluster, in which decisions are made on knowledge of any age, by one
//! controller or two, and cut off after any step. Whatever happened, the same end is reached, and nothing forbidden is
//! ever true on the way.

use std::collections::{BTreeMap, BTreeSet};

use contract::attachment::AttachmentSpec;
use contract::sharing::{Identity, SharingKey};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;

use crate::group::{Group, is_broken, retire};
use crate::observed::{Attachment, MountpointPod, Phase};
use crate::step::Step;
use crate::world::returning::served_by;

const VERSION: &str = "1";

#[derive(Clone, Debug, PartialEq)]
struct Workload {
    /// Which of the two nodes.
    node: usize,
    alive: bool,
    waits: bool,
}

/// The API server and the nodes, as far as decisions can tell.
#[derive(Clone, Debug, Default, PartialEq)]
struct Server {
    version: u64,
    attachments: BTreeMap<String, Attachment>,
    pods: BTreeMap<String, MountpointPod>,
    workloads: BTreeMap<String, Workload>,
    vanished: BTreeSet<usize>,
    /// How often the volume's mount options were edited.
    edition: usize,
}

/// What can happen.
#[derive(Clone, Debug)]
enum Event {
    Arrive {
        node: usize,
    },
    Start {
        workload: usize,
    },
    Leave {
        workload: usize,
    },
    EditVolume,
    /// By hand.
    AttachmentIsDeleted {
        attachment: usize,
    },
    Vanish {
        node: usize,
    },
    PodRuns {
        pod: usize,
    },
    PodFails {
        pod: usize,
    },
    PodIsDeleted {
        pod: usize,
    },
    PodIsRemoved {
        pod: usize,
    },
    /// The node has unmounted everything it was told to.
    NodesUnmount,
    /// A controller decides with knowledge of `age` events ago, and is cut off after `steps` steps.
    Reconcile {
        group: usize,
        age: usize,
        steps: usize,
    },
    Sweep {
        age: usize,
        steps: usize,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let index = 0..6_usize;
    let (age, steps) = (0..6_usize, 0..5_usize);
    prop_oneof![
        3 => (0..2_usize).prop_map(|node| Event::Arrive { node }),
        2 => index.clone().prop_map(|workload| Event::Start { workload }),
        3 => index.clone().prop_map(|workload| Event::Leave { workload }),
        1 => Just(Event::EditVolume),
        1 => index.clone().prop_map(|attachment| Event::AttachmentIsDeleted { attachment }),
        1 => (0..2_usize).prop_map(|node| Event::Vanish { node }),
        2 => index.clone().prop_map(|pod| Event::PodRuns { pod }),
        1 => index.clone().prop_map(|pod| Event::PodFails { pod }),
        1 => index.clone().prop_map(|pod| Event::PodIsDeleted { pod }),
        1 => index.prop_map(|pod| Event::PodIsRemoved { pod }),
        1 => Just(Event::NodesUnmount),
        12 => (0..8_usize, age.clone(), steps.clone()).prop_map(|(group, age, steps)| Event::Reconcile { group, age, steps }),
        3 => (age, steps).prop_map(|(age, steps)| Event::Sweep { age, steps }),
    ]
}

impl Server {
    fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn key(node: usize, edition: usize) -> SharingKey {
        SharingKey {
            node: format!("node-{node}"),
            volume_name: "pv".into(),
            volume_id: "bucket".into(),
            mount_options: format!("uid={edition}"),
            fs_group: String::new(),
            identity: Identity::Driver,
        }
    }

    fn key_of(spec: &AttachmentSpec) -> SharingKey {
        SharingKey::of(spec, contract::volume::AuthenticationSource::Driver)
    }

    /// Every key that an attachment has or a workload may want.
    fn keys(&self) -> Vec<SharingKey> {
        let wanted = (0..2).map(|node| Self::key(node, self.edition));
        let held = self.attachments.values().map(|attachment| Self::key_of(&attachment.spec));
        wanted.chain(held).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn lists(&self, uid: &str) -> usize {
        let all = self.attachments.values().flat_map(|attachment| attachment.spec.workload_uids());
        all.filter(|listed| *listed == uid).count()
    }

    fn names(&self, pod: &str) -> bool {
        self.attachments.values().any(|attachment| attachment.spec.mountpoint_pods.contains_key(pod))
    }

    /// The group as remembered by `self`, with what is read live from `now`.
    fn group(&self, key: &SharingKey, now: &Self) -> Group {
        let node = key.node.clone();
        let attachments: Vec<Attachment> = self
            .attachments
            .values()
            .filter(|attachment| Self::key_of(&attachment.spec) == *key)
            .cloned()
            .collect();
        let listed = attachments.iter().flat_map(|attachment| attachment.spec.workload_uids());
        let dead = |uid: &&str| !now.workloads.get(*uid).is_some_and(|workload| workload.alive);
        let suspect = |uid: &&str| !self.workloads.get(*uid).is_some_and(|workload| workload.alive);
        let gone = listed.filter(suspect).filter(dead).map(str::to_owned).collect();
        let wanting = self.workloads.iter().filter(|(uid, workload)| {
            let wants = workload.alive && workload.waits && Self::key(workload.node, self.edition) == *key;
            // Read live as well while another controller may be at work: two of them, of which one has not yet seen
            // the volume edited, would open two attachments of different names for one workload; and one that has
            // not yet seen a workload leave would attach it again, to a pod that is being unmounted.
            let still = now.workloads.get(*uid).is_some_and(|workload| workload.alive && workload.waits);
            wants && self.lists(uid) == 0 && now.lists(uid) == 0 && still
        });
        let returning = self.returning(key).into_iter().filter(|(uid, pod)| {
            let found = now.pods.get(pod).filter(|found| self.pods[pod].uid == found.uid);
            found.is_some_and(|found| !is_broken(found))
                && now.workloads.contains_key(uid)
                && now.lists(uid) == 0
        });
        let returning: Vec<(String, String)> = returning.collect();
        let wanting = wanting.filter(|(uid, _)| !returning.iter().any(|(back, _)| back == *uid));
        let vanished = |server: &Self| server.vanished.iter().any(|number| node == format!("node-{number}"));
        Group {
            key: key.clone(),
            now: Time(Timestamp::from_second(i64::try_from(now.version).unwrap()).unwrap()),
            driver_version: VERSION.into(),
            attachments,
            wanting: wanting.map(|(uid, _)| uid.clone()).collect(),
            returning,
            gone,
            pods: self.pods.clone(),
            node_gone: vanished(self) && vanished(now),
        }
    }

    /// Whose attachment was deleted by hand, and the pod that serves them.
    fn returning(&self, key: &SharingKey) -> Vec<(String, String)> {
        let is_of_key = |pod: &&MountpointPod| pod.attachment.as_ref() == Some(&key.attachment_name());
        let pods =
            self.pods.values().filter(is_of_key).filter(|pod| !self.names(&pod.name) && !is_broken(pod));
        let pods: Vec<&MountpointPod> = pods.collect();
        let unlisted = self.workloads.iter().filter(|(uid, workload)| {
            workload.alive && Self::key(workload.node, self.edition) == *key && self.lists(uid) == 0
        });
        let returning = unlisted.filter_map(|(uid, workload)| {
            let pod = served_by(uid, !workload.waits, None, &pods)?;
            Some((uid.clone(), pod.name.clone()))
        });
        returning.collect()
    }

    /// What a sweep does with a pod that nobody names, as remembered by `self`, confirmed by `now`.
    fn orphans(&self, now: &Self) -> Vec<Step> {
        let orphans = self.pods.values().filter(|pod| !self.names(&pod.name) && !now.names(&pod.name));
        let returning: Vec<_> = self.keys().iter().flat_map(|key| self.returning(key)).collect();
        let serves = |pod: &MountpointPod| returning.iter().any(|(_, name)| *name == pod.name);
        orphans.filter(|pod| !serves(pod)).filter_map(retire).collect()
    }

    /// As the API server would take it; `false` for a conflict.
    fn apply(&mut self, step: &Step) -> bool {
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
                    return pod.attachment.as_ref() == Some(&attachment) && !is_broken(pod);
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
                    trouble: None,
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
    fn apply_some(&mut self, steps: &[Step], limit: usize) {
        let _ = steps.iter().take(limit).all(|step| {
            let applied = self.apply(step);
            self.check();
            applied
        });
    }

    fn happen(&mut self, event: &Event, history: &[Self]) {
        let remembered = |age: usize| &history[history.len() - 1 - age.min(history.len() - 1)];
        let nth_pod =
            |server: &Self, index: usize| server.pods.keys().nth(index % server.pods.len().max(1)).cloned();
        match event {
            Event::Arrive { node } if !self.vanished.contains(node) => {
                let uid = format!("w{}", self.next());
                self.workloads.insert(uid, Workload { node: *node, alive: true, waits: true });
            }
            Event::Arrive { .. } => {}
            Event::Start { workload } => {
                let attached: Vec<String> =
                    self.workloads.keys().filter(|uid| self.lists(uid) == 1).cloned().collect();
                if let Some(uid) = attached.get(*workload) {
                    self.workloads.get_mut(uid).unwrap().waits = false;
                }
            }
            Event::Leave { workload } => {
                if let Some(uid) = self.workloads.keys().nth(*workload).cloned() {
                    self.workloads.remove(&uid);
                }
            }
            Event::EditVolume => self.edition += 1,
            Event::AttachmentIsDeleted { attachment } => {
                if let Some(name) = self.attachments.keys().nth(*attachment).cloned() {
                    self.attachments.remove(&name);
                }
            }
            Event::Vanish { node } => {
                self.vanished.insert(*node);
                // The cluster's own garbage collection removes a lost node's pods.
                self.workloads.retain(|_, workload| workload.node != *node);
            }
            Event::PodRuns { pod } => {
                if let Some(pod) = nth_pod(self, *pod).and_then(|name| self.pods.get_mut(&name))
                    && pod.phase == Phase::Pending
                    && !pod.terminating
                {
                    pod.phase = Phase::Running;
                    pod.started = true;
                }
            }
            Event::PodFails { pod } => {
                if let Some(pod) = nth_pod(self, *pod).and_then(|name| self.pods.get_mut(&name)) {
                    pod.phase = Phase::Failed;
                }
            }
            Event::PodIsDeleted { pod } => {
                if let Some(pod) = nth_pod(self, *pod).and_then(|name| self.pods.get_mut(&name)) {
                    pod.terminating = true;
                }
            }
            Event::PodIsRemoved { pod } => {
                if let Some(name) = nth_pod(self, *pod) {
                    self.pods.remove(&name);
                }
            }
            Event::NodesUnmount => self.nodes_unmount(),
            Event::Reconcile { group, age, steps } => {
                let old = remembered(*age);
                let keys = old.keys();
                let steps_wanted = old.group(&keys[group % keys.len()], self).decide();
                self.apply_some(&steps_wanted, *steps);
            }
            Event::Sweep { age, steps } => {
                let wanted = remembered(*age).orphans(self);
                // Each is a decision of its own: a failure of one says nothing about the next.
                for step in wanted.iter().take(*steps) {
                    self.apply(step);
                    self.check();
                }
            }
        }
        self.check();
    }

    /// Pods that are told to unmount end; pods that are being deleted and serve nobody are removed.
    fn nodes_unmount(&mut self) {
        for pod in self.pods.values_mut().filter(|pod| pod.needs_unmount && pod.started) {
            pod.phase = if pod.phase == Phase::Failed { Phase::Failed } else { Phase::Succeeded };
        }
        self.pods.retain(|_, pod| {
            !(pod.terminating && (pod.needs_unmount || !pod.started || pod.phase == Phase::Failed))
        });
    }

    /// What must never be true.
    fn check(&self) {
        for uid in self.workloads.keys() {
            assert!(self.lists(uid) <= 1, "{uid} is attached twice: {:#?}", self.attachments);
        }
        for pod in self.pods.values().filter(|pod| pod.needs_unmount) {
            assert!(!self.names(&pod.name), "{} is to be unmounted, but an attachment names it", pod.name);
        }
    }

    /// One pass over everything, with today's knowledge and nothing cut off.
    fn pass(&mut self) {
        for key in self.keys() {
            let steps = self.group(&key, self).decide();
            self.apply_some(&steps, usize::MAX);
        }
        for attachment in self.attachments.values() {
            assert!(
                attachment.spec.workload_uids().next().is_some(),
                "{} names no workload after a pass",
                attachment.name
            );
        }
        for step in self.orphans(self) {
            self.apply(&step);
        }
        self.nodes_unmount();
    }

    /// Passes until nothing changes any more.
    fn settle(&mut self) {
        for _ in 0..20 {
            let before = self.clone();
            self.pass();
            if (Self { version: 0, ..self.clone() }) == (Self { version: 0, ..before }) {
                return;
            }
        }
        panic!("no fixed point: {self:#?}");
    }

    /// The fixed point: everybody is served by a healthy pod, and nothing else is there.
    fn check_settled(&self) {
        for (uid, workload) in &self.workloads {
            assert!(!workload.waits || self.lists(uid) == 1, "{uid} waits and is not attached: {self:#?}");
        }
        for attachment in self.attachments.values() {
            for (pod, workloads) in &attachment.spec.mountpoint_pods {
                assert!(
                    self.pods.get(pod).is_some_and(|pod| !is_broken(pod)),
                    "{pod} does not serve: {self:#?}"
                );
                for workload in workloads {
                    let alive =
                        self.workloads.get(&workload.workload_pod_uid).is_some_and(|workload| workload.alive);
                    assert!(alive, "{} is gone and still attached", workload.workload_pod_uid);
                }
            }
        }
        for pod in self.pods.keys() {
            assert!(self.names(pod), "{pod} serves nobody: {self:#?}");
        }
    }
}

fn run(events: &[Event]) {
    let mut server = Server::default();
    let mut history = vec![server.clone()];
    for event in events {
        server.happen(event, &history);
        history.push(server.clone());
    }
    server.settle();
    server.check_settled();
}

/// Found by the property below: of two controllers one had not seen the edit, and their attachments had different names.
#[test]
fn two_controllers_attach_a_workload_of_an_edited_volume_once() {
    let reconcile = |age| Event::Reconcile { group: 1, age, steps: 1 };
    run(&[
        Event::Arrive { node: 1 },
        Event::EditVolume,
        Event::Arrive { node: 0 },
        reconcile(2),
        reconcile(1),
    ]);
}

#[test]
fn workloads_that_run_get_their_attachment_back_and_keep_their_pod() {
    let mut server = Server::default();
    let happen = |server: &mut Server, events: &[Event]| {
        for event in events {
            let history = [server.clone()];
            server.happen(event, &history);
        }
    };
    let entries = |server: &Server| -> BTreeSet<(String, String)> {
        let entries = server.attachments.values().flat_map(|attachment| &attachment.spec.mountpoint_pods);
        let entries = entries.flat_map(|(pod, all)| all.iter().map(move |it| (pod, &it.workload_pod_uid)));
        entries.map(|(pod, uid)| (pod.clone(), uid.clone())).collect()
    };
    let (arrive, reconcile) = (Event::Arrive { node: 0 }, Event::Reconcile { group: 0, age: 0, steps: 5 });
    let start = |workload| Event::Start { workload };
    happen(&mut server, &[arrive.clone(), arrive, reconcile.clone(), Event::PodRuns { pod: 0 }]);
    happen(&mut server, &[start(0), start(1)]);
    let before = entries(&server);
    assert_eq!(before.len(), 2);
    happen(&mut server, &[Event::AttachmentIsDeleted { attachment: 0 }, Event::Sweep { age: 0, steps: 5 }]);
    assert!(server.attachments.is_empty() && server.pods.values().all(|pod| !pod.needs_unmount));
    happen(&mut server, &[reconcile]);
    assert_eq!(entries(&server), before);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn every_history_ends_well(events in proptest::collection::vec(event(), 1..60)) {
        run(&events);
    }
}
