//! Decides about a provisioned volume: from one observation to steps. Pure.

use jiff::Timestamp;

use super::volume::{Contents, Need, need, secret_deadline, secret_missing_since};
use crate::provision::bucket::Kept;
use crate::provision::error::ProvisionError;
use crate::provision::events::EventReason;
use crate::provision::s3::credentials::Account;
use crate::provision::volume_id::{DeletionPolicy, VolumeId};
use crate::slim::SlimVolume;

pub struct Observed {
    /// Nothing, if S3 is not asked for anything.
    pub account: Option<Result<Account, ProvisionError>>,
    pub endpoint: String,
    pub now: Timestamp,
}

#[derive(Debug)]
pub enum Step {
    AddFinalizer,
    RemoveFinalizer,
    /// Since when the Secret is missing or not readable; nothing once it is read again. On the volume, where tenants cannot write, and which
    /// a restart of the controller does not reset.
    RecordMissingSecret(Option<Timestamp>),
    /// Ends the plan if it is incomplete; reports a bucket that is kept.
    DeleteBucket {
        id: VolumeId,
        policy: DeletionPolicy,
        account: Account,
        endpoint: String,
    },
    /// Reports what is left behind.
    ReportKept {
        kept: Kept,
        note: String,
    },
    DeleteVolume,
    /// Ends the plan.
    Fail(ProvisionError),
}

pub fn plan(volume: &SlimVolume, observed: Observed) -> Vec<Step> {
    match need(volume) {
        Need::Nothing => Vec::new(),
        Need::AddFinalizer => vec![Step::AddFinalizer],
        Need::RemoveFinalizer => vec![Step::RemoveFinalizer],
        Need::Delete => {
            let id = Contents::of(volume).and_then(|contents| VolumeId::parse(&contents.handle));
            let mut steps = delete_contents(id.as_ref(), Some(volume), observed);
            steps.push(Step::DeleteVolume);
            steps
        }
    }
}

pub fn delete_contents(id: Option<&VolumeId>, volume: Option<&SlimVolume>, observed: Observed) -> Vec<Step> {
    let contents = volume.and_then(Contents::of);
    let Some(id) = id else {
        // A bucket that was created by hand, behind a volume with the reclaim policy Delete.
        return contents
            .map(|contents| Kept::NotOurs.report(&contents.handle, &observed.endpoint))
            .into_iter()
            .collect();
    };
    let since = volume.and_then(secret_missing_since);
    let Observed { account, endpoint, now } = observed;
    match account {
        None => Vec::new(),
        Some(Ok(account)) => {
            let policy = contents.map(|contents| contents.policy).unwrap_or_default();
            let delete = Step::DeleteBucket { id: id.clone(), policy, account, endpoint };
            let found = since.is_some().then_some(Step::RecordMissingSecret(None));
            found.into_iter().chain([delete]).collect()
        }
        // The permission to read Secrets of a namespace may be deleted with that namespace.
        Some(Err(ProvisionError::SecretMissing(secret) | ProvisionError::SecretForbidden(secret))) => {
            let until = secret_deadline(since.unwrap_or(now));
            if now >= until {
                return vec![Kept::SecretMissing(secret).report(&id.place(), &endpoint)];
            }
            let record = since.is_none().then_some(Step::RecordMissingSecret(Some(now)));
            let wait = ProvisionError::AwaitingSecret { secret, volume: id.to_string(), until };
            record.into_iter().chain([Step::Fail(wait)]).collect()
        }
        Some(Err(error)) => vec![Step::Fail(error)],
    }
}

impl Kept {
    fn report(self, what: &str, endpoint: &str) -> Step {
        Step::ReportKept { note: self.note(what, endpoint), kept: self }
    }

    /// `what` is the bucket, the prefix or the volume handle.
    pub fn note(&self, what: &str, endpoint: &str) -> String {
        match self {
            Self::NotEmpty => format!(
                "{what} at {endpoint} is not empty and is kept: delete it with its objects if they are not needed, or set \
             `deletionPolicy: delete-objects` in the class of volumes that may be deleted with their objects"
            ),
            Self::UnfinishedUploads => format!(
                "{what} at {endpoint} has unfinished uploads and is kept: abort them and delete it, or set `deletionPolicy: \
             delete-objects` in the class of volumes that may be deleted with their objects"
            ),
            Self::NotOurs => format!("`{what}` was not created by this driver and is kept"),
            Self::SecretMissing(secret) => format!(
                "{what} at {endpoint} is left with its objects, because Secret {}/{} is still missing or not readable (see \
             `provisioning.secretNamespaces`): delete it manually if it is not needed",
                secret.namespace, secret.name
            ),
        }
    }

    pub fn event_reason(&self) -> EventReason {
        match self {
            Self::NotEmpty | Self::UnfinishedUploads | Self::NotOurs => EventReason::BucketKept,
            Self::SecretMissing(_) => EventReason::BucketLeft,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provision::class::parameters::SecretRef;

    #[test]
    fn what_is_kept_is_named() {
        let id = VolumeId::bucket("pvc-1", None);
        let secret = SecretRef { namespace: "ns".to_owned(), name: "keys".to_owned() };
        for reason in [Kept::NotEmpty, Kept::UnfinishedUploads, Kept::NotOurs, Kept::SecretMissing(secret)] {
            let note = reason.note(&id.place(), "http://s3.test");
            assert!(note.contains(&id.to_string()), "{note}");
        }
    }
}
