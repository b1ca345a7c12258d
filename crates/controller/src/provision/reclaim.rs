//! What a volume that was provisioned needs of us when nobody claims it any more. Pure, and as external-provisioner
//! does it.

use contract::names::DRIVER;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use super::naming::Deletion;
use super::storage_class::{DELETION_POLICY, SecretRef};
use super::volume::REGION;
use crate::slim::SlimVolume;

pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub const DELETION_SECRET_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
pub const DELETION_SECRET_NAMESPACE: &str = "volume.kubernetes.io/provisioner-deletion-secret-namespace";
/// On a volume whose bucket goes with it: somebody who deletes the volume by hand must not leave the bucket behind.
pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// On a volume that waits to be deleted: when the Secret with whose keys was missed first.
pub const SECRET_MISSING_SINCE: &str = "s3.csi.scality.com/secret-missing-since";
/// Secrets are replaced within seconds, by people within minutes; one that went with its namespace never comes back.
const SECRET_RETURNS_WITHIN: SignedDuration = SignedDuration::from_mins(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Nothing,
    /// Delete what is behind it, then itself.
    Delete,
    /// It is to be deleted with its bucket some day.
    AddFinalizer,
    /// Its bucket stays.
    DropFinalizer,
}

/// Nothing for a volume that nobody provisioned, or another driver.
pub fn need(volume: &SlimVolume) -> Need {
    let csi = volume.spec.csi.as_ref().filter(|csi| csi.driver == DRIVER);
    let by_us = volume.annotations().get(PROVISIONED_BY).is_some_and(|name| name == DRIVER);
    if csi.is_none() || !by_us {
        return Need::Nothing;
    }
    let kept = volume.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    let terminating = volume.metadata.deletion_timestamp.is_some();
    if volume.spec.persistent_volume_reclaim_policy.as_deref() != Some("Delete") {
        return if kept { Need::DropFinalizer } else { Need::Nothing };
    }
    let released = volume.status.phase.as_deref() == Some("Released");
    match (released, kept, terminating) {
        // It goes without us: its bucket is gone already, or somebody took our mark away to keep it; or it is in use.
        (_, false, true) | (false, true, _) => Need::Nothing,
        (true, ..) => Need::Delete,
        (false, false, false) => Need::AddFinalizer,
    }
}

/// What is behind a volume, and with whose keys it is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    pub handle: String,
    pub region: Option<String>,
    pub secret: Option<SecretRef>,
    /// What becomes of a bucket that is not empty; the id of a prefix says that itself.
    pub deletion: Deletion,
}

impl Leftover {
    pub fn of(volume: &SlimVolume) -> Option<Self> {
        let csi = volume.spec.csi.as_ref()?;
        let annotation = |key: &str| volume.annotations().get(key).filter(|value| !value.is_empty()).cloned();
        let secret = annotation(DELETION_SECRET_NAME).zip(annotation(DELETION_SECRET_NAMESPACE));
        Some(Self {
            handle: csi.volume_handle.clone(),
            region: csi.volume_attributes.get(REGION).cloned(),
            secret: secret.map(|(name, namespace)| SecretRef { namespace, name }),
            deletion: csi
                .volume_attributes
                .get(DELETION_POLICY)
                .and_then(|policy| Deletion::parse(policy))
                .unwrap_or_default(),
        })
    }
}

pub fn missing_since(volume: &SlimVolume) -> Option<Timestamp> {
    volume.annotations().get(SECRET_MISSING_SINCE)?.parse().ok()
}

/// Until when a volume waits for its Secret.
pub fn waits_until(since: Timestamp) -> Timestamp {
    since.saturating_add(SECRET_RETURNS_WITHIN).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(change: impl FnOnce(&mut Value)) -> SlimVolume {
        let mut object = json!({
            "metadata": {"name": "pvc-1", "annotations": {PROVISIONED_BY: DRIVER}, "finalizers": [FINALIZER]},
            "spec": {"csi": {"driver": DRIVER, "volumeHandle": "csi-s3-1"}, "persistentVolumeReclaimPolicy": "Delete"},
            "status": {"phase": "Released"},
        });
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn only_released_volumes_of_ours_are_deleted() {
        assert_eq!(need(&volume(|_| ())), Need::Delete);
        let deleted_by_hand =
            |volume: &mut Value| volume["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(need(&volume(deleted_by_hand)), Need::Delete);
        for (pointer, value) in [
            ("/status/phase", "Bound"),
            ("/status/phase", "Available"),
            ("/status/phase", "Failed"),
            ("/spec/csi/driver", "other.csi"),
        ] {
            assert_eq!(
                need(&volume(|volume| *volume.pointer_mut(pointer).unwrap() = json!(value))),
                Need::Nothing
            );
        }
        assert_eq!(need(&volume(|volume| volume["metadata"]["annotations"] = json!({}))), Need::Nothing);
        let other =
            |volume: &mut Value| volume["metadata"]["annotations"][PROVISIONED_BY] = json!("other.csi");
        assert_eq!(need(&volume(other)), Need::Nothing);
    }

    #[test]
    fn the_finalizer_follows_the_policy() {
        let retain = |volume: &mut Value| volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
        assert_eq!(need(&volume(retain)), Need::DropFinalizer);
        let bound_without = |volume: &mut Value| {
            volume["status"]["phase"] = json!("Bound");
            volume["metadata"]["finalizers"] = json!([]);
        };
        assert_eq!(need(&volume(bound_without)), Need::AddFinalizer);
        let going_without = |volume: &mut Value| {
            volume["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection"]);
            volume["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        };
        assert_eq!(need(&volume(going_without)), Need::Nothing);
        let retained_without = |volume: &mut Value| {
            retain(volume);
            volume["metadata"]["finalizers"] = json!([]);
        };
        assert_eq!(need(&volume(retained_without)), Need::Nothing);
    }

    #[test]
    fn the_secret_is_found_again() {
        let with = volume(|volume| {
            volume["metadata"]["annotations"][DELETION_SECRET_NAME] = json!("keys");
            volume["metadata"]["annotations"][DELETION_SECRET_NAMESPACE] = json!("ns");
        });
        let secret = SecretRef { namespace: "ns".into(), name: "keys".into() };
        assert_eq!(Leftover::of(&with).unwrap().secret, Some(secret));
        let empty = volume(|volume| {
            volume["metadata"]["annotations"][DELETION_SECRET_NAME] = json!("");
            volume["metadata"]["annotations"][DELETION_SECRET_NAMESPACE] = json!("");
        });
        assert_eq!(Leftover::of(&empty).unwrap().secret, None);
    }

    #[test]
    fn a_bucket_is_emptied_only_where_its_volume_says_so() {
        assert_eq!(Leftover::of(&volume(|_| ())).unwrap().deletion, Deletion::Retain);
        for (policy, deletion) in [
            ("delete-objects", Deletion::DeleteObjects),
            ("retain", Deletion::Retain),
            ("?", Deletion::Retain),
        ] {
            let with = volume(|volume| {
                volume["spec"]["csi"]["volumeAttributes"] = json!({DELETION_POLICY: policy});
            });
            assert_eq!(Leftover::of(&with).unwrap().deletion, deletion, "{policy}");
        }
    }

    #[test]
    fn a_volume_waits_for_its_secret_for_a_while() {
        let since: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let waiting = volume(|volume| {
            volume["metadata"]["annotations"][SECRET_MISSING_SINCE] = json!(since.to_string());
        });
        assert_eq!(missing_since(&waiting), Some(since));
        assert_eq!(waits_until(since).to_string(), "2026-01-01T00:10:00Z");
        let garbled = |volume: &mut Value| {
            volume["metadata"]["annotations"][SECRET_MISSING_SINCE] = json!("long ago");
        };
        assert_eq!(missing_since(&volume(garbled)), None);
    }
}
