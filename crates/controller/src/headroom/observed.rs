//! Workloads that ask for headroom, and headroom pods, parsed.

use contract::names::{HEADROOM_GATE, annotation, label};
use contract::slim::{SlimPod, version};
use kube::ResourceExt as _;

use crate::observed::{Phase, Workload};
use crate::step::{Step, WorkloadRef};

/// A workload that asks for headroom with the gate, or that had it reserved and keeps the label. It need not be scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatedWorkload {
    pub workload: Workload,
    pub resource_version: u64,
    /// The scheduler waits until its gate is removed.
    pub has_gate: bool,
    pub has_label: bool,
}

/// What the watches select such pods by: no selector knows both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Gate,
    Label,
}

impl GatedWorkload {
    pub fn has(&self, mark: Mark) -> bool {
        match mark {
            Mark::Gate => self.has_gate,
            Mark::Label => self.has_label,
        }
    }

    /// `None` for a pod that has neither the gate nor the label.
    pub fn of(pod: &SlimPod) -> Option<Self> {
        let has_gate = pod.spec.scheduling_gates.iter().any(|gate| gate.name == HEADROOM_GATE);
        let has_label = pod.labels().contains_key(label::HEADROOM_FOR_WORKLOAD);
        let workload = Workload::scheduled_or_not(pod)?;
        let resource_version = version(&pod.metadata);
        (has_gate || has_label).then_some(Self { workload, resource_version, has_gate, has_label })
    }

    pub fn label(&self) -> Step {
        Step::LabelWorkload(self.workload_ref())
    }

    pub fn unlabel(&self) -> Step {
        Step::UnlabelWorkload(self.workload_ref())
    }

    pub fn remove_gate(&self) -> Step {
        Step::RemoveGate(self.workload_ref())
    }

    pub fn workload_ref(&self) -> WorkloadRef {
        let Workload { namespace, name, uid, .. } = self.workload.clone();
        WorkloadRef { namespace, name, uid }
    }
}

/// A pod that reserves headroom on the node of a workload until the Mountpoint Pod of one of its volumes takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadroomPod {
    pub name: String,
    pub uid: String,
    pub resource_version: u64,
    pub workload_uid: String,
    /// Namespace and name of the workload.
    pub workload: Option<(String, String)>,
    pub volume_name: String,
    pub terminating: bool,
    pub has_ended: bool,
}

impl HeadroomPod {
    /// `None` for any other pod.
    pub fn of(pod: &SlimPod) -> Option<Self> {
        let workload_uid = pod.labels().get(label::HEADROOM_FOR_POD)?.clone();
        let annotation = |name| pod.annotations().get(name);
        let workload = annotation(annotation::HEADROOM_FOR).and_then(|place| place.split_once('/'));
        Some(Self {
            name: pod.name_any(),
            uid: pod.metadata.uid.clone()?,
            resource_version: version(&pod.metadata),
            workload_uid,
            workload: workload.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())),
            volume_name: annotation(annotation::HEADROOM_FOR_VOLUME).cloned().unwrap_or_default(),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            has_ended: matches!(Phase::of(&pod.status), Phase::Succeeded | Phase::Failed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn gated(labels: &Value, gates: &Value) -> Option<GatedWorkload> {
        let pod = json!({
            "metadata": {"name": "w", "namespace": "ns", "uid": "u", "resourceVersion": "7", "labels": labels},
            "spec": {"schedulingGates": gates, "containers": []},
        });
        GatedWorkload::of(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn a_workload_asks_with_the_gate_and_is_remembered_by_the_label() {
        let other = json!([{"name": "example.com/other"}]);
        assert_eq!(gated(&json!({}), &other), None);
        let asks =
            gated(&json!({}), &json!([{"name": "example.com/other"}, {"name": HEADROOM_GATE}])).unwrap();
        assert!(asks.has_gate && !asks.has_label && asks.workload.claims.is_empty());
        let has = gated(&json!({label::HEADROOM_FOR_WORKLOAD: "u"}), &other).unwrap();
        assert!(!has.has_gate && has.has_label && has.workload.has_headroom);
        let foreign = gated(&json!({label::HEADROOM_FOR_WORKLOAD: "another"}), &json!([])).unwrap();
        assert!(!foreign.workload.has_headroom, "the label was copied from another pod");
    }

    #[test]
    fn a_headroom_pod_says_what_it_is_for() {
        let pod = json!({
            "metadata": {
                "name": "hr-1", "uid": "h", "labels": {label::HEADROOM_FOR_POD: "u"},
                "annotations": {annotation::HEADROOM_FOR: "ns/w", annotation::HEADROOM_FOR_VOLUME: "pv"},
            },
            "status": {"phase": "Failed"},
        });
        let pod = HeadroomPod::of(&serde_json::from_value(pod).unwrap()).unwrap();
        assert_eq!((pod.workload_uid.as_str(), pod.volume_name.as_str()), ("u", "pv"));
        assert_eq!(pod.workload, Some(("ns".to_owned(), "w".to_owned())));
        assert!(pod.has_ended && !pod.terminating);
    }
}
