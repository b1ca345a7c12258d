//! The parts of volumes and claims that decisions need; see [`contract::slim`] for pods.

use std::collections::BTreeMap;

use contract::names::DRIVER;
use contract::slim::metadata;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::Resource;
use kube::api::ObjectMeta;
use serde::Deserialize;

/// A volume, as far as it can be one of this driver.
#[derive(Resource, Deserialize, Clone, Debug)]
#[resource(inherit = "PersistentVolume")]
pub struct SlimVolume {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: SlimVolumeSpec,
    #[serde(default)]
    pub(crate) status: SlimVolumeStatus,
}

impl SlimVolume {
    /// Whether it is the driver's volume with this handle.
    pub fn has_handle(&self, handle: &str) -> bool {
        self.spec.csi.as_ref().is_some_and(|csi| csi.driver == DRIVER && csi.volume_handle == handle)
    }
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SlimVolumeSpec {
    pub(crate) csi: Option<SlimCsi>,
    pub(crate) mount_options: Vec<String>,
    pub(crate) access_modes: Vec<String>,
    pub(crate) claim_ref: Option<SlimClaimRef>,
    pub(crate) persistent_volume_reclaim_policy: Option<String>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SlimCsi {
    pub(crate) driver: String,
    pub(crate) volume_handle: String,
    pub(crate) volume_attributes: BTreeMap<String, String>,
    pub(crate) node_publish_secret_ref: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub(crate) struct SlimClaimRef {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub(crate) struct SlimVolumeStatus {
    pub(crate) phase: Option<String>,
}

/// A node, as far as Mountpoint Pods need it.
#[derive(Resource, Deserialize, Clone, Debug)]
#[resource(inherit = "Node")]
pub struct SlimNode {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: SlimNodeSpec,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub(crate) struct SlimNodeSpec {
    unschedulable: bool,
    taints: Vec<SlimTaint>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
struct SlimTaint {
    key: String,
}

/// In which the kubelet lists the CSI drivers that have registered, as a JSON object.
const DRIVERS: &str = "csi.volume.kubernetes.io/nodeid";
/// Taints of the cluster (pressure, loss, a cordon) and of autoscalers that are about to remove the node.
const CLOSING: &[&str] = &["node.kubernetes.io/", "ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupt"];

/// Set by an administrator on a node that is certainly off: its pods are deleted without a confirmation of their end.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

impl SlimNode {
    /// Whether nothing runs there and nothing will before the node was started again.
    pub fn is_out_of_service(&self) -> bool {
        self.spec.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE)
    }

    /// Whether the driver runs there and pods that nothing needs yet may be added.
    pub fn takes_warm_pods(&self) -> bool {
        let drivers = self.metadata.annotations.as_ref().and_then(|all| all.get(DRIVERS));
        let is_registered = drivers.is_some_and(|drivers| drivers.contains(&format!("\"{DRIVER}\"")));
        let closes = |taint: &SlimTaint| CLOSING.iter().any(|prefix| taint.key.starts_with(prefix));
        is_registered && !self.spec.unschedulable && !self.spec.taints.iter().any(closes)
    }
}

/// A claim, as far as provisioning needs it.
#[derive(Resource, Deserialize, Clone, Debug)]
#[resource(inherit = "PersistentVolumeClaim")]
pub struct SlimClaim {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: SlimClaimSpec,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SlimClaimSpec {
    pub(crate) access_modes: Vec<String>,
    pub(crate) storage_class_name: Option<String>,
    pub(crate) volume_name: Option<String>,
    pub(crate) volume_mode: Option<String>,
    pub(crate) resources: SlimResources,
    pub(crate) selector: Option<serde::de::IgnoredAny>,
    pub(crate) data_source: Option<SlimSource>,
    pub(crate) data_source_ref: Option<SlimSource>,
    pub(crate) volume_attributes_class_name: Option<String>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SlimSource {
    pub(crate) api_group: Option<String>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub(crate) struct SlimResources {
    pub(crate) requests: SlimRequests,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub(crate) struct SlimRequests {
    pub(crate) storage: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn only_its_own_taint_takes_a_node_out_of_service() {
        let out = |key: &str| {
            let node =
                json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": key, "effect": "NoExecute"}]}});
            serde_json::from_value::<SlimNode>(node).unwrap().is_out_of_service()
        };
        assert!(out("node.kubernetes.io/out-of-service"));
        assert!(!out("node.kubernetes.io/unreachable"), "what runs there may still write");
    }

    #[test]
    fn warm_pods_are_kept_where_the_driver_runs_and_nothing_is_short() {
        let takes = |drivers: &str, spec: Value| {
            let node = json!({"metadata": {"name": "n", "annotations": {DRIVERS: drivers}}, "spec": spec});
            serde_json::from_value::<SlimNode>(node).unwrap().takes_warm_pods()
        };
        let ours = r#"{"ebs.csi.aws.com":"i-1","s3.csi.scality.com":"n"}"#;
        let tainted = |key: &str| json!({"taints": [{"key": key, "effect": "NoSchedule"}]});
        assert!(takes(ours, json!({})));
        assert!(takes(ours, tainted("nvidia.com/gpu")), "workloads of such nodes tolerate it");
        assert!(!takes(r#"{"ebs.csi.aws.com":"i-1"}"#, json!({})));
        assert!(!takes(ours, json!({"unschedulable": true})));
        for key in
            ["node.kubernetes.io/memory-pressure", "ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"]
        {
            assert!(!takes(ours, tainted(key)), "{key}");
        }
    }
}
