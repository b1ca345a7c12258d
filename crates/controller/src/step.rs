//! The writes that decisions consist of. Each names what it relies on, so that one made on old knowledge fails.

use std::collections::BTreeMap;

use contract::attachment::{AttachmentSpec, WorkloadAttachment};

/// One write to the API server. A list of them is applied in order and may end after any of them.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Fails if there is one of this name, which is how a race for a key ends.
    CreateAttachment { name: String, spec: Box<AttachmentSpec> },
    /// Changes entries of Mountpoint Pods, `None` removing one; fails if anything else was written since.
    UpdateAttachment {
        name: String,
        resource_version: u64,
        entries: BTreeMap<String, Option<Vec<WorkloadAttachment>>>,
    },
    /// Fails if it is another object of that name, or was written since.
    DeleteAttachment { name: String, uid: String, resource_version: u64 },
    /// A pod of this name that was made for the same attachment is as good.
    CreatePod { name: String, attachment: String, workload_uid: String },
    /// Tells the node to unmount; the pod then ends by itself.
    MarkUnmount { name: String, uid: String },
    /// `by_force` when there is no node left to do it in order.
    DeletePod { name: String, uid: String, by_force: bool },
}

impl Step {
    /// The Mountpoint Pod whose service this ends.
    pub fn retires(&self) -> Option<&str> {
        match self {
            Self::MarkUnmount { name, .. } | Self::DeletePod { name, .. } => Some(name),
            _ => None,
        }
    }

    /// For metrics and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CreateAttachment { .. } => "create_attachment",
            Self::UpdateAttachment { .. } => "update_attachment",
            Self::DeleteAttachment { .. } => "delete_attachment",
            Self::CreatePod { .. } => "create_pod",
            Self::MarkUnmount { .. } => "mark_unmount",
            Self::DeletePod { .. } => "delete_pod",
        }
    }
}
