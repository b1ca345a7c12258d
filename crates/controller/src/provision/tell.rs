//! Events on claims and volumes, with external-provisioner's reasons where it has one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use contract::names::DRIVER;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::ResourceExt as _;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use super::claim::Claim;
use super::naming::VolumeId;
use super::storage_class::SecretRef;
use super::volume::Kept;
use crate::confirm::read;
use crate::explain::cut;
use crate::slim::SlimVolume;

/// As long as nothing changes, it is told again after this long.
const REPEAT_AFTER: Duration = Duration::from_mins(10);

/// Stable codes: alerts and scripts are built on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    Provisioning,
    ProvisioningSucceeded,
    ProvisioningFailed,
    /// What was begun for a claim that is being deleted cannot be undone yet.
    ProvisioningCleanupFailed,
    VolumeFailedDelete,
    /// The volume is gone, its bucket is not.
    BucketKept,
    /// The claim or the volume is gone, and there are no keys to delete its bucket with.
    BucketLeft,
}

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Provisioning => "Provisioning",
            Self::ProvisioningSucceeded => "ProvisioningSucceeded",
            Self::ProvisioningFailed => "ProvisioningFailed",
            Self::ProvisioningCleanupFailed => "ProvisioningCleanupFailed",
            Self::VolumeFailedDelete => "VolumeFailedDelete",
            Self::BucketKept => "BucketKept",
            Self::BucketLeft => "BucketLeft",
        }
    }

    fn kind(self) -> EventType {
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

/// Why a bucket outlives its volume.
pub fn kept(bucket: &str, endpoint: &str, why: Kept) -> String {
    let (what, them) = match why {
        Kept::NotEmpty => ("is not empty", "objects"),
        Kept::Uploading => ("has unfinished uploads", "uploads"),
    };
    format!(
        "bucket `{bucket}` at {endpoint} {what} and is kept: delete it with its {them} if nobody needs them, or set \
         `deletionPolicy: delete-objects` in classes whose buckets may go with them"
    )
}

/// Why a bucket may outlive a claim that never had a volume. `secret` is nothing, if the class is gone.
pub fn left(id: &VolumeId, endpoint: &str, secret: Option<&SecretRef>) -> String {
    let why = match secret {
        Some(SecretRef { namespace, name }) => {
            format!("Secret {namespace}/{name}, with whose keys it could be deleted, is gone")
        }
        None => "the StorageClass that says with whose keys it could be deleted is gone".to_owned(),
    };
    format!(
        "`{id}` may have been made at {endpoint}, and {why}: delete it by hand if it is there; it is empty"
    )
}

/// Why what is behind a volume outlives it, objects and all.
pub fn abandoned(id: &VolumeId, endpoint: &str, secret: &SecretRef) -> String {
    let SecretRef { namespace, name } = secret;
    let what = match id {
        VolumeId::Bucket(bucket) => format!("bucket `{bucket}`"),
        VolumeId::Prefix { bucket, prefix, .. } => {
            format!("prefix `{}` of bucket `{bucket}`", prefix.as_str())
        }
    };
    format!(
        "{what} at {endpoint} is left with its objects, because Secret {namespace}/{name}, with whose keys it would be \
         deleted, did not come back: delete it by hand if nobody needs it"
    )
}

/// By object and reason: when, and what.
type Told = HashMap<(String, Reason), (Instant, String)>;

#[derive(Clone)]
pub struct Teller {
    recorder: Recorder,
    told: Arc<Mutex<Told>>,
}

impl Teller {
    pub fn new(client: &Client) -> Self {
        let reporter = Reporter { controller: DRIVER.to_owned(), instance: None };
        Self { recorder: Recorder::new(client.clone(), reporter), told: Arc::default() }
    }

    /// In the background: nobody waits for an event.
    pub fn tell(&self, about: ObjectReference, reason: Reason, message: String) {
        let what = (about.uid.clone().unwrap_or_default(), reason);
        {
            let mut told = self.told();
            let lately = |(at, before): &(Instant, String)| at.elapsed() < REPEAT_AFTER && *before == message;
            if told.get(&what).is_some_and(lately) {
                return;
            }
            told.retain(|_, (at, _)| at.elapsed() < REPEAT_AFTER);
            told.insert(what.clone(), (Instant::now(), message.clone()));
        }
        let teller = self.clone();
        tokio::spawn(async move {
            let event = Event {
                type_: reason.kind(),
                reason: reason.as_str().to_owned(),
                note: Some(cut(&message)),
                action: "Provision".to_owned(),
                secondary: None,
            };
            if let Err(error) = read("the answer to an event", teller.recorder.publish(&event, &about)).await
            {
                tracing::warn!(object = about.name, reason = reason.as_str(), %error, "event not published");
                teller.told().remove(&what);
            }
        });
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().expect("nobody panics while noting")
    }
}

pub fn claim(claim: &Claim) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: Some(claim.namespace.clone()),
        name: Some(claim.name.clone()),
        uid: Some(claim.uid.clone()),
        resource_version: Some(claim.resource_version.to_string()),
        field_path: None,
    }
}

pub fn volume(volume: &SlimVolume) -> ObjectReference {
    ObjectReference { uid: volume.uid(), ..crate::explain::volume(&volume.name_any()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_named() {
        let id = VolumeId::bucket("pvc-1", None);
        let secret = SecretRef { namespace: "ns".to_owned(), name: "keys".to_owned() };
        let server = "http://s3.test";
        let (known, unknown) = (left(&id, server, Some(&secret)), left(&id, server, None));
        let abandoned = abandoned(&id, server, &secret);
        assert!(known.contains("Secret ns/keys") && !unknown.contains("Secret"), "{known}; {unknown}");
        let kept = kept(id.bucket_name(), server, Kept::Uploading);
        assert!([known, unknown, abandoned, kept].iter().all(|told| told.contains(&id.to_string())));
    }
}
