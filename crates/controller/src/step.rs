//! The writes that decisions consist of. Each names the state that it relies on, so that one based on an outdated object
//! fails.

use std::collections::BTreeMap;

use contract::attachment::{AttachmentSpec, WorkloadAttachment};
use contract::mountpoint_pod::EarlyMount;
use contract::sharing::SharingKey;
use contract::volume::Volume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use strum::IntoStaticStr;

/// One write to the API server. A list of them is applied in order and may end after any of them.
#[derive(Clone, Debug, PartialEq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Step {
    /// Fails if there is one of this name, which is how a race for a key ends.
    CreateAttachment {
        name: String,
        spec: Box<AttachmentSpec>,
    },
    /// Changes entries of Mountpoint Pods, `None` removing one; fails if anything else was written since.
    UpdateAttachment {
        name: String,
        resource_version: u64,
        entries: BTreeMap<String, Option<Vec<WorkloadAttachment>>>,
    },
    /// Fails if it is another object of that name, or was written since.
    DeleteAttachment {
        name: String,
        uid: String,
        resource_version: u64,
    },
    /// An existing pod of this name that was created for the same attachment is as good. `preempts` if room was reserved for
    /// it, which it takes.
    CreatePod {
        name: String,
        attachment: String,
        workload_uid: String,
        preempts: bool,
    },
    /// A pod that is kept ready on the node for a volume to come.
    CreateWarmPod {
        name: String,
        node: String,
    },
    /// Makes a warm pod that of an attachment; fails if anything else was written to it since.
    ClaimPod {
        name: String,
        resource_version: u64,
        attachment: String,
        workload_uid: String,
        early_mount: Option<EarlyMount>,
    },
    /// Fails if anything was written to it since: it may have been claimed. `by_force` as below.
    DeleteWarmPod {
        name: String,
        uid: String,
        resource_version: u64,
        by_force: bool,
    },
    /// Asks the node to unmount; the pod then ends by itself.
    MarkUnmount {
        name: String,
        uid: String,
    },
    /// `by_force` when there is no node left to do it in order.
    DeletePod {
        name: String,
        uid: String,
        by_force: bool,
    },
    /// Lets headroom pods follow the workload to its node; fails if it is another pod of that name. So do the next two.
    LabelWorkload {
        namespace: String,
        name: String,
        uid: String,
    },
    UnlabelWorkload {
        namespace: String,
        name: String,
        uid: String,
    },
    /// Lets the scheduler place the workload, as far as we are concerned.
    RemoveGate {
        namespace: String,
        name: String,
        uid: String,
    },
    /// Keeps room for the Mountpoint Pod that the workload's volume will need. One that exists is as good.
    CreateHeadroomPod {
        name: String,
        workload_uid: String,
        workload_namespace: String,
        workload_name: String,
        volume_name: String,
        volume: Box<Volume>,
    },
    DeleteHeadroomPod {
        name: String,
        uid: String,
    },
    /// Reports what is wrong with an attachment, or that it no longer is.
    SetCondition {
        attachment: String,
        condition: Box<Condition>,
    },
}

impl Step {
    /// The Mountpoint Pod that this takes out of service.
    pub fn retires(&self) -> Option<&str> {
        match self {
            Self::MarkUnmount { name, .. } | Self::DeletePod { name, .. } => Some(name),
            _ => None,
        }
    }

    pub fn claims(&self) -> bool {
        matches!(self, Self::ClaimPod { .. })
    }

    /// For metrics and logs.
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// One line per change of state.
    pub fn log(&self, key: Option<&SharingKey>) {
        let (node, volume_id) = (key.map(|key| &key.node), key.map(|key| &key.volume_id));
        match self {
            Self::CreateAttachment { name, .. } => {
                tracing::info!(attachment = name, node, volume_id, "attachment created")
            }
            Self::UpdateAttachment { name, .. } => {
                tracing::info!(attachment = name, node, volume_id, "attachment updated")
            }
            Self::DeleteAttachment { name, .. } => {
                tracing::info!(attachment = name, node, volume_id, "attachment deleted")
            }
            Self::CreatePod { name, attachment, workload_uid: pod_uid, .. } => {
                tracing::info!(mountpoint_pod = name, attachment, pod_uid, node, volume_id, "pod created");
            }
            Self::CreateWarmPod { name, node } => {
                tracing::info!(mountpoint_pod = name, node, "warm pod created");
            }
            Self::ClaimPod { name, attachment, workload_uid: pod_uid, .. } => {
                tracing::info!(
                    mountpoint_pod = name,
                    attachment,
                    pod_uid,
                    node,
                    volume_id,
                    "warm pod claimed"
                );
            }
            Self::DeleteWarmPod { name, .. } => tracing::info!(mountpoint_pod = name, "warm pod deleted"),
            Self::MarkUnmount { name, .. } => {
                tracing::info!(mountpoint_pod = name, node, volume_id, "pod marked for unmount")
            }
            Self::DeletePod { name, by_force, .. } => {
                tracing::info!(mountpoint_pod = name, node, volume_id, by_force, "pod deleted");
            }
            Self::LabelWorkload { namespace, name, uid: pod_uid } => {
                tracing::info!(namespace, name, pod_uid, "workload labelled for its headroom pods");
            }
            Self::UnlabelWorkload { namespace, name, uid: pod_uid } => {
                tracing::info!(namespace, name, pod_uid, "label for headroom pods removed from workload");
            }
            Self::RemoveGate { namespace, name, uid: pod_uid } => {
                tracing::info!(namespace, name, pod_uid, "scheduling gate removed");
            }
            Self::CreateHeadroomPod { name, workload_uid: pod_uid, volume_name, .. } => {
                tracing::info!(headroom_pod = name, pod_uid, volume_name, "headroom pod created");
            }
            Self::DeleteHeadroomPod { name, .. } => {
                tracing::info!(headroom_pod = name, "headroom pod deleted");
            }
            Self::SetCondition { attachment, condition } => {
                tracing::info!(attachment, reason = condition.reason, "condition changed");
            }
        }
    }
}
