//! The parts of pods that decisions need.
//!
//! Whatever is not named here is skipped while parsing and never kept: a cluster has many pods, and most of each is
//! containers and environment. Annotations that users may write take no memory either. A slim object is never written back.

mod metadata;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::Deserialize;
use serde::de::IgnoredAny;

pub use metadata::metadata;

/// A pod, as far as it can be a workload or a Mountpoint Pod.
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
    pub node_name: Option<String>,
    pub service_account_name: Option<String>,
    pub security_context: Option<SlimSecurityContext>,
    pub volumes: Vec<SlimPodVolume>,
    pub scheduling_gates: Vec<SlimGate>,
    pub affinity: Option<SlimAffinity>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimAffinity {
    pub node_affinity: Option<SlimNodeAffinity>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimNodeAffinity {
    pub required_during_scheduling_ignored_during_execution: Option<SlimNodeSelector>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimNodeSelector {
    pub node_selector_terms: Vec<SlimNodeTerm>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimNodeTerm {
    pub match_fields: Vec<SlimFieldMatch>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct SlimFieldMatch {
    pub key: String,
    pub operator: String,
    pub values: Vec<String>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct SlimGate {
    pub name: String,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimSecurityContext {
    pub fs_group: Option<i64>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimPodVolume {
    pub name: String,
    pub persistent_volume_claim: Option<SlimClaimSource>,
    pub ephemeral: Option<IgnoredAny>,
    pub empty_dir: Option<SlimEmptyDir>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimClaimSource {
    pub claim_name: String,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimEmptyDir {
    pub medium: Option<String>,
    pub size_limit: Option<String>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimPodStatus {
    pub phase: Option<String>,
    pub conditions: Vec<SlimCondition>,
    pub container_statuses: Vec<SlimContainerStatus>,
    pub init_container_statuses: Vec<SlimContainerStatus>,
    pub reason: Option<String>,
    pub message: Option<String>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub reason: Option<String>,
    pub message: Option<String>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimContainerStatus {
    pub started: Option<bool>,
    pub state: SlimContainerState,
    pub last_state: SlimContainerState,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimContainerState {
    pub running: Option<SlimRunning>,
    pub waiting: Option<SlimReason>,
    pub terminated: Option<SlimEnd>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimRunning {
    pub started_at: Option<Time>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct SlimReason {
    pub reason: Option<String>,
    pub message: Option<String>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimEnd {
    pub reason: Option<String>,
    pub message: Option<String>,
    pub finished_at: Option<Time>,
}

impl SlimPod {
    /// Names of its claims; that of a generic ephemeral volume is named after pod and volume.
    pub fn claims(&self) -> impl Iterator<Item = String> {
        let pod = self.metadata.name.as_deref().unwrap_or_default();
        self.spec.volumes.iter().filter_map(move |volume| {
            match (&volume.persistent_volume_claim, &volume.ephemeral) {
                (Some(source), _) => Some(source.claim_name.clone()),
                (None, Some(_)) => Some(format!("{pod}-{}", volume.name)),
                (None, None) => None,
            }
        })
    }
}

impl SlimPodStatus {
    pub fn containers(&self) -> impl Iterator<Item = &SlimContainerStatus> {
        self.init_container_statuses.iter().chain(&self.container_statuses)
    }
}

/// Versions of one object are comparable numbers; anything else counts as oldest.
pub fn version(metadata: &ObjectMeta) -> u64 {
    metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}
