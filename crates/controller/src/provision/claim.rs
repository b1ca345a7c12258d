//! What a claim needs of us. Pure: from what the API server says to what is to be done.

use std::collections::BTreeMap;

use contract::names::DRIVER;
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::naming::VolumeId;
use crate::slim::SlimClaim;

/// Written by the cluster's binder when it waits for a provisioner; the second one before Kubernetes 1.23.
const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
/// Written by the scheduler when a pod has a node and waits for its volume.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The oldest way to name a class; it goes before the newer one.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// On a claim from before its bucket is made until its volume is written. A claim that is deleted meanwhile stays until
/// the bucket is gone again, whoever is killed and when: without it nobody would know of a bucket that was made for a
/// claim that is no more.
pub const FINALIZER: &str = "s3.csi.scality.com/provisioning";
/// What has been begun, for whoever must undo it.
pub const BEGUN: &str = "s3.csi.scality.com/provisioning";

/// A claim has one or two. Its author may write tens of thousands, and every claim is kept.
const MOST_FINALIZERS: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: u64,
    /// Those that matter to every claim; a template may ask for others.
    pub annotations: BTreeMap<String, String>,
    /// No more than [`MOST_FINALIZERS`] and our own.
    pub finalizers: Vec<String>,
    pub class: String,
    pub access_modes: Vec<String>,
    /// As the claim writes it.
    pub storage: String,
    pub volume_name: Option<String>,
    pub terminating: bool,
    refusal: Option<Refusal>,
}

/// What no bucket can be; none of it can be edited in a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("a bucket cannot be made from a snapshot or a volume: remove the claim's dataSource")]
    Source,
    #[error("block volumes are not supported: a bucket is a file system; use volumeMode: Filesystem")]
    Block,
    #[error(
        "claims with a selector are not provisioned: it selects among volumes that exist; remove the selector"
    )]
    Selector,
    #[error("volumes cannot be modified: remove the claim's volumeAttributesClassName")]
    AttributesClass,
    #[error("the claim has more than {MOST_FINALIZERS} finalizers: remove some")]
    Finalizers,
}

/// What is to be done about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Nothing,
    Refuse(Refusal),
    Provision,
    /// Something was begun and is no longer wanted, or is done: find out which, and let the claim go.
    Settle,
}

/// Of [`BEGUN`]. The claim's author can write it, too: it says nothing of keys, nor of where to use them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    pub volume: String,
}

impl Claim {
    /// Nothing for a claim that is none of ours.
    pub fn of(claim: &SlimClaim) -> Option<Self> {
        let annotations = claim.annotations();
        let named = PROVISIONER.iter().find_map(|key| annotations.get(*key));
        let begun = claim.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
        if named.is_none_or(|name| name != DRIVER) && !begun {
            return None;
        }
        let spec = &claim.spec;
        let refusal = if spec.data_source.is_some() || spec.data_source_ref.is_some() {
            Some(Refusal::Source)
        } else if spec.volume_mode.as_deref() == Some("Block") {
            Some(Refusal::Block)
        } else if spec.selector.is_some() {
            Some(Refusal::Selector)
        } else if spec.volume_attributes_class_name.as_ref().is_some_and(|name| !name.is_empty()) {
            Some(Refusal::AttributesClass)
        } else if claim.finalizers().len() > MOST_FINALIZERS {
            Some(Refusal::Finalizers)
        } else {
            None
        };
        let places = claim.finalizers().iter().enumerate();
        let finalizers = places
            .filter(|(place, name)| *place < MOST_FINALIZERS || *name == FINALIZER)
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
            volume_name: spec.volume_name.clone().filter(|name| !name.is_empty()),
            terminating: claim.metadata.deletion_timestamp.is_some(),
            refusal,
        })
    }

    pub fn need(&self) -> Need {
        match (self.terminating || self.volume_name.is_some(), self.is_begun(), self.refusal) {
            (true, true, _) => Need::Settle,
            (true, false, _) => Need::Nothing,
            (false, _, Some(refusal)) => Need::Refuse(refusal),
            (false, _, None) => Need::Provision,
        }
    }

    pub fn is_begun(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == FINALIZER)
    }

    pub fn has_node(&self) -> bool {
        self.annotations.get(SELECTED_NODE).is_some_and(|node| !node.is_empty())
    }

    /// As csi-provisioner calls it.
    pub fn persistent_volume(&self) -> String {
        format!("pvc-{}", self.uid)
    }

    /// What was begun for this very claim. Its author can write anything there: only a bucket whose name follows from the
    /// claim's own UID is believed. A prefix never is: its id names any bucket, and we never write one there.
    pub fn begun(&self) -> Option<VolumeId> {
        let begun: Begun = serde_json::from_str(self.annotations.get(BEGUN)?).ok()?;
        let id = VolumeId::parse(&begun.volume).filter(|id| matches!(id, VolumeId::Bucket(_)))?;
        (self.is_begun() && id.is_of(&self.persistent_volume())).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provision::naming::Deletion;
    use crate::provision::prefix::Prefix;
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
    fn what_no_bucket_can_be_is_refused() {
        for (field, value, refusal) in [
            ("dataSource", json!({"kind": "VolumeSnapshot", "name": "s"}), Refusal::Source),
            ("dataSourceRef", json!({"kind": "Any", "name": "s"}), Refusal::Source),
            ("volumeMode", json!("Block"), Refusal::Block),
            ("selector", json!({"matchLabels": {"a": "b"}}), Refusal::Selector),
            ("volumeAttributesClassName", json!("fast"), Refusal::AttributesClass),
        ] {
            assert_eq!(need(|claim| claim["spec"][field] = value), Need::Refuse(refusal));
        }
        assert_eq!(need(|claim| claim["spec"]["volumeMode"] = json!("Filesystem")), Need::Provision);
        let many: Vec<String> =
            (0..5000).map(|number| format!("a.b/{number}")).chain([FINALIZER.into()]).collect();
        let many = claim(|claim| claim["metadata"]["finalizers"] = json!(many)).unwrap();
        assert_eq!(many.need(), Need::Refuse(Refusal::Finalizers));
        assert!(many.is_begun() && many.finalizers.len() == MOST_FINALIZERS + 1, "{}", many.finalizers.len());
    }

    #[test]
    fn what_was_begun_is_settled() {
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
        assert_eq!(need(both), Need::Settle);
        let bound = |claim: &mut Value| {
            begun(claim);
            claim["spec"]["volumeName"] = json!("v");
        };
        assert_eq!(need(bound), Need::Settle);
    }

    #[test]
    fn a_claim_cannot_have_anothers_bucket_deleted() {
        let with = |begun: &Begun| {
            let text = serde_json::to_string(begun).unwrap();
            let marked = claim(|claim| {
                claim["metadata"]["annotations"][BEGUN] = json!(text);
                claim["metadata"]["finalizers"] = json!([FINALIZER]);
            });
            marked.unwrap().begun()
        };
        let begun = |volume: &str| Begun { volume: volume.to_owned() };
        let own = VolumeId::bucket("pvc-1", Some("team"));
        assert_eq!(with(&begun(&own.to_string())), Some(own));
        assert_eq!(with(&begun(&VolumeId::bucket("pvc-2", None).to_string())), None);
        assert_eq!(with(&begun("my-bucket")), None);
        // Whoever writes a claim knows its UID, and so the first part of such an id.
        let prefix = Prefix::parse("theirs").unwrap();
        let theirs = VolumeId::prefix("pvc-1", Deletion::DeleteObjects, "others-bucket", prefix);
        assert!(theirs.is_of("pvc-1"));
        assert_eq!(with(&begun(&theirs.to_string())), None);
    }

    #[test]
    fn a_mark_of_an_earlier_version_names_its_bucket_and_no_secret() {
        let own = VolumeId::bucket("pvc-1", None);
        let old = json!({"volume": own.to_string(), "secret": ["theirs", "keys"], "region": "eu"});
        let marked = claim(|claim| {
            claim["metadata"]["annotations"][BEGUN] = json!(old.to_string());
            claim["metadata"]["finalizers"] = json!([FINALIZER]);
        });
        assert_eq!(marked.unwrap().begun(), Some(own));
    }
}
