//! Pods: the driver's, and those that use its volumes.

use contract::mountpoint_pod::{MountpointPod, Phase, STARTING, StartFailure};
use contract::slim::SlimPod;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use kube::ResourceExt as _;

/// A Mountpoint Pod as the driver sees it; nothing for other pods.
pub fn mountpoint_pod(pod: &Pod) -> Option<MountpointPod> {
    MountpointPod::of(&slim(pod)?)
}

fn slim(pod: &Pod) -> Option<SlimPod> {
    serde_json::from_value(serde_json::to_value(pod).ok()?).ok()
}

/// Why a pod does not run and will not without help.
pub fn start_failure(pod: &Pod) -> Option<StartFailure> {
    StartFailure::of(&slim(pod)?.status)
}

pub fn claims(pod: &Pod) -> Vec<String> {
    slim(pod).iter().flat_map(SlimPod::claims).collect()
}

fn status(pod: &Pod) -> Option<&PodStatus> {
    pod.status.as_ref()
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let all = status(pod)
        .into_iter()
        .flat_map(|status| [&status.init_container_statuses, &status.container_statuses]);
    all.flatten().flatten()
}

pub fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|node| !node.is_empty())
}

pub fn phase(pod: &Pod) -> Phase {
    slim(pod).map_or(Phase::Unknown, |pod| Phase::of(&pod.status))
}

pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|(status, ..)| status == "True")
}

/// Status, reason and message.
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let conditions = status(pod).and_then(|status| status.conditions.as_ref());
    let condition = conditions.into_iter().flatten().find(|condition| condition.type_ == kind)?;
    let text = |text: &'a Option<String>| text.as_deref().unwrap_or_default();
    Some((&condition.status, text(&condition.reason), text(&condition.message)))
}

/// Whether the kubelet has mounted its volumes: it does so before it starts the first container, or pulls an image.
pub fn has_volumes(pod: &Pod) -> bool {
    let began = |container: &ContainerStatus| {
        let waits = container.state.as_ref().and_then(|state| state.waiting.as_ref());
        let reason = waits.and_then(|waiting| waiting.reason.as_deref());
        container.started == Some(true)
            || container.restart_count > 0
            || container
                .state
                .as_ref()
                .is_some_and(|state| state.running.is_some() || state.terminated.is_some())
            || reason.is_some_and(|reason| !STARTING.contains(&reason))
    };
    condition(pod, "PodReadyToStartContainers").is_some_and(|(status, ..)| status == "True")
        || statuses(pod).any(began)
}

/// The version that the chart wrote on a pod of the driver.
pub fn chart_version(pod: &Pod) -> String {
    pod.labels().get("app.kubernetes.io/version").cloned().unwrap_or_default()
}

pub fn image(pod: &Pod) -> &str {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    container.and_then(|container| container.image.as_deref()).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Pod `ns/web` on node `n` with the claim `data`.
    pub(crate) fn pod(status: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u"},
            "spec": {
                "nodeName": "n", "containers": [{"name": "main"}],
                "volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "b", "emptyDir": {}}],
            },
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn volumes_are_mounted_before_anything_of_a_pod_starts() {
        let container = |state: Value| {
            json!({"phase": "Pending", "containerStatuses": [{"name": "main", "image": "", "imageID": "", "ready": false,
                "restartCount": 0, "state": state}]})
        };
        assert!(!has_volumes(&pod(&json!({}))));
        assert!(!has_volumes(&pod(&container(json!({"waiting": {"reason": "ContainerCreating"}})))));
        assert!(has_volumes(&pod(&container(json!({"waiting": {"reason": "ImagePullBackOff"}})))));
        assert!(has_volumes(&pod(&container(json!({"running": {}})))));
        let ready = json!({"conditions": [{"type": "PodReadyToStartContainers", "status": "True"}]});
        assert!(has_volumes(&pod(&ready)));
    }

    #[test]
    fn claims_are_read_from_the_volumes() {
        assert_eq!(claims(&pod(&json!({}))), ["data"]);
        let ephemeral = json!({"metadata": {"name": "web"}, "spec": {"containers": [], "volumes": [{"name": "scratch", "ephemeral": {}}]}});
        assert_eq!(claims(&serde_json::from_value(ephemeral).unwrap()), ["web-scratch"]);
    }
}
