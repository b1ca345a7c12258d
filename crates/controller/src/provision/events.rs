//! Events on claims and volumes, with external-provisioner's reasons where it has one.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::EventType;
use service::events::{Notice, Repeat};

/// Stable: alerts and scripts depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr)]
pub enum EventReason {
    Provisioning,
    ProvisioningSucceeded,
    ProvisioningFailed,
    /// The bucket of a deleted claim cannot be deleted yet.
    ProvisioningCleanupFailed,
    VolumeFailedDelete,
    /// The volume is deleted, its bucket is not.
    BucketKept,
    /// The claim or the volume is deleted, and there are no credentials to delete its bucket with.
    BucketLeft,
}

impl EventReason {
    fn event_type(self) -> EventType {
        match self {
            Self::Provisioning | Self::ProvisioningSucceeded => EventType::Normal,
            Self::ProvisioningFailed
            | Self::ProvisioningCleanupFailed
            | Self::VolumeFailedDelete
            | Self::BucketKept
            | Self::BucketLeft => EventType::Warning,
        }
    }
}

pub struct Events(service::events::Events);

impl Events {
    pub fn new(client: &Client) -> Self {
        Self(service::events::Events::new(client.clone(), None))
    }

    pub fn publish(&self, object: ObjectReference, reason: EventReason, note: String) {
        let notice = Notice {
            type_: reason.event_type(),
            reason: reason.into(),
            note,
            action: "Provision",
            secondary: None,
            repeat: Repeat::WithNewNote,
        };
        self.0.publish(object, notice);
    }
}
