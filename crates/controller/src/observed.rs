//! The watched objects, parsed.

use std::collections::BTreeMap;

use contract::attachment::{AttachmentSpec, MountpointS3PodAttachment};
use contract::authentication::SecretPresence;
use contract::mountpoint_pod::EarlyMount;
pub use contract::mountpoint_pod::{MountpointPod, Phase, StartFailure};
use contract::names::{DRIVER, label};
use contract::options::MountOption;
use contract::slim::{SlimPod, version};
use contract::volume::VolumeError;
use contract::volume_plan::VolumePlan;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt as _;

use crate::slim::SlimVolume;

/// Claims of one pod that are considered. No node has room for so many volumes, but a pod may name tens of thousands.
const MOST_CLAIMS: usize = 256;

/// In bytes. Usual ones have a hundred; what does not fit is mounted when the kubelet asks.
const LONGEST_EARLY_MOUNT: usize = 2048;

/// A scheduled pod with claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub node: String,
    pub fs_group: String,
    pub service_account: String,
    pub claims: Vec<String>,
    pub phase: Phase,
    pub terminating: bool,
    /// A container of it runs, perhaps an init container while the phase is still Pending.
    pub busy: bool,
    /// Headroom pods were created for its Mountpoint Pods, which may preempt them.
    pub has_headroom: bool,
    pub created: Option<Time>,
}

impl Workload {
    /// `None` for a pod that cannot be one: not scheduled, or without claims.
    pub fn of(pod: &SlimPod) -> Option<Self> {
        Self::scheduled_or_not(pod)
            .filter(|workload| !workload.node.is_empty() && !workload.claims.is_empty())
    }

    /// With an empty node, if it is not scheduled.
    pub fn scheduled_or_not(pod: &SlimPod) -> Option<Self> {
        let uid = pod.metadata.uid.clone()?;
        let fs_group = pod.spec.security_context.as_ref().and_then(|context| context.fs_group);
        let account = pod.spec.service_account_name.clone().filter(|account| !account.is_empty());
        Some(Self {
            // A copied label is of another workload.
            has_headroom: pod.labels().get(label::HEADROOM_FOR_WORKLOAD) == Some(&uid),
            uid,
            namespace: pod.namespace()?,
            name: pod.name_any(),
            node: pod.spec.node_name.clone().unwrap_or_default(),
            fs_group: fs_group.map(|group| group.to_string()).unwrap_or_default(),
            service_account: account.unwrap_or_else(|| "default".to_owned()),
            claims: pod.claims().take(MOST_CLAIMS).collect(),
            phase: Phase::of(&pod.status),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            busy: pod.status.containers().any(|container| container.state.running.is_some()),
            created: pod.creation_timestamp(),
        })
    }

    /// Whether it may still do I/O. A terminating pod may, until its containers have ended; one that is deleted before a
    /// container ran never will.
    pub fn is_alive(&self) -> bool {
        match self.phase {
            Phase::Running | Phase::Unknown => true,
            Phase::Pending => !self.terminating || self.busy,
            Phase::Succeeded | Phase::Failed => false,
        }
    }

    /// Whether it waits for its volumes. A pod that already runs has its mounts.
    pub fn awaits_volumes(&self) -> bool {
        self.phase == Phase::Pending && !self.terminating
    }
}

/// A volume of our driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Volume {
    pub name: String,
    pub handle: String,
    pub attributes: BTreeMap<String, String>,
    pub secret: SecretPresence,
    pub mount_options: Vec<String>,
    /// The first one, which is what the kubelet mounts it with.
    pub access_mode: Option<String>,
    /// (namespace, name) of the claim it is bound to. The binding is complete when the volume says so: the claim need
    /// not be watched as well.
    pub claim: Option<(String, String)>,
}

impl S3Volume {
    pub fn of(volume: &SlimVolume) -> Option<Self> {
        let csi = volume.spec.csi.as_ref().filter(|csi| csi.driver == DRIVER)?;
        let bound = volume.status.phase.as_deref() == Some("Bound");
        let claim = volume.spec.claim_ref.as_ref().filter(|_| bound);
        Some(Self {
            name: volume.name_any(),
            handle: csi.volume_handle.clone(),
            attributes: csi.volume_attributes.clone(),
            secret: csi.node_publish_secret_ref.map_or(SecretPresence::Absent, |_| SecretPresence::Present),
            mount_options: volume.spec.mount_options.clone(),
            access_mode: volume.spec.access_modes.first().cloned(),
            claim: claim.map(|claim| (claim.namespace.clone(), claim.name.clone())),
        })
    }

    /// For the node, which can mount it with the driver's own keys before the kubelet asks. Nothing for a volume with a
    /// Secret, which only the kubelet hands over.
    pub fn early_mount(&self) -> Option<EarlyMount> {
        // A `ReadOnlyMany` volume is mounted as with this option. The other modes are about who may mount it.
        let read_only = match self.access_mode.as_deref()? {
            "ReadOnlyMany" => Some(MountOption::ReadOnly.to_string()),
            "ReadWriteMany" | "ReadWriteOnce" | "ReadWriteOncePod" => None,
            _ => return None,
        };
        let mount_options = self.mount_options.iter().cloned().chain(read_only).collect();
        let early = EarlyMount { attributes: self.attributes.clone(), mount_options };
        let words = early.attributes.iter().flat_map(|(key, value)| [key, value]).chain(&early.mount_options);
        let is_short = words.map(String::len).sum::<usize>() <= LONGEST_EARLY_MOUNT;
        (is_short && self.secret == SecretPresence::Absent).then_some(early)
    }

    pub fn plan(&self) -> Result<VolumePlan, VolumeError> {
        VolumePlan::parse(&self.attributes, self.secret, &self.mount_options)
    }
}

/// An attachment as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Attachment {
    pub name: String,
    pub uid: String,
    pub resource_version: u64,
    pub spec: AttachmentSpec,
    pub conditions: Vec<Condition>,
    pub terminating: bool,
}

impl Attachment {
    pub fn of(object: MountpointS3PodAttachment) -> Option<Self> {
        Some(Self {
            name: object.name_any(),
            uid: object.metadata.uid.clone()?,
            resource_version: version(&object.metadata),
            terminating: object.metadata.deletion_timestamp.is_some(),
            conditions: object.status.map(|status| status.conditions).unwrap_or_default(),
            spec: object.spec,
        })
    }
}

/// A Mountpoint Pod that was just created, for tests to change.
#[cfg(test)]
pub fn created(name: &str) -> MountpointPod {
    MountpointPod {
        name: name.to_owned(),
        uid: name.to_owned(),
        resource_version: 1,
        node: None,
        phase: Phase::Pending,
        created: None,
        terminating: false,
        deleted: None,
        started: false,
        running_since: None,
        needs_unmount: false,
        no_new_workload: false,
        movable: true,
        driver_version: String::new(),
        attachment: None,
        warm: None,
        claimed: false,
        early_mount: None,
        volume_name: None,
        workload_uid: None,
        authentication: None,
        cache_mebibytes: None,
        start_failure: None,
        last_end: None,
    }
}

#[cfg(test)]
mod tests;
