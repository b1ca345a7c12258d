//! The kinds of objects that the plugin reads. Users without rights to some of them still get answers from the others.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Readable {
    Pods,
    Claims,
    Volumes,
    Classes,
    Attachments,
    MountpointPods,
    DriverPods,
    DriverWorkloads,
    Nodes,
    CsiNodes,
    CsiDrivers,
    Definition,
    Events,
    Secrets,
}

impl Readable {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Claims => "PersistentVolumeClaims",
            Self::Volumes => "PersistentVolumes",
            Self::Classes => "StorageClasses",
            Self::Attachments => "attachments (s3pa)",
            Self::MountpointPods => "Mountpoint Pods",
            Self::DriverPods => "pods of the driver",
            Self::DriverWorkloads => "Deployment and DaemonSet of the driver",
            Self::Nodes => "nodes",
            Self::CsiNodes => "CSINodes",
            Self::CsiDrivers => "CSIDrivers",
            Self::Definition => "definition of attachments",
            Self::Events => "events",
            Self::Secrets => "Secrets",
        }
    }
}
