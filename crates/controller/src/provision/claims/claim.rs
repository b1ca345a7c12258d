//! A claim as observed, and what it needs. Pure.

use std::collections::BTreeMap;

use contract::names::DRIVER;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use service::events::object;
use thiserror::Error;

use crate::provision::volume_id::VolumeId;
use crate::slim::{SlimClaim, SlimSource};

/// Set by the PV controller when a claim waits for a provisioner; the second one before Kubernetes 1.23.
pub const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
/// Set by the scheduler once a pod that waits for the volume has a node.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The oldest way to name a class; it has precedence.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// On a claim from before its bucket is created until its `PersistentVolume` exists. A claim that is deleted in between
/// waits until the bucket is deleted, too: without the finalizer a crash would leave a bucket that no object names.
pub const FINALIZER: &str = "s3.csi.scality.com/provisioning";
/// The annotation that says which bucket was started, for the cleanup. It comes and goes with the finalizer, so one name serves
/// for both.
pub const STARTED: &str = "s3.csi.scality.com/provisioning";

/// A claim usually has one or two. Its author may write tens of thousands, and all claims are cached.
const MAX_FINALIZERS: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: u64,
    /// Those that every claim needs; templates may need others.
    pub annotations: BTreeMap<String, String>,
    /// At most [`MAX_FINALIZERS`] and our own.
    pub finalizers: Vec<String>,
    pub class: String,
    pub access_modes: Vec<String>,
    /// The requested size, as the claim writes it.
    pub storage: String,
    pub bound_to: Option<String>,
    /// Its `deletionTimestamp`.
    pub deleted_at: Option<Timestamp>,
    /// A volume populator has a claim of its own provisioned, fills the volume, and then binds it to this claim.
    has_populator: bool,
    unsupported: Option<Unsupported>,
}

/// What buckets do not support. A claim cannot be edited to remove it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unsupported {
    #[error("a bucket cannot be created from a snapshot or a volume: remove the claim's `dataSource`")]
    Source,
    #[error("block volumes are not supported: use `volumeMode: Filesystem`")]
    Block,
    #[error(
        "claims with a `selector` are not provisioned, because it selects existing volumes: remove the selector"
    )]
    Selector,
    #[error("volumes cannot be modified: remove the claim's `volumeAttributesClassName`")]
    AttributesClass,
    #[error("the claim has more than {MAX_FINALIZERS} finalizers: remove some")]
    Finalizers,
}

/// What a claim needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Nothing,
    Refuse(Unsupported),
    Provision,
    /// It is deleted or bound: delete a bucket that has no volume, and remove the finalizer.
    CleanUp,
}

/// The value of [`STARTED`]. The claim's author can write it, too, so it has neither credentials nor an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedBucket {
    pub volume: String,
}

impl Claim {
    /// `None` for a claim of another provisioner.
    pub fn of(claim: &SlimClaim) -> Option<Self> {
        let annotations = claim.annotations();
        let named = PROVISIONER.iter().find_map(|key| annotations.get(*key));
        let has_finalizer = claim.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
        if named.is_none_or(|name| name != DRIVER) && !has_finalizer {
            return None;
        }
        let spec = &claim.spec;
        let sources = || spec.data_source.iter().chain(&spec.data_source_ref);
        let unsupported = if sources().any(is_for_provisioner) {
            Some(Unsupported::Source)
        } else if spec.volume_mode.as_deref() == Some("Block") {
            Some(Unsupported::Block)
        } else if spec.selector.is_some() {
            Some(Unsupported::Selector)
        } else if spec.volume_attributes_class_name.as_ref().is_some_and(|name| !name.is_empty()) {
            Some(Unsupported::AttributesClass)
        } else if claim.finalizers().len() > MAX_FINALIZERS {
            Some(Unsupported::Finalizers)
        } else {
            None
        };
        let finalizers = claim.finalizers().iter().enumerate();
        let finalizers = finalizers
            .filter(|(index, name)| *index < MAX_FINALIZERS || *name == FINALIZER)
            .map(|(_, name)| name);
        Some(Self {
            namespace: claim.namespace()?,
            name: claim.name_any(),
            uid: claim.uid()?,
            resource_version: claim.resource_version()?.parse().ok()?,
            annotations: annotations.clone(),
            finalizers: finalizers.cloned().collect(),
            class: annotations.get(CLASS).or(spec.storage_class_name.as_ref()).cloned().unwrap_or_default(),
            access_modes: spec.access_modes.clone(),
            storage: spec.resources.requests.storage.clone().unwrap_or_default(),
            bound_to: spec.volume_name.clone().filter(|name| !name.is_empty()),
            deleted_at: claim.metadata.deletion_timestamp.as_ref().map(|deleted| deleted.0),
            has_populator: !sources().all(is_for_provisioner),
            unsupported,
        })
    }

    pub fn need(&self) -> Need {
        match (self.deleted_at.is_some() || self.bound_to.is_some(), self.has_finalizer(), self.unsupported) {
            (true, true, _) => Need::CleanUp,
            (true, false, _) => Need::Nothing,
            (false, ..) if self.has_populator => Need::Nothing,
            (false, _, Some(unsupported)) => Need::Refuse(unsupported),
            (false, _, None) => Need::Provision,
        }
    }

    pub fn has_finalizer(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == FINALIZER)
    }

    /// For Events, and for the volume's `claimRef`.
    pub fn reference(&self) -> ObjectReference {
        let resource_version = Some(self.resource_version.to_string());
        let claim = object("PersistentVolumeClaim", Some(&self.namespace), &self.name, Some(&self.uid));
        ObjectReference { resource_version, ..claim }
    }

    pub fn has_node(&self) -> bool {
        self.annotations.get(SELECTED_NODE).is_some_and(|node| !node.is_empty())
    }

    /// Name of its `PersistentVolume`, as csi-provisioner chooses it.
    pub fn volume_name(&self) -> String {
        format!("pvc-{}", self.uid)
    }

    /// The bucket that was started for this claim. The claim's author can write anything there, so it must be derived from
    /// the claim's UID. A prefix is never accepted: its id can name any bucket, and we never write one there.
    pub fn started_bucket(&self) -> Option<VolumeId> {
        let started: StartedBucket = serde_json::from_str(self.annotations.get(STARTED)?).ok()?;
        let id = VolumeId::parse(&started.volume).filter(|id| matches!(id, VolumeId::Bucket(_)))?;
        (self.has_finalizer() && id.is_derived_from(&self.volume_name())).then_some(id)
    }
}

/// A claim or a snapshot; every other source is for a volume populator, as csi-provisioner has it.
fn is_for_provisioner(source: &SlimSource) -> bool {
    matches!(source.api_group.as_deref(), None | Some("" | "snapshot.storage.k8s.io"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provision::class::prefix::Prefix;
    use crate::provision::volume_id::DeletionPolicy;
    use serde_json::{Value, json};

    fn claim(change: impl FnOnce(&mut Value)) -> Option<Claim> {
        let mut object = json!({
            "metadata": {
                "namespace": "ns", "name": "data", "uid": "1", "resourceVersion": "7",
                "annotations": {"volume.kubernetes.io/storage-provisioner": DRIVER},
            },
            "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "s3", "resources": {"requests": {"storage": "1Gi"}}},
        });
        change(&mut object);
        Claim::of(&serde_json::from_value(object).unwrap())
    }

    fn need(change: impl FnOnce(&mut Value)) -> Need {
        claim(change).unwrap().need()
    }

    #[test]
    fn only_claims_for_us_are_ours() {
        assert_eq!(need(|_| ()), Need::Provision);
        let key = "volume.kubernetes.io/storage-provisioner";
        assert_eq!(claim(|claim| claim["metadata"]["annotations"] = json!({})), None);
        assert_eq!(claim(|claim| claim["metadata"]["annotations"][key] = json!("other.csi")), None);
        let old = claim(|claim| {
            claim["metadata"]["annotations"] =
                json!({"volume.beta.kubernetes.io/storage-provisioner": DRIVER});
        });
        assert_eq!(old.unwrap().need(), Need::Provision);
    }

    #[test]
    fn unsupported_claims_are_refused() {
        let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
        for (field, value, refusal) in [
            ("dataSource", json!({"kind": "PersistentVolumeClaim", "name": "c"}), Unsupported::Source),
            ("dataSourceRef", snapshot, Unsupported::Source),
            ("volumeMode", json!("Block"), Unsupported::Block),
            ("selector", json!({"matchLabels": {"a": "b"}}), Unsupported::Selector),
            ("volumeAttributesClassName", json!("fast"), Unsupported::AttributesClass),
        ] {
            assert_eq!(need(|claim| claim["spec"][field] = value), Need::Refuse(refusal));
        }
        assert_eq!(need(|claim| claim["spec"]["volumeMode"] = json!("Filesystem")), Need::Provision);
        let many: Vec<String> =
            (0..5000).map(|number| format!("a.b/{number}")).chain([FINALIZER.into()]).collect();
        let many = claim(|claim| claim["metadata"]["finalizers"] = json!(many)).unwrap();
        assert_eq!(many.need(), Need::Refuse(Unsupported::Finalizers));
        assert!(
            many.has_finalizer() && many.finalizers.len() == MAX_FINALIZERS + 1,
            "{}",
            many.finalizers.len()
        );
    }

    #[test]
    fn a_claim_with_a_populator_is_left_to_it() {
        let source = json!({"apiGroup": "example.com", "kind": "Backup", "name": "b"});
        assert_eq!(need(|claim| claim["spec"]["dataSourceRef"] = source), Need::Nothing);
    }

    #[test]
    fn a_started_bucket_is_cleaned_up() {
        let begun = |claim: &mut Value| claim["metadata"]["finalizers"] = json!(["x", FINALIZER]);
        let deleted =
            |claim: &mut Value| claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(need(begun), Need::Provision, "a predecessor was killed: go on");
        assert_eq!(need(deleted), Need::Nothing);
        assert_eq!(need(|claim| claim["spec"]["volumeName"] = json!("v")), Need::Nothing);
        let both = |claim: &mut Value| {
            begun(claim);
            deleted(claim);
        };
        assert_eq!(need(both), Need::CleanUp);
        let bound = |claim: &mut Value| {
            begun(claim);
            claim["spec"]["volumeName"] = json!("v");
        };
        assert_eq!(need(bound), Need::CleanUp);
    }

    #[test]
    fn a_claim_cannot_have_anothers_bucket_deleted() {
        let with = |begun: &StartedBucket| {
            let text = serde_json::to_string(begun).unwrap();
            let marked = claim(|claim| {
                claim["metadata"]["annotations"][STARTED] = json!(text);
                claim["metadata"]["finalizers"] = json!([FINALIZER]);
            });
            marked.unwrap().started_bucket()
        };
        let begun = |volume: &str| StartedBucket { volume: volume.to_owned() };
        let own = VolumeId::bucket("pvc-1", Some("team"));
        assert_eq!(with(&begun(&own.to_string())), Some(own));
        assert_eq!(with(&begun(&VolumeId::bucket("pvc-2", None).to_string())), None);
        assert_eq!(with(&begun("my-bucket")), None);
        // The author of a claim knows its UID, and so the first part of such an id.
        let prefix = Prefix::parse("theirs").unwrap();
        let theirs = VolumeId::prefix("pvc-1", DeletionPolicy::DeleteObjects, "others-bucket", prefix);
        assert!(theirs.is_derived_from("pvc-1"));
        assert_eq!(with(&begun(&theirs.to_string())), None);
    }

    #[test]
    fn a_mark_of_an_earlier_version_names_its_bucket_and_no_secret() {
        let own = VolumeId::bucket("pvc-1", None);
        let old = json!({"volume": own.to_string(), "secret": ["theirs", "keys"], "region": "eu"});
        let marked = claim(|claim| {
            claim["metadata"]["annotations"][STARTED] = json!(old.to_string());
            claim["metadata"]["finalizers"] = json!([FINALIZER]);
        });
        assert_eq!(marked.unwrap().started_bucket(), Some(own));
    }
}
