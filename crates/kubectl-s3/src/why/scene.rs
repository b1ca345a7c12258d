//! A cluster in which everything is well, for tests to break.

use contract::attachment::MountpointS3PodAttachment;
use contract::mountpoint_pod::MountpointPod;
use contract::names::{DRIVER, annotation, label};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::installation::tests::{daemon_set, deployment};
use crate::secret::{SecretName, SecretState};
use crate::snapshot::Snapshot;
use crate::volume::tests::volume;
use crate::workload::{self, tests::pod};

/// The workload, when its volumes are mounted.
pub(crate) fn running() -> Pod {
    pod(
        &json!({"phase": "Running", "containerStatuses": [{"name": "main", "image": "", "imageID": "", "ready": true,
        "restartCount": 0, "started": true, "state": {"running": {}}}]}),
    )
}

pub(crate) fn driver_pod(name: &str, ready: bool) -> Pod {
    let status = if ready { "True" } else { "False" };
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "kube-system", "labels": {"app.kubernetes.io/version": "1.0.0"}},
        "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "s3-csi/driver:1.0.0"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": status}]},
    }))
    .unwrap()
}

pub(crate) fn mountpoint_pod(status: &Value) -> MountpointPod {
    let pod = json!({
        "metadata": {
            "name": "mp-1", "namespace": "mounts", "uid": "m", "labels": {label::DRIVER_VERSION: "1.0.0"},
            "annotations": {annotation::ATTACHMENT: "s3pa-1", annotation::VOLUME_NAME: "pv"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"nodeName": "n", "containers": [{"name": "mountpoint", "image": "s3-csi/mounter:1.0.0"}]},
        "status": status,
    });
    workload::mountpoint_pod(&serde_json::from_value(pod).unwrap()).unwrap()
}

pub(crate) fn attachment(conditions: &Value) -> MountpointS3PodAttachment {
    serde_json::from_value(json!({
        "metadata": {"name": "s3pa-1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "nodeName": "n", "persistentVolumeName": "pv", "volumeID": "pv", "mountOptions": "", "workloadFSGroup": "",
            "mountpointS3PodAttachments": {"mp-1": [{"workloadPodUID": "u", "attachmentTime": "2026-01-01T00:00:00Z"}]},
        },
        "status": {"conditions": conditions},
    }))
    .unwrap()
}

pub(crate) fn claim(phase: &str, class: &str) -> Value {
    json!({
        "metadata": {"name": "data", "namespace": "ns"},
        "spec": {"volumeName": "pv", "storageClassName": class}, "status": {"phase": phase},
    })
}

/// Volume, attachment, Mountpoint Pod and driver are there; the workload waits for the kubelet.
pub(crate) fn scene() -> Snapshot {
    let from = |value: Value| value;
    let keys = SecretName { namespace: "kube-system".into(), name: "s3-secret".into() };
    Snapshot {
        // Two minutes after everything was made.
        now: "2026-01-01T00:02:00Z".parse::<Timestamp>().unwrap(),
        mountpoint_namespace: "mounts".to_owned(),
        pods: vec![pod(&json!({}))],
        claims: vec![serde_json::from_value(claim("Bound", "")).unwrap()],
        volumes: vec![volume(|_| {})],
        attachments: vec![attachment(&json!([]))],
        mountpoint_pods: vec![mountpoint_pod(&json!({"phase": "Running"}))],
        controllers: vec![driver_pod("s3-csi-controller-1", true)],
        node_services: vec![driver_pod("s3-csi-node-1", true)],
        deployments: vec![deployment()],
        daemon_sets: vec![daemon_set(1, 1)],
        nodes: vec![
            serde_json::from_value(from(json!({
                "metadata": {"name": "n"},
                "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {
                    "kernelVersion": "6.12.0", "architecture": "", "bootID": "", "containerRuntimeVersion": "",
                    "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "linux", "osImage": "",
                    "systemUUID": "",
                }},
            })))
            .unwrap(),
        ],
        csi_nodes: vec![
            serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"drivers": [{"name": DRIVER, "nodeID": "n"}]}}))
                .unwrap(),
        ],
        secrets: [(keys, SecretState::Usable)].into(),
        ..Snapshot::default()
    }
}
