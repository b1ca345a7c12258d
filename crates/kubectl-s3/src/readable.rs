//! The kinds of objects that the plugin reads. Users without rights to some of them still get answers from the others.

use serde::Serialize;
use strum::IntoStaticStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, IntoStaticStr)]
#[serde(rename_all = "camelCase")]
#[strum(const_into_str, serialize_all = "lowercase")]
pub enum Readable {
    Pods,
    #[strum(serialize = "PersistentVolumeClaims")]
    Claims,
    #[strum(serialize = "PersistentVolumes")]
    Volumes,
    #[strum(serialize = "StorageClasses")]
    Classes,
    #[strum(serialize = "attachments (s3pa)")]
    Attachments,
    #[strum(serialize = "Mountpoint Pods")]
    MountpointPods,
    #[strum(serialize = "pods of the driver")]
    DriverPods,
    #[strum(serialize = "Deployment and DaemonSet of the driver")]
    DriverWorkloads,
    Nodes,
    #[strum(serialize = "CSINodes")]
    CsiNodes,
    #[strum(serialize = "CSIDrivers")]
    CsiDrivers,
    #[strum(serialize = "definition of attachments")]
    Definition,
    Events,
}
