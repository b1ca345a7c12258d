//! The parts of volumes and claims that decisions need; see [`contract::slim`] for pods.

use std::collections::BTreeMap;

use contract::slim::metadata;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
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
