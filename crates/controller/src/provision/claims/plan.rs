//! Decides about a claim: from one observation to steps. Pure, so that the simulation can stop it after every step.

use jiff::Timestamp;
use k8s_openapi::api::storage::v1::StorageClass;

use super::account::BucketAccount;
use super::claim::{Claim, Need};
use crate::provision::class::parameters::SecretRef;
use crate::provision::error::ProvisionError;
use crate::provision::events::EventReason;
use crate::provision::new_volume::NewVolume;
use crate::provision::reclaim::volume::secret_deadline;
use crate::provision::s3::credentials::Account;
use crate::provision::volume_id::VolumeId;

pub struct Observed {
    /// From the cache; every write on it fails with a conflict if it is outdated.
    pub claim: Claim,
    /// Handle of the claim's `PersistentVolume`. Only read for a claim with our finalizer; for others its creation finds it.
    pub volume: Option<String>,
    /// `None` if the claim is not to be provisioned now.
    pub wanted: Result<Option<Wanted>, ProvisionError>,
    /// The bucket that the claim's annotation names.
    pub started: Option<Started>,
    pub now: Timestamp,
}

/// What the class asks for.
pub struct Wanted {
    pub new: NewVolume,
    pub class: StorageClass,
    pub account: Account,
    pub endpoint: String,
}

pub struct Started {
    pub id: VolumeId,
    /// Whose it is, according to this process or to the class; nothing, if neither knows. The driver's keys are tried then:
    /// all that they could delete is an empty bucket whose name is derived from the claim's UID.
    pub owner: Option<BucketAccount>,
    /// Whether this process started it.
    pub is_own: bool,
    pub account: Result<Account, ProvisionError>,
    pub endpoint: String,
}

#[derive(Clone, Debug)]
pub enum Step {
    Publish(EventReason, String),
    AddFinalizer {
        id: VolumeId,
        owner: BucketAccount,
    },
    /// `is_first`: nothing was started before, so that a refusal leaves nothing to clean up.
    CreateBucket {
        id: VolumeId,
        account: Account,
        is_first: bool,
    },
    CreateVolume {
        new: Box<NewVolume>,
        class: Box<StorageClass>,
    },
    /// Only if it is empty. `is_owner_known`: otherwise the credentials are a guess.
    DeleteBucket {
        id: VolumeId,
        account: Account,
        endpoint: String,
        is_owner_known: bool,
    },
    RemoveFinalizer,
}

#[derive(Debug, Default)]
pub struct Plan {
    pub steps: Vec<Step>,
    pub then: Next,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    #[default]
    Done,
    /// The volume exists. Until the PV controller has bound it, the claim looks as if it needed one.
    AwaitBinding,
    /// The claim can be provisioned again now.
    Replan,
}

pub fn plan(observed: Observed) -> Result<Plan, ProvisionError> {
    let Observed { claim, volume, wanted, started, now } = observed;
    let is_lost = claim.deleted_at.is_some_and(|deleted| now >= secret_deadline(deleted));
    match claim.need() {
        Need::Nothing => Ok(Plan::default()),
        Need::Refuse(unsupported) => {
            let event = Step::Publish(EventReason::ProvisioningFailed, unsupported.to_string());
            Ok(Plan { steps: vec![event], then: Next::Done })
        }
        Need::CleanUp => Ok(Plan { steps: clean_up(started, volume.as_deref(), is_lost)?, then: Next::Done }),
        Need::Provision if claim.has_finalizer() && volume.is_some() => {
            Ok(Plan { steps: clean_up(started, volume.as_deref(), is_lost)?, then: Next::AwaitBinding })
        }
        Need::Provision => {
            let Some(wanted) = wanted? else { return Ok(Plan::default()) };
            if claim.has_finalizer() && !continues(&wanted.new, started.as_ref()) {
                // The class has changed: delete the bucket of its old parameters first.
                return Ok(Plan { steps: clean_up(started, None, is_lost)?, then: Next::Replan });
            }
            Ok(Plan { steps: provision(&claim, wanted), then: Next::AwaitBinding })
        }
    }
}

/// Whether the started bucket is the wanted one, in the same account.
fn continues(new: &NewVolume, started: Option<&Started>) -> bool {
    let Some(started) = started else { return false };
    let moved = started.is_own && started.owner.as_ref() != Some(&BucketAccount::from(new));
    started.id == new.id && !moved
}

/// A claim that is deleted between these steps waits for its finalizer. A prefix needs none: nothing is created for it.
fn provision(claim: &Claim, wanted: Wanted) -> Vec<Step> {
    let Wanted { new, class, account, endpoint } = wanted;
    let (id, owner) = (new.id.clone(), BucketAccount::from(&new));
    let (is_bucket, is_first) = (matches!(id, VolumeId::Bucket(_)), !claim.has_finalizer());
    let creating = format!("creating volume `{id}` at {endpoint}");
    let mut steps = vec![Step::Publish(EventReason::Provisioning, creating)];
    steps.extend((is_bucket && is_first).then(|| Step::AddFinalizer { id: id.clone(), owner }));
    steps.push(Step::CreateBucket { id, account, is_first });
    steps.push(Step::CreateVolume { new: Box::new(new), class: Box::new(class) });
    steps.extend(is_bucket.then_some(Step::RemoveFinalizer));
    let created = format!("created volume {}", claim.volume_name());
    steps.push(Step::Publish(EventReason::ProvisioningSucceeded, created));
    steps
}

/// Deletes the started bucket, unless it is the volume's, and lets the claim go. `is_lost`: the claim was deleted so long ago
/// that a Secret which may not be read counts as gone. The permission may have been deleted with the namespace.
fn clean_up(
    started: Option<Started>,
    volume: Option<&str>,
    is_lost: bool,
) -> Result<Vec<Step>, ProvisionError> {
    let Some(started) = started.filter(|started| volume != Some(&started.id.to_string())) else {
        return Ok(vec![Step::RemoveFinalizer]);
    };
    let Started { id, owner, account, endpoint, .. } = started;
    let delete = match account {
        Ok(account) => Step::DeleteBucket { id, account, endpoint, is_owner_known: owner.is_some() },
        // It was deleted with its namespace, which would wait forever for a claim that waits for its Secret.
        Err(ProvisionError::SecretMissing(secret)) => bucket_left(&id, &endpoint, Some(&secret)),
        Err(ProvisionError::SecretForbidden(secret)) if is_lost => bucket_left(&id, &endpoint, Some(&secret)),
        Err(error) if owner.is_none() && error.is_refusal() => bucket_left(&id, &endpoint, None),
        Err(error) => return Err(error),
    };
    Ok(vec![delete, Step::RemoveFinalizer])
}

/// What follows a step that failed.
#[derive(Clone, Debug)]
pub enum Recovery {
    Fail,
    /// Then fail.
    Undo(Step),
    /// Then go on with the next step.
    Replace(Step),
}

pub fn recover(step: &Step, error: &ProvisionError) -> Recovery {
    match step {
        Step::CreateBucket { id: VolumeId::Bucket(_), is_first: true, .. } if !error.is_ambiguous() => {
            Recovery::Undo(Step::RemoveFinalizer)
        }
        Step::DeleteBucket { id, endpoint, is_owner_known: false, .. } if error.is_refusal() => {
            Recovery::Replace(bucket_left(id, endpoint, None))
        }
        Step::Publish(..)
        | Step::AddFinalizer { .. }
        | Step::CreateBucket { .. }
        | Step::CreateVolume { .. }
        | Step::DeleteBucket { .. }
        | Step::RemoveFinalizer => Recovery::Fail,
    }
}

/// Reports a bucket that may outlive its claim. No Secret, if the class that named it is gone.
fn bucket_left(id: &VolumeId, endpoint: &str, secret: Option<&SecretRef>) -> Step {
    let why = match secret {
        Some(SecretRef { namespace, name }) => format!("Secret {namespace}/{name} is gone or not readable"),
        None => "the StorageClass that named its credentials is gone".to_owned(),
    };
    let note = format!(
        "bucket `{id}` at {endpoint} may have been created and cannot be deleted, because {why}: delete it manually if it \
         exists; it is empty"
    );
    Step::Publish(EventReason::BucketLeft, note)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_that_is_left_is_named() {
        let id = VolumeId::bucket("pvc-1", None);
        let secret = SecretRef { namespace: "ns".to_owned(), name: "keys".to_owned() };
        for (secret, named) in [(Some(&secret), true), (None, false)] {
            let Step::Publish(reason, note) = bucket_left(&id, "http://s3.test", secret) else { panic!() };
            assert_eq!(reason, EventReason::BucketLeft);
            assert!(note.contains(&id.to_string()) && note.contains("http://s3.test"), "{note}");
            assert_eq!(note.contains("Secret ns/keys"), named, "{note}");
        }
    }
}
