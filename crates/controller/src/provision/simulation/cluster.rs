//! The API server and the S3 server, as far as provisioning can tell.

use std::collections::BTreeMap;

use contract::keys::Keys;
use contract::names::DRIVER;
use contract::s3::S3Failure;
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::json;

use crate::provision::bucket::{BucketError, DeleteOutcome, Kept};
use crate::provision::claims::claim::{Claim, FINALIZER, STARTED, StartedBucket};
use crate::provision::class::parameters::SecretRef;
use crate::provision::error::ProvisionError;
use crate::provision::reclaim::volume as released;
use crate::provision::s3::credentials::{Account, Credentials};
use crate::provision::s3::error::{ErrorKind, Operation, S3Error};
use crate::slim::SlimVolume;

pub(super) const FOREIGN: &str = "others-bucket";

#[derive(Clone, Debug)]
pub(super) struct SimClaim {
    pub(super) uid: String,
    pub(super) version: u64,
    pub(super) started: Option<String>,
    pub(super) has_finalizer: bool,
    pub(super) deleted_at: Option<Timestamp>,
    pub(super) bound: bool,
}

#[derive(Clone, Debug)]
pub(super) struct SimVolume {
    pub(super) handle: String,
    pub(super) claim_uid: String,
    pub(super) secret: Option<SecretRef>,
    pub(super) missing_since: Option<String>,
    pub(super) released: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Secret {
    Readable,
    Missing,
    Forbidden,
}

#[derive(Clone, Debug)]
pub(super) struct Bucket {
    pub(super) owner: String,
    pub(super) has_objects: bool,
}

/// The API server and the S3 server.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub(super) version: u64,
    pub(super) now: Timestamp,
    /// By name.
    pub(super) claims: BTreeMap<String, SimClaim>,
    /// By name.
    pub(super) volumes: BTreeMap<String, SimVolume>,
    /// How often it was edited; nothing, if it is deleted.
    pub(super) class: Option<u64>,
    pub(super) edits: u64,
    pub(super) secret: Secret,
    pub(super) buckets: BTreeMap<String, Bucket>,
    /// Requests that S3 carries out after the client has given up, but before it takes another one for the bucket.
    pub(super) late: BTreeMap<String, String>,
    /// Of Events about buckets that are kept or left.
    pub(super) notes: Vec<String>,
}

/// What S3 makes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Prompt,
    /// Carried out; the response is lost.
    Lost,
    /// Carried out later; the client has given up.
    Late,
    /// Carried out twice.
    Twice,
    /// Never carried out.
    Never,
    /// A clear refusal.
    Refused,
}

fn s3_error(kind: ErrorKind, operation: Operation, bucket: &str) -> S3Error {
    S3Error::simulated(kind, operation, bucket)
}

impl SimClaim {
    pub(super) fn object(&self, name: &str) -> Claim {
        let started = self.started.clone().map(|volume| json!(StartedBucket { volume }).to_string());
        let mut annotations = json!({"volume.kubernetes.io/storage-provisioner": DRIVER});
        if let Some(started) = started {
            annotations[STARTED] = json!(started);
        }
        let finalizers = if self.has_finalizer { vec![FINALIZER] } else { vec![] };
        let object = json!({
            "metadata": {
                "namespace": "ns", "name": name, "uid": self.uid, "resourceVersion": self.version.to_string(),
                "annotations": annotations, "finalizers": finalizers, "deletionTimestamp": self.deleted_at.map(|deleted| deleted.to_string()),
            },
            "spec": {
                "accessModes": ["ReadWriteMany"], "storageClassName": "class",
                "volumeName": self.bound.then(|| format!("pvc-{}", self.uid)),
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        Claim::of(&serde_json::from_value(object).unwrap()).unwrap()
    }
}

impl SimVolume {
    pub(super) fn object(&self, name: &str) -> SlimVolume {
        let mut annotations = json!({released::PROVISIONED_BY: DRIVER});
        if let Some(secret) = &self.secret {
            annotations[released::DELETION_SECRET_NAME] = json!(secret.name);
            annotations[released::DELETION_SECRET_NAMESPACE] = json!(secret.namespace);
        }
        if let Some(since) = &self.missing_since {
            annotations[released::SECRET_MISSING_SINCE] = json!(since);
        }
        let object = json!({
            "metadata": {"name": name, "uid": name, "annotations": annotations, "finalizers": [released::FINALIZER]},
            "spec": {
                "csi": {"driver": DRIVER, "volumeHandle": self.handle}, "persistentVolumeReclaimPolicy": "Delete",
            },
            "status": {"phase": if self.released { "Released" } else { "Bound" }},
        });
        serde_json::from_value(object).unwrap()
    }
}

impl Cluster {
    pub(super) fn new() -> Self {
        let foreign = Bucket { owner: "stranger".to_owned(), has_objects: false };
        Self {
            version: 0,
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            claims: BTreeMap::new(),
            volumes: BTreeMap::new(),
            class: Some(0),
            edits: 0,
            secret: Secret::Readable,
            buckets: BTreeMap::from([(FOREIGN.to_owned(), foreign)]),
            late: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Every edit names buckets anew; every other one has a Secret.
    pub(super) fn class(&self) -> Option<StorageClass> {
        let edit = self.class?;
        let mut parameters = json!({"bucketNamePrefix": format!("edit{edit}")});
        if edit % 2 == 1 {
            for role in ["provisioner", "node-publish"] {
                parameters[format!("csi.storage.k8s.io/{role}-secret-name")] = json!("keys");
                parameters[format!("csi.storage.k8s.io/{role}-secret-namespace")] = json!("ns");
            }
        }
        let class = json!({"metadata": {"name": "class"}, "provisioner": DRIVER, "parameters": parameters});
        Some(serde_json::from_value(class).unwrap())
    }

    pub(super) fn account(&self, secret: Option<&SecretRef>) -> Result<Account, ProvisionError> {
        let owner = match (secret, self.secret) {
            (None, _) => "driver",
            (Some(_), Secret::Readable) => "tenant",
            (Some(secret), Secret::Missing) => return Err(ProvisionError::SecretMissing(secret.clone())),
            (Some(secret), Secret::Forbidden) => return Err(ProvisionError::SecretForbidden(secret.clone())),
        };
        let keys = Keys {
            access_key_id: owner.to_owned(),
            secret_access_key: "secret".into(),
            session_token: None,
            expires: None,
        };
        Ok(Account::new(Credentials::from(keys), None))
    }

    pub(super) fn create_bucket(
        &mut self,
        bucket: &str,
        owner: &str,
        answer: Answer,
    ) -> Result<(), BucketError> {
        let fail = |kind| Err(BucketError::Create(s3_error(kind, Operation::CreateBucket, bucket)));
        match answer {
            Answer::Refused => return fail(ErrorKind::Answered(S3Failure::AccessDenied)),
            Answer::Never => return fail(ErrorKind::ConnectionLost),
            Answer::Late => {
                self.late.insert(bucket.to_owned(), owner.to_owned());
                return fail(ErrorKind::Timeout);
            }
            Answer::Prompt | Answer::Lost | Answer::Twice => {}
        }
        self.carry_out_late(bucket);
        let made = Bucket { owner: owner.to_owned(), has_objects: false };
        let existing = self.buckets.entry(bucket.to_owned()).or_insert(made);
        if existing.owner != owner {
            return fail(ErrorKind::Answered(S3Failure::OwnedByOther));
        }
        if answer == Answer::Lost { fail(ErrorKind::ConnectionLost) } else { Ok(()) }
    }

    pub(super) fn delete_bucket(
        &mut self,
        bucket: &str,
        owner: &str,
        answer: Answer,
    ) -> Result<DeleteOutcome, BucketError> {
        let fail = |kind| Err(BucketError::Delete(s3_error(kind, Operation::DeleteBucket, bucket)));
        match answer {
            Answer::Refused => return fail(ErrorKind::Answered(S3Failure::AccessDenied)),
            Answer::Never => return fail(ErrorKind::ConnectionLost),
            Answer::Prompt | Answer::Lost | Answer::Late | Answer::Twice => {}
        }
        self.carry_out_late(bucket);
        let Some(found) = self.buckets.get(bucket) else { return Ok(DeleteOutcome::Deleted) };
        if found.owner != owner {
            return fail(ErrorKind::Answered(S3Failure::AccessDenied));
        }
        if found.has_objects {
            return Ok(DeleteOutcome::Kept(Kept::NotEmpty));
        }
        self.buckets.remove(bucket);
        match answer {
            Answer::Lost | Answer::Late => fail(ErrorKind::Timeout),
            _ => Ok(DeleteOutcome::Deleted),
        }
    }

    pub(super) fn is_owned_by_class(&self, bucket: &str) -> bool {
        let owner = if self.class.is_some_and(|edit| edit % 2 == 1) { "tenant" } else { "driver" };
        self.buckets.get(bucket).is_none_or(|bucket| bucket.owner == owner)
    }

    pub(super) fn carry_out_late(&mut self, bucket: &str) {
        if let Some(owner) = self.late.remove(bucket) {
            self.buckets.entry(bucket.to_owned()).or_insert(Bucket { owner, has_objects: false });
        }
    }

    /// The PV controller, which may take its time to bind a claim.
    pub(super) fn bind(&mut self) {
        for claim in self.claims.values_mut() {
            if claim.deleted_at.is_none() && self.volumes.contains_key(&format!("pvc-{}", claim.uid)) {
                claim.bound = true;
                self.version += 1;
                claim.version = self.version;
            }
        }
        self.collect();
    }

    /// Removes deleted claims without finalizers, and releases their volumes.
    pub(super) fn collect(&mut self) {
        self.claims.retain(|_, claim| claim.deleted_at.is_none() || claim.has_finalizer);
        let alive = |uid: &str| self.claims.values().any(|claim| claim.uid == uid);
        for volume in self.volumes.values_mut() {
            volume.released = !alive(&volume.claim_uid);
        }
    }

    /// What must always be true.
    pub(super) fn check(&self) {
        assert!(self.buckets.contains_key(FOREIGN), "a bucket of others was deleted");
        for volume in self.volumes.values().filter(|volume| !volume.released) {
            assert!(self.buckets.contains_key(&volume.handle), "a volume lost its bucket: {self:#?}");
        }
        for (bucket, found) in self.buckets.iter().filter(|(name, _)| *name != FOREIGN) {
            let in_volume = self.volumes.values().any(|volume| volume.handle == *bucket);
            let in_claim = self
                .claims
                .values()
                .any(|claim| claim.has_finalizer && claim.started.as_ref() == Some(bucket));
            let in_event = self.notes.iter().any(|note| note.contains(bucket.as_str()));
            assert!(in_volume || in_claim || in_event, "nothing names {bucket} ({found:?}): {self:#?}");
        }
    }
}
