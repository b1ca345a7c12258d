//! The slices of Kubernetes objects that the controller looks at.
//!
//! Whatever is not named here is skipped while parsing and never kept: a cluster has many pods, and most of each is
//! containers and environment that no decision needs. Nor do annotations that anybody may write take memory. A slim object
//! is never written back.

mod metadata;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Resource;
use kube::api::ObjectMeta;
use serde::Deserialize;

use metadata::metadata;

/// A pod, as far as it can be a workload.
#[derive(Resource, Deserialize, Clone, Debug)]
#[resource(inherit = "Pod")]
pub struct SlimPod {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: SlimPodSpec,
    #[serde(default)]
    pub status: SlimPodStatus,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimPodSpec {
    pub(crate) node_name: Option<String>,
    pub(crate) service_account_name: Option<String>,
    pub(crate) security_context: Option<SlimSecurityContext>,
    pub(crate) volumes: Vec<SlimPodVolume>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SlimSecurityContext {
    pub(crate) fs_group: Option<i64>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SlimPodVolume {
    pub(crate) name: String,
    pub(crate) persistent_volume_claim: Option<SlimClaimSource>,
    pub(crate) ephemeral: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SlimClaimSource {
    pub(crate) claim_name: String,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimPodStatus {
    pub(crate) phase: Option<String>,
    pub(crate) conditions: Vec<SlimCondition>,
    pub(crate) container_statuses: Vec<SlimContainerStatus>,
    pub(crate) init_container_statuses: Vec<SlimContainerStatus>,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SlimCondition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SlimContainerStatus {
    pub(crate) started: Option<bool>,
    pub(crate) state: SlimContainerState,
    pub(crate) last_state: SlimContainerState,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SlimContainerState {
    pub(crate) running: Option<serde::de::IgnoredAny>,
    pub(crate) waiting: Option<SlimReason>,
    pub(crate) terminated: Option<SlimReason>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub(crate) struct SlimReason {
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
}

/// A volume, as far as it can be ours.
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

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SlimVolumeSpec {
    pub(crate) csi: Option<SlimCsi>,
    pub(crate) mount_options: Vec<String>,
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

/// A claim, as far as a bucket can be made for it.
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
    pub(crate) data_source: Option<serde::de::IgnoredAny>,
    pub(crate) data_source_ref: Option<serde::de::IgnoredAny>,
    pub(crate) volume_attributes_class_name: Option<String>,
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
