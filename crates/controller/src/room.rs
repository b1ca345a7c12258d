//! What the scheduler says of a pod that it finds no room for. Its message names no node, only how many of them lack what:
//! `0/3 nodes are available: 1 Insufficient memory, 2 Too many pods.` It has many other messages, also while a volume of the pod is
//! still being created, and for those no pod needs to leave.

use std::collections::BTreeSet;

use contract::mountpoint_pod::MountpointPod;
use contract::slim::{SlimNodeTerm, SlimPod};

const UNSCHEDULABLE: &str = "Unschedulable";
/// The resource of which each pod takes one.
pub const PODS: &str = "pods";

/// The resources that it lacks on some node.
pub fn lacked_by(pod: &SlimPod) -> BTreeSet<&str> {
    let scheduled = pod.status.conditions.iter().find(|condition| condition.kind == "PodScheduled");
    let unschedulable = scheduled.filter(|condition| {
        condition.status == "False" && condition.reason.as_deref() == Some(UNSCHEDULABLE)
    });
    unschedulable.and_then(|condition| condition.message.as_deref()).map(lacking).unwrap_or_default()
}

/// The same of a Mountpoint Pod.
pub fn lacked_by_mountpoint_pod(pod: &MountpointPod) -> BTreeSet<&str> {
    let failure = pod.start_failure.as_ref().filter(|failure| failure.reason == UNSCHEDULABLE);
    failure.filter(|_| pod.node.is_none()).map(|failure| lacking(&failure.message)).unwrap_or_default()
}

fn lacking(message: &str) -> BTreeSet<&str> {
    let named = message.split("Insufficient ").skip(1);
    // The end of the sentence is not part of the name, which may contain dots: `nvidia.com/gpu`.
    let named = named.filter_map(|rest| Some(rest.split([',', ' ']).next()?.trim_end_matches('.')));
    named.chain(message.contains("Too many pods").then_some(PODS)).collect()
}

/// The nodes that it is bound to by name, as the pods of a `DaemonSet` are.
pub fn only_on(pod: &SlimPod) -> Option<BTreeSet<String>> {
    let nodes = pod.spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &nodes.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    // One that is met is enough.
    let named = terms.iter().map(named_by).collect::<Option<Vec<_>>>()?;
    (!named.is_empty()).then(|| named.into_iter().flatten().cloned().collect())
}

fn named_by(term: &SlimNodeTerm) -> Option<&[String]> {
    let by_name = term.match_fields.iter().find(|it| it.key == "metadata.name" && it.operator == "In")?;
    Some(&by_name.values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_message_names_what_is_lacking() {
        for (message, lacks) in [
            ("0/1 nodes are available: 1 Insufficient memory.", &["memory"][..]),
            (
                "0/9 nodes are available: 1 Insufficient nvidia.com/gpu, 2 Insufficient cpu, 3 Too many pods, 3 node(s) had \
                 untolerated taint(s). preemption: 0/9 nodes are available: 9 Preemption is not helpful for scheduling.",
                &["cpu", "nvidia.com/gpu", "pods"],
            ),
            (
                "0/1 nodes are available: 1 Insufficient ephemeral-storage. preemption: 0/1 nodes are available: 1 No \
                 preemption victims found for incoming pod.",
                &["ephemeral-storage"],
            ),
            ("0/1 nodes are available: 1 node(s) had untolerated taint(s).", &[]),
            ("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found", &[]),
            (
                "0/1 nodes are available: waiting for ephemeral volume controller to create the persistentvolumeclaim \
                 \"mp-1-local-cache\". preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
                &[],
            ),
            ("", &[]),
        ] {
            assert_eq!(lacking(message), lacks.iter().copied().collect::<BTreeSet<_>>(), "{message}");
        }
    }

    fn workload(condition: &Value, affinity: &Value) -> SlimPod {
        let pod =
            json!({"metadata": {}, "spec": {"affinity": affinity}, "status": {"conditions": [condition]}});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn only_a_pod_that_is_not_scheduled_lacks_anything() {
        let lacked = |kind: &str, status: &str, reason: &str| {
            let message = "0/1 nodes are available: 1 Insufficient memory.";
            let condition = json!({"type": kind, "status": status, "reason": reason, "message": message});
            !lacked_by(&workload(&condition, &json!({}))).is_empty()
        };
        assert!(lacked("PodScheduled", "False", "Unschedulable"));
        assert!(!lacked("PodScheduled", "True", "Unschedulable"));
        assert!(!lacked("PodScheduled", "False", "SchedulingGated"));
        assert!(!lacked("Ready", "False", "Unschedulable"));
    }

    #[test]
    fn the_pods_of_a_daemon_set_are_for_one_node_each() {
        let on = |terms: &Value| {
            let required =
                json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
            only_on(&workload(&json!({}), &json!({"nodeAffinity": required})))
        };
        let named = |node: &str, operator: &str| {
            let field = json!({"key": "metadata.name", "operator": operator, "values": [node]});
            json!({"matchFields": [field]})
        };
        let nodes =
            |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>());
        assert_eq!(on(&json!([named("a", "In")])), nodes(&["a"]));
        assert_eq!(on(&json!([named("a", "In"), named("b", "In")])), nodes(&["a", "b"]));
        assert_eq!(on(&json!([named("a", "NotIn")])), None);
        assert_eq!(on(&json!([named("a", "In"), {"matchExpressions": []}])), None, "either is enough");
        assert_eq!(only_on(&workload(&json!({}), &Value::Null)), None);
    }
}
