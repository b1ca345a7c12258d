//! What there is to work on.

/// One unit of work. Two of the same kind and name are never handled at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A sharing key, by the name of its attachment.
    Group(String),
    /// A Mountpoint Pod that no attachment names.
    Pod(String),
    /// A node, for the warm Mountpoint Pods on it.
    WarmPods(String),
    /// A workload, by UID, with headroom, or which asks for it.
    Headroom(String),
    /// A workload, by UID, whose service account's role has to be read.
    Role(String),
    /// A claim to provision, by namespace and name.
    Claim(String, String),
    /// A provisioned volume.
    Volume(String),
}
