//! The writes that decisions consist of. Each names the state that it relies on, so that one based on an outdated object
//! fails.

use std::collections::BTreeMap;

use contract::attachment::{AttachmentSpec, WorkloadAttachment};
use contract::authentication::AuthenticationSource;
use contract::mountpoint_pod::EarlyMount;
use contract::sharing::SharingKey;
use contract::trace;
use contract::volume::Volume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use strum::{EnumMessage, IntoStaticStr};

/// A workload, and not another pod that was created under its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// One write to the API server. A list of them is applied in order and may end after any of them.
#[derive(Clone, Debug, PartialEq, EnumMessage, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Step {
    /// Fails if there is one of this name, which is how a race for a key ends.
    #[strum(message = "attachment created")]
    CreateAttachment { name: String, spec: Box<AttachmentSpec> },
    /// Changes entries of Mountpoint Pods, `None` removing one; fails if anything else was written since.
    #[strum(message = "attachment updated")]
    UpdateAttachment {
        name: String,
        resource_version: u64,
        entries: BTreeMap<String, Option<Vec<WorkloadAttachment>>>,
    },
    /// Fails if it is another object of that name, or was written since.
    #[strum(message = "attachment deleted")]
    DeleteAttachment { name: String, uid: String, resource_version: u64 },
    /// An existing pod of this name that was created for the same attachment is accepted. `preempts` if there is headroom
    /// for it, which it takes.
    #[strum(message = "pod created")]
    CreatePod { name: String, attachment: String, workload_uid: String, preempts: bool },
    /// A pod that is kept ready on the node for a volume to come.
    #[strum(message = "warm pod created")]
    CreateWarmPod { name: String, node: String, node_uid: String },
    /// Makes a warm pod that of an attachment; fails if anything else was written to it since.
    #[strum(message = "warm pod claimed")]
    ClaimPod {
        name: String,
        resource_version: u64,
        attachment: String,
        workload_uid: String,
        early_mount: Option<EarlyMount>,
    },
    /// Fails if anything was written to it since: it may have been claimed. `by_force` as below.
    #[strum(message = "warm pod deleted")]
    DeleteWarmPod { name: String, uid: String, resource_version: u64, by_force: bool },
    /// Asks the node to unmount; the pod then ends by itself.
    #[strum(message = "pod marked for unmount")]
    MarkUnmount { name: String, uid: String },
    /// Writes down whose credentials the pod's volume asks for, which its node cannot see; fails if it is another pod of that
    /// name.
    #[strum(message = "source of credentials recorded")]
    RecordAuthentication { name: String, uid: String, source: AuthenticationSource },
    /// `by_force` when there is no node left to do it in order.
    #[strum(message = "pod deleted")]
    DeletePod { name: String, uid: String, by_force: bool },
    /// Lets headroom pods follow the workload to its node; fails if it is another pod of that name. So do the next two.
    #[strum(message = "workload labelled for its headroom pods")]
    LabelWorkload(WorkloadRef),
    #[strum(message = "label for headroom pods removed from workload")]
    UnlabelWorkload(WorkloadRef),
    /// Lets the scheduler place the workload, as far as we are concerned.
    #[strum(message = "scheduling gate removed")]
    RemoveGate(WorkloadRef),
    /// Reserves headroom for the Mountpoint Pod that the workload's volume will need. One that exists is accepted.
    #[strum(message = "headroom pod created")]
    CreateHeadroomPod { name: String, workload: WorkloadRef, volume_name: String, volume: Box<Volume> },
    #[strum(message = "headroom pod deleted")]
    DeleteHeadroomPod { name: String, uid: String },
    /// Reports what is wrong with an attachment, or that it no longer is.
    #[strum(message = "condition changed")]
    SetCondition { attachment: String, condition: Box<Condition> },
}

impl Step {
    /// The Mountpoint Pod that this takes out of service, or takes for an attachment that does not name it yet.
    pub fn holds(&self) -> Option<&str> {
        match self {
            Self::MarkUnmount { name, .. } | Self::DeletePod { name, .. } | Self::ClaimPod { name, .. } => {
                Some(name)
            }
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

    /// Whether the object does not exist before.
    pub fn creates(&self) -> bool {
        matches!(
            self,
            Self::CreateAttachment { .. }
                | Self::CreatePod { .. }
                | Self::CreateWarmPod { .. }
                | Self::CreateHeadroomPod { .. }
        )
    }

    /// The trace ids of the workloads that it is about; several only for attachments.
    fn trace_id(&self) -> Option<String> {
        fn all<'a>(workloads: impl Iterator<Item = &'a WorkloadAttachment>) -> Option<String> {
            let ids: Vec<String> = workloads.map(|workload| trace::id(&workload.workload_pod_uid)).collect();
            (!ids.is_empty()).then(|| ids.join(" "))
        }
        match self {
            Self::CreateAttachment { spec, .. } => all(spec.mountpoint_pods.values().flatten()),
            Self::UpdateAttachment { entries, .. } => all(entries.values().flatten().flatten()),
            Self::CreatePod { workload_uid: uid, .. }
            | Self::ClaimPod { workload_uid: uid, .. }
            | Self::CreateHeadroomPod { workload: WorkloadRef { uid, .. }, .. }
            | Self::LabelWorkload(WorkloadRef { uid, .. })
            | Self::UnlabelWorkload(WorkloadRef { uid, .. })
            | Self::RemoveGate(WorkloadRef { uid, .. }) => Some(trace::id(uid)),
            _ => None,
        }
    }

    /// One line per change of state.
    pub fn log(&self, key: Option<&SharingKey>) {
        let (node, volume_id) = (key.map(|key| &key.node), key.map(|key| &key.volume_id));
        let (trace_id, change) = (self.trace_id(), self.get_message().unwrap_or(self.name()));
        match self {
            Self::CreateAttachment { name, .. }
            | Self::UpdateAttachment { name, .. }
            | Self::DeleteAttachment { name, .. } => {
                tracing::info!(attachment = name, node, volume_id, trace_id, "{change}");
            }
            Self::CreatePod { name: mountpoint_pod, attachment, workload_uid: pod_uid, .. }
            | Self::ClaimPod { name: mountpoint_pod, attachment, workload_uid: pod_uid, .. } => {
                tracing::info!(mountpoint_pod, attachment, pod_uid, node, volume_id, trace_id, "{change}");
            }
            Self::CreateWarmPod { name, node, .. } => {
                tracing::info!(mountpoint_pod = name, node, "{change}");
            }
            Self::DeleteWarmPod { name, .. } | Self::MarkUnmount { name, .. } => {
                tracing::info!(mountpoint_pod = name, node, volume_id, "{change}");
            }
            Self::RecordAuthentication { name, source, .. } => {
                tracing::info!(mountpoint_pod = name, node, volume_id, source = source.as_str(), "{change}");
            }
            Self::DeletePod { name, by_force, .. } => {
                tracing::info!(mountpoint_pod = name, node, volume_id, by_force, "{change}");
            }
            Self::LabelWorkload(workload) | Self::UnlabelWorkload(workload) | Self::RemoveGate(workload) => {
                let WorkloadRef { namespace, name, uid: pod_uid } = workload;
                tracing::info!(namespace, name, pod_uid, trace_id, "{change}");
            }
            Self::CreateHeadroomPod { name, workload, volume_name, .. } => {
                tracing::info!(
                    headroom_pod = name,
                    pod_uid = workload.uid,
                    volume_name,
                    trace_id,
                    "{change}"
                );
            }
            Self::DeleteHeadroomPod { name, .. } => tracing::info!(headroom_pod = name, "{change}"),
            Self::SetCondition { attachment, condition } => {
                tracing::info!(attachment, reason = condition.reason, "{change}");
            }
        }
    }
}
