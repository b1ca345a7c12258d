//! Events on workloads: why a volume is not mounted, where people look first.

use contract::mountpoint_pod::StartFailure;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::EventType;
use service::events::{self, Events, Repeat};
use strum::IntoStaticStr;

use crate::observed::Workload;

/// Stable codes: alerts and scripts match them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr)]
pub enum Reason {
    InvalidVolumeAttributes,
    PersistentVolumeMissing,
    DuplicateVolumeHandle,
    MountOptionsIgnored,
    CacheSizeLimited,
    MountpointPodRejected,
    MountpointPodUnschedulable,
    MountpointPodImagePullFailed,
    MountpointPodCrashing,
    MountpointPodStartFailed,
    MountpointPodFailed,
    MountpointPodReplaced,
    HeadroomPodRejected,
    ServiceAccountMissing,
    PodIdentityDisabled,
}

impl From<&StartFailure> for Reason {
    fn from(failure: &StartFailure) -> Self {
        match failure.reason.as_str() {
            "Unschedulable" | "SchedulerError" | "SchedulingGated" => Self::MountpointPodUnschedulable,
            "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" => {
                Self::MountpointPodImagePullFailed
            }
            "CrashLoopBackOff" => Self::MountpointPodCrashing,
            "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
                Self::MountpointPodStartFailed
            }
            _ => Self::MountpointPodFailed,
        }
    }
}

/// A Warning for some workloads. `about` is the volume or the pod that it is about.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    pub workloads: Vec<Workload>,
    pub reason: Reason,
    pub about: ObjectReference,
    pub message: String,
}

pub struct WorkloadEvents(Events);

impl WorkloadEvents {
    pub fn new(client: &Client) -> Self {
        Self(Events::new(client.clone(), None))
    }

    pub fn publish(&self, notice: &Notice) {
        for Workload { uid, namespace, name, .. } in &notice.workloads {
            let event = events::Notice {
                type_: EventType::Warning,
                reason: notice.reason.into(),
                note: notice.message.clone(),
                action: "Mount",
                secondary: Some(notice.about.clone()),
                repeat: Repeat::Later,
            };
            self.0.publish(events::pod(namespace, name, Some(uid)), event);
        }
    }

    /// Forgets what was published on workloads that no longer exist.
    pub fn forget(&self, exists: impl Fn(&str) -> bool) {
        self.0.forget(exists);
    }
}
