//! The `MountpointS3PodAttachment`: which workloads are served by which Mountpoint Pod.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Tracks which workload pods are served by which Mountpoint Pods on a node for one configuration of one volume.
#[allow(
    clippy::duplicated_attributes,
    reason = "clippy takes the columns' types for one attribute given twice"
)]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "s3.csi.scality.com",
    version = "v2",
    kind = "MountpointS3PodAttachment",
    plural = "mountpoints3podattachments",
    singular = "mountpoints3podattachment",
    shortname = "s3pa",
    derive = "PartialEq",
    status = "AttachmentStatus",
    selectable = ".spec.nodeName",
    selectable = ".spec.persistentVolumeName",
    selectable = ".spec.volumeID",
    selectable = ".spec.mountOptions",
    selectable = ".spec.workloadFSGroup",
    selectable = ".spec.authenticationSource",
    selectable = ".spec.workloadNamespace",
    selectable = ".spec.workloadServiceAccountName",
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "PV Name", type_ = "string", json_path = ".spec.persistentVolumeName"),
    printcolumn(name = "Mount Options", type_ = "string", json_path = ".spec.mountOptions"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentSpec {
    /// Name of the node where the volume is mounted.
    pub node_name: String,

    /// Name of the `PersistentVolume` that is mounted.
    pub persistent_volume_name: String,

    /// CSI volume identifier (`volumeHandle` of the `PersistentVolume`).
    #[serde(rename = "volumeID")]
    pub volume_id: String,

    /// Comma-separated mount options of the `PersistentVolume`.
    pub mount_options: String,

    /// The workloads' `fsGroup`, or an empty string.
    #[serde(rename = "workloadFSGroup")]
    pub workload_fs_group: String,

    /// Where the credentials come from; absent in objects of older drivers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub authentication_source: String,

    /// The workloads' namespace, if their own identity is used.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub workload_namespace: String,

    /// The workloads' service account, if their own identity is used.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub workload_service_account_name: String,

    /// The role of the workloads' service account, if their own identity is used.
    #[serde(rename = "workloadServiceAccountIAMRoleARN", default, skip_serializing_if = "String::is_empty")]
    pub workload_service_account_iam_role_arn: String,

    /// Maps each Mountpoint Pod to the workloads it serves.
    #[serde(rename = "mountpointS3PodAttachments")]
    pub mountpoint_pods: BTreeMap<String, Vec<WorkloadAttachment>>,
}

/// One workload that is served by a Mountpoint Pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadAttachment {
    /// UID of the workload pod.
    #[serde(rename = "workloadPodUID")]
    pub workload_pod_uid: String,

    /// When the workload was attached to the Mountpoint Pod.
    pub attachment_time: Time,

    /// Fields of later versions of the driver: lists are written whole, and these must survive.
    #[serde(flatten)]
    #[schemars(skip)]
    pub others: BTreeMap<String, Value>,
}

impl WorkloadAttachment {
    pub fn new(workload_pod_uid: &str, attachment_time: Time) -> Self {
        Self { workload_pod_uid: workload_pod_uid.to_owned(), attachment_time, others: BTreeMap::new() }
    }
}

/// Conditions of an attachment. None is written while nothing was ever wrong.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AttachmentStatus {
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl AttachmentSpec {
    /// The Mountpoint Pod that serves this workload.
    pub fn mountpoint_pod_of(&self, workload_uid: &str) -> Option<&str> {
        self.mountpoint_pods
            .iter()
            .find(|(_, workloads)| workloads.iter().any(|workload| workload.workload_pod_uid == workload_uid))
            .map(|(pod, _)| pod.as_str())
    }

    pub fn workload_uids(&self) -> impl Iterator<Item = &str> {
        self.mountpoint_pods.values().flatten().map(|workload| workload.workload_pod_uid.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::CustomResourceExt as _;
    use serde_json::json;

    #[test]
    fn an_object_of_the_reference_parses() {
        let object: MountpointS3PodAttachment = serde_json::from_value(json!({
            "apiVersion": "s3.csi.scality.com/v2", "kind": "MountpointS3PodAttachment",
            "metadata": {"name": "s3pa-x2b4c", "generateName": "s3pa-"},
            "spec": {
                "nodeName": "worker-1", "persistentVolumeName": "my-s3-pv",
                "volumeID": "csi-s3-12345678-abcd-1234-abcd-123456789012",
                "mountOptions": "--read-only,--cache /tmp/cache", "workloadFSGroup": "1000",
                "mountpointS3PodAttachments": {"mp-pod-xyz789": [
                    {"workloadPodUID": "abc-123", "attachmentTime": "2024-01-15T10:30:00Z"},
                    {"workloadPodUID": "ghi-789", "attachmentTime": "2024-01-15T10:35:00Z"}
                ]}
            }
        }))
        .unwrap();
        assert_eq!(object.spec.mountpoint_pod_of("ghi-789"), Some("mp-pod-xyz789"));
        assert_eq!(object.spec.mountpoint_pod_of("abc"), None);
        assert_eq!(object.spec.authentication_source, "");
        assert_eq!(object.spec.workload_uids().collect::<Vec<_>>(), ["abc-123", "ghi-789"]);
    }

    #[test]
    fn what_a_later_version_wrote_into_an_entry_survives() {
        let entry =
            json!({"workloadPodUID": "u", "attachmentTime": "2024-01-15T10:30:00Z", "since": {"v": 3}});
        let parsed: WorkloadAttachment = serde_json::from_value(entry.clone()).unwrap();
        assert_eq!(serde_json::to_value(parsed).unwrap(), entry);
    }

    /// `cargo xtask gen` writes it.
    #[test]
    fn the_committed_definition_is_current() {
        let path = "../../charts/s3-csi/crds/mountpoints3podattachments.yaml";
        let head = "# Generated from crates/contract/src/attachment.rs by `cargo xtask gen`; do not edit.\n";
        let current =
            format!("{head}{}", serde_saphyr::to_string(&MountpointS3PodAttachment::crd()).unwrap());
        if std::env::var_os("S3_CSI_GENERATE").is_some() {
            std::fs::write(path, &current).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), current, "run `cargo xtask gen`");
    }

    #[test]
    fn the_definition_is_what_the_documents_say() {
        let crd = serde_json::to_value(MountpointS3PodAttachment::crd()).unwrap();
        assert_eq!(crd["metadata"]["name"], "mountpoints3podattachments.s3.csi.scality.com");
        assert_eq!(crd["spec"]["scope"], "Cluster");
        assert_eq!(crd["spec"]["names"]["shortNames"], json!(["s3pa"]));
        let version = &crd["spec"]["versions"][0];
        assert_eq!(version["name"], "v2");
        assert_eq!(version["selectableFields"].as_array().unwrap().len(), 8);
        let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let mut required: Vec<&str> =
            spec["required"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        required.sort_unstable();
        assert_eq!(
            required,
            [
                "mountOptions",
                "mountpointS3PodAttachments",
                "nodeName",
                "persistentVolumeName",
                "volumeID",
                "workloadFSGroup"
            ]
        );
        let columns = version["additionalPrinterColumns"].as_array().unwrap();
        let names: Vec<&str> = columns.iter().filter_map(|column| column["name"].as_str()).collect();
        assert_eq!(names, ["Node", "PV Name", "Mount Options", "Age"]);
    }
}
