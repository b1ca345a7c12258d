//! The links in between: keys, node, node service.

use contract::authentication::AuthenticationSource;
use contract::names::{DRIVER, HEADROOM_GATE};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::CSINode;
use kube::ResourceExt as _;

use super::link::Outcome;
use super::subject::Subject;
use crate::installation::{NODE_SERVICE, Role};
use crate::readable::Readable;
use crate::secret::{SecretName, SecretState};
use crate::snapshot::Snapshot;
use crate::volume::VolumeFacts;
use crate::workload::{self, condition, is_ready, start_failure};

pub(super) fn keys(snapshot: &Snapshot, volume: &VolumeFacts) -> Outcome {
    let Ok(meaning) = &volume.meaning else { return Outcome::unknown("", "") };
    if meaning.anonymous {
        return Outcome::pass("", "none: requests are not signed (no-sign-request)");
    }
    match (meaning.source, &volume.secret) {
        (AuthenticationSource::Pod, _) => Outcome::pass("", "the workload's own identity"),
        (AuthenticationSource::Secret, Some(name)) => {
            secret(snapshot, name, "the volume", "`nodePublishSecretRef` of the PersistentVolume")
        }
        (AuthenticationSource::Secret, None) => Outcome::unknown("", "no Secret is named"),
        (AuthenticationSource::Driver, _) => {
            let installation = snapshot.installation();
            // The node service's are those that mount.
            let has_identity = installation.as_ref().is_some_and(|it| it.identities.contains(&Role::Node));
            match installation.as_ref().and_then(|it| it.keys.get(&Role::Node)) {
                Some((name, _))
                    if has_identity && snapshot.secrets.get(name) == Some(&SecretState::Missing) =>
                {
                    Outcome::pass("", "the driver's own identity")
                }
                Some((name, _)) => secret(snapshot, name, "the driver", "`s3CredentialSecret` of the chart"),
                None => Outcome::unknown("", "the driver's own; its installation is not readable"),
            }
        }
    }
}

fn secret(snapshot: &Snapshot, name: &SecretName, whose: &str, field: &str) -> Outcome {
    let SecretName { namespace, name: short } = name;
    let stop = |reason, message, remedy| {
        let command = format!("kubectl describe secret -n {namespace} {short}");
        Outcome::stop(name.to_string(), reason, message, remedy, command)
    };
    match snapshot.secrets.get(name) {
        Some(SecretState::Usable) => Outcome::pass(name.to_string(), format!("keys of {whose}")),
        Some(SecretState::Missing) => stop(
            "SecretMissing",
            format!("Secret {name} with the keys of {whose} does not exist"),
            format!("create it with `access_key_id` and `secret_access_key`, or correct {field}"),
        ),
        Some(SecretState::Invalid(error)) => stop(
            "SecretInvalid",
            error.clone(),
            format!("correct Secret {name}; the kubelet tries again by itself"),
        ),
        Some(SecretState::Unreadable(_)) | None => Outcome::unknown(name.to_string(), "not readable"),
    }
}

pub(super) fn node(subject: Subject<'_>) -> Outcome {
    let pod = subject.pod;
    let Some(name) = workload::node(pod) else {
        if let Some(stop) = gated(subject) {
            return stop;
        }
        let (_, reason, message) = condition(pod, "PodScheduled").unwrap_or_default();
        let reason = if reason.is_empty() { "Unscheduled" } else { reason };
        return Outcome::stop(
            "",
            reason,
            format!("the pod has no node yet: {message}"),
            "make room, or correct what the scheduler names",
            subject.describe_pod(),
        );
    };
    match subject.snapshot.node(name) {
        None if !subject.snapshot.is_readable(Readable::Nodes) => Outcome::unknown(name, "not readable"),
        None => Outcome::stop(
            name,
            "NodeMissing",
            format!("node {name} does not exist"),
            "delete the pod, so that it is scheduled again",
            "kubectl get nodes",
        ),
        Some(node) if !is_node_ready(node) => Outcome::stop(
            name,
            "NodeNotReady",
            format!("node {name} is not ready"),
            "its kubelet does not report: repair the node, or move the pod",
            format!("kubectl describe node {name}"),
        ),
        Some(_) => Outcome::pass(name, "ready"),
    }
}

/// The scheduler does not look for a node before all gates are removed.
fn gated(subject: Subject<'_>) -> Option<Outcome> {
    let gates = subject.pod.spec.as_ref()?.scheduling_gates.as_ref()?;
    let gates: Vec<&str> = gates.iter().map(|gate| gate.name.as_str()).collect();
    let is_on = subject.snapshot.installation().is_some_and(|it| it.reserves_room);
    let (remedy, command) = match gates.contains(&HEADROOM_GATE) {
        _ if gates.is_empty() => return None,
        true if is_on => (
            "the controller removes its gate when all claims of the pod are bound; if they are, check its logs",
            subject.controller_logs(),
        ),
        true => (
            "the controller removes its gate only if `mountpointPod.reserveHeadroom` of the chart is true: set it, or remove \
             the gate from the pod",
            subject.describe_pod(),
        ),
        false => ("whatever added the gates has to remove them", subject.describe_pod()),
    };
    let message =
        format!("the pod is not scheduled before its scheduling gates are removed: {}", gates.join(", "));
    Some(Outcome::stop("", "SchedulingGated", message, remedy, command))
}

pub(crate) fn is_node_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether the kubelet of the node knows the driver.
pub(crate) fn is_registered(csi_node: &CSINode) -> bool {
    csi_node.spec.drivers.iter().any(|driver| driver.name == DRIVER)
}

pub(super) fn node_service(subject: Subject<'_>) -> Outcome {
    let snapshot = subject.snapshot;
    let Some(node) = workload::node(subject.pod) else { return Outcome::unknown("", "") };
    if !snapshot.is_readable(Readable::DriverPods) {
        return Outcome::unknown(NODE_SERVICE, "not readable");
    }
    let on_node = |pod: &&Pod| workload::node(pod) == Some(node);
    let Some(pod) = snapshot.node_services.iter().find(on_node) else {
        return Outcome::stop(
            "",
            "NodeServiceMissing",
            format!("no node service of the driver runs on node {node}"),
            "let its DaemonSet onto the node: `node.tolerations`, `node.nodeSelector` and `node.affinity` of the chart",
            format!("kubectl get daemonset -A --field-selector metadata.name={NODE_SERVICE}"),
        );
    };
    let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
    if !is_ready(pod) {
        let why =
            start_failure(pod).map_or_else(|| "it is not ready".to_owned(), |failure| failure.to_string());
        return Outcome::stop(
            name.clone(),
            "NodeServiceNotReady",
            format!("the node service {namespace}/{name} on node {node} does not work: {why}"),
            "see its log; existing mounts keep working, new ones wait",
            format!("kubectl logs -n {namespace} {name}"),
        );
    }
    let registered = snapshot.csi_nodes.iter().find(|it| it.name_any() == node).is_some_and(is_registered);
    if !registered && snapshot.is_readable(Readable::CsiNodes) {
        return Outcome::stop(
            name.clone(),
            "DriverNotRegistered",
            format!("the driver {DRIVER} is not registered with the kubelet of node {node}"),
            "check `node.kubeletPath` of the chart, and the log of the node service",
            format!("kubectl logs -n {namespace} {name}"),
        );
    }
    Outcome::pass(name, "ready, registered with the kubelet")
}
