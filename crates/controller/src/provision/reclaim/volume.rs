//! A provisioned volume as observed, and what it needs, as external-provisioner decides it. Pure.

use contract::names::DRIVER;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource as _, ResourceExt as _};

use crate::provision::class::parameters::{DELETION_POLICY, REGION, SecretRef};
use crate::provision::volume_id::DeletionPolicy;
use crate::slim::SlimVolume;

pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub const DELETION_SECRET_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
pub const DELETION_SECRET_NAMESPACE: &str = "volume.kubernetes.io/provisioner-deletion-secret-namespace";
/// On a volume whose bucket is deleted with it: deleting the volume by hand must not leave the bucket behind.
pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// On a volume that cannot be deleted: since when the Secret with its credentials is missing, or
/// not readable.
pub const SECRET_MISSING_SINCE: &str = "s3.csi.scality.com/secret-missing-since";
/// Secrets are replaced within seconds or minutes; one that was deleted with its namespace never returns.
const SECRET_RETURNS_WITHIN: SignedDuration = SignedDuration::from_mins(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Nothing,
    /// Its bucket, then itself.
    Delete,
    AddFinalizer,
    /// Its bucket is retained.
    RemoveFinalizer,
}

/// Nothing for volumes that were created by hand or by another driver.
pub fn need(volume: &SlimVolume) -> Need {
    let csi = volume.spec.csi.as_ref().filter(|csi| csi.driver == DRIVER);
    let by_us = volume.annotations().get(PROVISIONED_BY).is_some_and(|name| name == DRIVER);
    if csi.is_none() || !by_us {
        return Need::Nothing;
    }
    let has_finalizer = volume.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    let terminating = volume.metadata.deletion_timestamp.is_some();
    if volume.spec.persistent_volume_reclaim_policy.as_deref() != Some("Delete") {
        return if has_finalizer { Need::RemoveFinalizer } else { Need::Nothing };
    }
    let released = volume.status.phase.as_deref() == Some("Released");
    match (released, has_finalizer, terminating) {
        // Its bucket is deleted already, or the finalizer was removed to keep it; or the volume is in use.
        (_, false, true) | (false, true, _) => Need::Nothing,
        (true, ..) => Need::Delete,
        (false, false, false) => Need::AddFinalizer,
    }
}

/// What has to be deleted with a volume, and with which credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    pub handle: String,
    pub region: Option<String>,
    pub secret: Option<SecretRef>,
    /// For the objects of a bucket; the id of a prefix has its own.
    pub policy: DeletionPolicy,
}

impl Contents {
    pub fn of(volume: &SlimVolume) -> Option<Self> {
        let csi = volume.spec.csi.as_ref()?;
        let annotation = |key: &str| volume.annotations().get(key).filter(|value| !value.is_empty()).cloned();
        let secret = annotation(DELETION_SECRET_NAME).zip(annotation(DELETION_SECRET_NAMESPACE));
        Some(Self {
            handle: csi.volume_handle.clone(),
            region: csi.volume_attributes.get(REGION).cloned(),
            secret: secret.map(|(name, namespace)| SecretRef { namespace, name }),
            policy: csi
                .volume_attributes
                .get(DELETION_POLICY)
                .and_then(|policy| policy.parse().ok())
                .unwrap_or_default(),
        })
    }
}

/// Its [`SECRET_MISSING_SINCE`].
pub fn secret_missing_since(volume: &SlimVolume) -> Option<Timestamp> {
    volume.annotations().get(SECRET_MISSING_SINCE)?.parse().ok()
}

/// Until when a volume, or a deleted claim, waits for its Secret.
pub fn secret_deadline(since: Timestamp) -> Timestamp {
    since.saturating_add(SECRET_RETURNS_WITHIN).unwrap_or(Timestamp::MAX)
}

/// For Events.
pub fn reference(volume: &SlimVolume) -> ObjectReference {
    ObjectReference { resource_version: None, ..volume.object_ref(&()) }
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
        assert_eq!(need(&volume(retain)), Need::RemoveFinalizer);
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
        assert_eq!(Contents::of(&with).unwrap().secret, Some(secret));
        let empty = volume(|volume| {
            volume["metadata"]["annotations"][DELETION_SECRET_NAME] = json!("");
            volume["metadata"]["annotations"][DELETION_SECRET_NAMESPACE] = json!("");
        });
        assert_eq!(Contents::of(&empty).unwrap().secret, None);
    }

    #[test]
    fn a_bucket_is_emptied_only_where_its_volume_says_so() {
        assert_eq!(Contents::of(&volume(|_| ())).unwrap().policy, DeletionPolicy::Retain);
        for (policy, deletion) in [
            ("delete-objects", DeletionPolicy::DeleteObjects),
            ("retain", DeletionPolicy::Retain),
            ("?", DeletionPolicy::Retain),
        ] {
            let with = volume(|volume| {
                volume["spec"]["csi"]["volumeAttributes"] = json!({DELETION_POLICY: policy});
            });
            assert_eq!(Contents::of(&with).unwrap().policy, deletion, "{policy}");
        }
    }

    #[test]
    fn a_volume_waits_for_its_secret_for_a_while() {
        let since: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let waiting = volume(|volume| {
            volume["metadata"]["annotations"][SECRET_MISSING_SINCE] = json!(since.to_string());
        });
        assert_eq!(secret_missing_since(&waiting), Some(since));
        assert_eq!(secret_deadline(since).to_string(), "2026-01-01T00:10:00Z");
        let garbled = |volume: &mut Value| {
            volume["metadata"]["annotations"][SECRET_MISSING_SINCE] = json!("long ago");
        };
        assert_eq!(secret_missing_since(&volume(garbled)), None);
    }
}
