//! Headroom in random histories: controllers that decide on outdated caches and stop after any step, workloads that start,
//! end and are deleted at any moment. Every gate is removed in the end, and no headroom pod outlives its workload's need.

mod event;

use std::collections::{BTreeMap, BTreeSet};

use contract::authentication::SecretPresence;
use contract::names::headroom_pod;
use contract::volume::Volume;
use contract::volume_plan::VolumePlan;
use proptest::prelude::*;

use crate::headroom::{GatedWorkload, Headroom, HeadroomPod};
use crate::observed::{Phase, Workload};
use crate::step::{Step, WorkloadRef};
use event::{Event, event};

/// The API server, as far as decisions can tell.
#[derive(Clone, Debug, Default, PartialEq)]
struct Server {
    version: u64,
    /// Each with the number of its volumes, and whether all of its claims are bound.
    workloads: BTreeMap<String, (GatedWorkload, usize, bool)>,
    pods: BTreeMap<String, HeadroomPod>,
    refuses: bool,
}

impl Server {
    fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn happen(&mut self, event: &Event, history: &[Self]) {
        let uid = |server: &Self, index: usize| server.workloads.keys().nth(index).cloned();
        let pod = |server: &Self, index: usize| server.pods.keys().nth(index).cloned();
        match event {
            Event::Arrive { volumes, bound } => {
                let uid = format!("w{}", self.next());
                self.workloads.insert(uid.clone(), (gated(&uid), *volumes, *bound));
            }
            Event::Bind { workload } => {
                if let Some(uid) = uid(self, *workload) {
                    self.workloads.get_mut(&uid).unwrap().2 = true;
                }
            }
            Event::Start { workload } => self.advance(*workload, Phase::Pending, Phase::Running),
            Event::End { workload } => self.advance(*workload, Phase::Running, Phase::Succeeded),
            Event::IsDeleted { workload } => {
                if let Some(uid) = uid(self, *workload) {
                    self.workloads.get_mut(&uid).unwrap().0.workload.terminating = true;
                }
            }
            Event::IsRemoved { workload } => {
                drop(uid(self, *workload).and_then(|it| self.workloads.remove(&it)))
            }
            Event::PodIsRemoved { pod: index } => {
                drop(pod(self, *index).and_then(|it| self.pods.remove(&it)))
            }
            Event::PodEnds { pod: index } => {
                if let Some(name) = pod(self, *index) {
                    self.pods.get_mut(&name).unwrap().has_ended = true;
                }
            }
            Event::Quota { refuses } => self.refuses = *refuses,
            Event::Reconcile { workload, age, steps } => {
                let old = &history[history.len() - 1 - age.min(&(history.len() - 1))];
                if let Some(uid) = old.uids().into_iter().nth(*workload) {
                    self.reconcile(&uid, old, *steps);
                }
            }
        }
    }

    /// The scheduler places no gated workload, so that it cannot start.
    fn advance(&mut self, index: usize, from: Phase, to: Phase) {
        let placed = self.workloads.values_mut().map(|(gated, ..)| gated);
        let mut placed = placed.filter(|gated| !gated.has_gate && gated.workload.phase == from);
        if let Some(gated) = placed.nth(index) {
            gated.workload.phase = to;
        }
    }

    fn uids(&self) -> BTreeSet<String> {
        let of_pods = self.pods.values().map(|pod| pod.workload_uid.clone());
        self.workloads.keys().cloned().chain(of_pods).collect()
    }

    /// Decides as remembered by `old`, with live reads where the real one reads live.
    fn reconcile(&mut self, uid: &str, old: &Self, limit: usize) {
        let mut headroom = old.headroom(uid);
        if headroom.gated.is_none() {
            headroom.gated = self.workloads.get(uid).map(|(gated, ..)| gated.clone());
            if headroom.gated.as_ref().is_some_and(|gated| gated.has_gate) {
                return;
            }
        }
        let mut left = limit;
        'again: loop {
            for step in headroom.decide() {
                if left == 0 {
                    return;
                }
                left -= 1;
                if let Step::CreateHeadroomPod { volume_name, .. } = &step
                    && self.refuses
                    && volume_name == "v1"
                {
                    headroom.refused.insert(volume_name.clone());
                    continue 'again;
                }
                if !self.apply(&step) {
                    return;
                }
            }
            return;
        }
    }

    fn headroom(&self, uid: &str) -> Headroom {
        let found = self.workloads.get(uid);
        let volumes = found.map_or(0, |(_, volumes, bound)| if *bound { *volumes } else { 0 });
        Headroom {
            is_on: true,
            gated: found.map(|(gated, ..)| gated.clone()),
            volumes: (0..volumes).map(|number| (format!("v{number}"), volume())).collect(),
            awaits_claims: found.is_some_and(|(_, _, bound)| !bound),
            refused: BTreeSet::new(),
            unschedulable: BTreeSet::new(),
            pods: self.pods.values().filter(|pod| pod.workload_uid == uid).cloned().collect(),
        }
    }

    /// As the API server would take it; `false` for a conflict.
    fn apply(&mut self, step: &Step) -> bool {
        match step {
            Step::LabelWorkload(workload) => self.change(&workload.uid, |gated| gated.has_label = true),
            Step::UnlabelWorkload(workload) => self.change(&workload.uid, |gated| gated.has_label = false),
            Step::RemoveGate(WorkloadRef { uid, .. }) => {
                assert!(self.workloads.get(uid).is_none_or(|(_, _, bound)| *bound), "{uid} awaits claims");
                self.change(uid, |gated| gated.has_gate = false);
            }
            Step::CreateHeadroomPod {
                name,
                workload: WorkloadRef { uid: workload_uid, .. },
                volume_name,
                ..
            } => {
                if let Some(found) = self.pods.get(name) {
                    return !found.terminating;
                }
                let resource_version = self.next();
                let made = HeadroomPod {
                    name: name.clone(),
                    uid: format!("h{resource_version}"),
                    resource_version,
                    workload_uid: workload_uid.clone(),
                    workload: Some(("ns".into(), workload_uid.clone())),
                    volume_name: volume_name.clone(),
                    terminating: false,
                    has_ended: false,
                };
                self.pods.insert(name.clone(), made);
            }
            Step::DeleteHeadroomPod { name, uid } => {
                self.pods.retain(|found, pod| found != name || pod.uid != *uid);
            }
            other => unreachable!("{other:?} reserves no headroom"),
        }
        true
    }

    fn change(&mut self, uid: &str, change: impl FnOnce(&mut GatedWorkload)) {
        if let Some((gated, ..)) = self.workloads.get_mut(uid) {
            change(gated);
        }
    }

    /// One look at everything, with today's knowledge and nothing cut off.
    fn pass(&mut self) {
        for uid in self.uids() {
            let now = self.clone();
            self.reconcile(&uid, &now, usize::MAX);
        }
    }

    fn check_settled(&self) {
        let waits = |gated: &GatedWorkload| gated.workload.awaits_volumes();
        for (uid, (gated, ..)) in &self.workloads {
            assert!(!waits(gated) || !gated.has_gate, "{uid} is still gated: {self:#?}");
            assert!(waits(gated) || !gated.has_label, "{uid} is still labelled: {self:#?}");
        }
        for pod in self.pods.values() {
            let owner = self.workloads.get(&pod.workload_uid);
            assert!(owner.is_some_and(|(gated, ..)| waits(gated)), "{} is left: {self:#?}", pod.name);
            assert_eq!(pod.name, headroom_pod(&pod.workload_uid, &pod.volume_name));
        }
    }
}

fn gated(uid: &str) -> GatedWorkload {
    let workload = Workload {
        uid: uid.into(),
        namespace: "ns".into(),
        name: uid.into(),
        node: String::new(),
        fs_group: String::new(),
        service_account: "sa".into(),
        claims: vec![],
        phase: Phase::Pending,
        terminating: false,
        busy: false,
        has_headroom: false,
        created: None,
    };
    GatedWorkload { workload, resource_version: 1, has_gate: true, has_label: false }
}

fn volume() -> Volume {
    let attributes = [("bucketName".to_owned(), "bucket".to_owned())].into();
    VolumePlan::parse(&attributes, SecretPresence::Absent, [""]).unwrap().volume
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_gate_and_no_headroom_pod_stays(events in proptest::collection::vec(event(), 1..50)) {
        let mut server = Server::default();
        let mut history = vec![server.clone()];
        for event in &events {
            server.happen(event, &history);
            history.push(server.clone());
        }
        for (_, _, bound) in server.workloads.values_mut() {
            *bound = true;
        }
        server.pass();
        server.check_settled();
        let settled = server.clone();
        server.pass();
        prop_assert_eq!(server, settled, "nothing is left to do");
    }
}
