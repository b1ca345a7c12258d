//! Creates and deletes buckets and prefixes; for claims and the CSI service alike.

use contract::s3::S3Failure;
use strum::IntoStaticStr;
use thiserror::Error;
use tonic::Code;

use super::class::parameters::SecretRef;
use super::class::prefix::Prefix;
use super::s3::client::S3Client;
use super::s3::credentials::Account;
use super::s3::error::S3Error;
use super::volume_id::{DeletionPolicy, VolumeId};

/// What S3 lists and deletes with one request.
const BATCH: usize = 1000;
/// After so many batches other volumes get their turn; the next call continues.
const BATCHES_AT_ONCE: usize = 20;
/// The same for unfinished uploads, each of which takes a request.
const UPLOADS_AT_ONCE: usize = 200;

#[derive(Debug, Error)]
pub enum BucketError {
    #[error("cannot create the volume: {0}")]
    Create(#[source] S3Error),
    #[error("cannot delete the volume: {0}")]
    Delete(#[source] S3Error),
    #[error("cannot read the volume: {0}")]
    Read(#[source] S3Error),
    #[error(
        "{endpoint} listed object {key:?}, which is outside of {place}: nothing of that list was deleted"
    )]
    Outside { endpoint: String, place: String, key: String },
    #[error(
        "object {key:?} in {place} at {endpoint} exists after its deletion succeeded: remove its lock or retention, stop \
         what writes it, or delete it manually"
    )]
    Undeletable { endpoint: String, place: String, key: String },
}

impl BucketError {
    pub fn code(&self) -> Code {
        match self {
            Self::Create(error) | Self::Delete(error) | Self::Read(error) => error.code(),
            Self::Outside { .. } | Self::Undeletable { .. } => Code::FailedPrecondition,
        }
    }

    /// Whether a bucket may have been created all the same.
    pub fn is_ambiguous(&self) -> bool {
        match self {
            Self::Read(_) => false,
            Self::Create(error) => error.is_ambiguous(),
            Self::Delete(_) | Self::Outside { .. } | Self::Undeletable { .. } => true,
        }
    }
}

/// How a deletion ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeleteOutcome {
    Deleted,
    /// The bucket outlives its volume although the reclaim policy is Delete.
    Kept(Kept),
    /// The class retains the objects.
    Retained,
    /// There are more objects than one turn deletes.
    Incomplete,
}

/// Why a bucket outlives its volume; the label of a metric.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Kept {
    NotEmpty,
    UnfinishedUploads,
    /// The volume handle is not one of this driver.
    NotOurs,
    /// There are no credentials to delete it with: the Secret is missing, or may not be read.
    SecretMissing(SecretRef),
}

pub struct Buckets {
    pub s3: S3Client,
}

impl Buckets {
    /// Idempotent: the same id finds the bucket of an earlier call.
    pub async fn create(&self, id: &VolumeId, account: &Account) -> Result<(), BucketError> {
        match id {
            VolumeId::Bucket(bucket) => match self.s3.create_bucket(account, bucket).await {
                // An earlier request created it, and its response was lost.
                Err(error) if error.is(S3Failure::AlreadyOwned) => Ok(()),
                outcome => outcome.map_err(BucketError::Create),
            },
            // A prefix needs no creation, but a mount needs a bucket that exists and may be listed.
            VolumeId::Prefix { bucket, prefix, .. } => {
                let listed = self.s3.list(account, bucket, prefix.as_str(), 1).await;
                listed.map(drop).map_err(BucketError::Read)
            }
        }
    }

    /// `policy` is for the objects of a bucket; the id of a prefix has its own.
    pub async fn delete(
        &self,
        id: &VolumeId,
        policy: DeletionPolicy,
        account: &Account,
    ) -> Result<DeleteOutcome, BucketError> {
        match id {
            VolumeId::Bucket(bucket) => self.delete_bucket(bucket, policy, account).await,
            VolumeId::Prefix { deletion: DeletionPolicy::Retain, .. } => Ok(DeleteOutcome::Retained),
            VolumeId::Prefix { deletion: DeletionPolicy::DeleteObjects, bucket, prefix, .. } => {
                let remaining = self.delete_objects(bucket, Some(prefix), account).await?;
                Ok(if remaining == Remaining::More {
                    DeleteOutcome::Incomplete
                } else {
                    DeleteOutcome::Deleted
                })
            }
        }
    }

    async fn delete_bucket(
        &self,
        bucket: &str,
        policy: DeletionPolicy,
        account: &Account,
    ) -> Result<DeleteOutcome, BucketError> {
        let first = self.try_delete(bucket, account).await?;
        if policy == DeletionPolicy::Retain || !matches!(first, DeleteOutcome::Kept(_)) {
            return Ok(first);
        }
        let objects = self.delete_objects(bucket, None, account).await?;
        let uploads = self.abort_uploads(bucket, account).await?;
        if [objects, uploads].contains(&Remaining::More) {
            return Ok(DeleteOutcome::Incomplete);
        }
        match self.try_delete(bucket, account).await? {
            // A workload was still writing, or the server needs a moment: try again. What is not listed, like old versions
            // of objects, keeps its bucket.
            DeleteOutcome::Kept(_) if [objects, uploads].contains(&Remaining::Emptied) => {
                Ok(DeleteOutcome::Incomplete)
            }
            gone => Ok(gone),
        }
    }

    async fn try_delete(&self, bucket: &str, account: &Account) -> Result<DeleteOutcome, BucketError> {
        match self.s3.delete_bucket(account, bucket).await {
            Ok(()) => Ok(DeleteOutcome::Deleted),
            Err(error) if error.is(S3Failure::NoSuchBucket) => Ok(DeleteOutcome::Deleted),
            Err(error) if error.is(S3Failure::BucketNotEmpty) => Ok(DeleteOutcome::Kept(Kept::NotEmpty)),
            Err(error) if error.is(S3Failure::UploadsInProgress) => {
                Ok(DeleteOutcome::Kept(Kept::UnfinishedUploads))
            }
            Err(error) => Err(BucketError::Delete(error)),
        }
    }

    /// Lists and deletes until the list is empty: of a prefix, or of the whole bucket. After a restart the list shows what
    /// is left.
    async fn delete_objects(
        &self,
        bucket: &str,
        prefix: Option<&Prefix>,
        account: &Account,
    ) -> Result<Remaining, BucketError> {
        let (mut before, address) = (None, self.s3.endpoint.address(account.region()));
        let text = prefix.map(Prefix::as_str).unwrap_or_default();
        for _ in 0..BATCHES_AT_ONCE {
            let keys = match self.s3.list(account, bucket, text, BATCH).await {
                Ok(keys) if keys.is_empty() => return Ok(Remaining::after(before.is_some())),
                Ok(keys) => keys,
                Err(error) if error.is(S3Failure::NoSuchBucket) => {
                    return Ok(Remaining::after(before.is_some()));
                }
                Err(error) => return Err(BucketError::Delete(error)),
            };
            check_deletable(&address, bucket, prefix, &keys, before.as_ref())?;
            self.s3.delete_objects(account, bucket, &keys).await.map_err(BucketError::Delete)?;
            before = keys.into_iter().next();
        }
        Ok(Remaining::More)
    }

    async fn abort_uploads(&self, bucket: &str, account: &Account) -> Result<Remaining, BucketError> {
        let uploads = match self.s3.uploads(account, bucket, UPLOADS_AT_ONCE).await {
            Ok(uploads) => uploads,
            Err(error) if error.is(S3Failure::NoSuchBucket) => Vec::new(),
            Err(error) => return Err(BucketError::Delete(error)),
        };
        for upload in &uploads {
            self.s3.abort_upload(account, bucket, upload).await.map_err(BucketError::Delete)?;
        }
        Ok(if uploads.len() < UPLOADS_AT_ONCE {
            Remaining::after(!uploads.is_empty())
        } else {
            Remaining::More
        })
    }

    pub async fn exists(&self, id: &VolumeId, account: &Account) -> Result<bool, BucketError> {
        match self.s3.list(account, id.bucket_name(), "", 1).await {
            Ok(_) => Ok(true),
            Err(error) if error.is(S3Failure::NoSuchBucket) => Ok(false),
            Err(error) => Err(BucketError::Read(error)),
        }
    }
}

/// What a turn leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remaining {
    More,
    /// It deleted everything that it found.
    Emptied,
    /// There was nothing to delete.
    WasEmpty,
}

impl Remaining {
    fn after(found: bool) -> Self {
        if found { Self::Emptied } else { Self::WasEmpty }
    }
}

/// Whether listed objects may be deleted. `before` is the first key of the list before.
fn check_deletable(
    endpoint: &str,
    bucket: &str,
    prefix: Option<&Prefix>,
    keys: &[String],
    before: Option<&String>,
) -> Result<(), BucketError> {
    let (endpoint, place) = (endpoint.to_owned(), || match prefix {
        Some(prefix) => format!("prefix `{}` of bucket `{bucket}`", prefix.as_str()),
        None => format!("bucket `{bucket}`"),
    });
    // A server that ignores prefixes would list the whole bucket.
    if let Some(key) = keys.iter().find(|key| !prefix.is_none_or(|prefix| prefix.contains(key))) {
        return Err(BucketError::Outside { endpoint, place: place(), key: key.clone() });
    }
    // A server that reports success and keeps its objects would be asked again and again.
    match keys.first().filter(|first| Some(*first) == before) {
        Some(key) => Err(BucketError::Undeletable { endpoint, place: place(), key: key.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_outside_of_the_prefix_or_undeletable_ones_are_refused() {
        let prefix = Prefix::parse("mine").unwrap();
        let check = |keys: &[&str], before: Option<&str>| {
            let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
            check_deletable(
                "http://s3.test",
                "shared",
                Some(&prefix),
                &keys,
                before.map(str::to_owned).as_ref(),
            )
        };
        assert!(check(&["mine/a", "mine/b"], None).is_ok());
        assert!(check(&["mine/c"], Some("mine/a")).is_ok());
        assert!(matches!(check(&["mine/a", "others/a"], None), Err(BucketError::Outside { .. })));
        let stays = check(&["mine/a", "mine/b"], Some("mine/a")).unwrap_err();
        assert_eq!(stays.code(), Code::FailedPrecondition);
        for word in ["\"mine/a\"", "`mine/`", "`shared`", "http://s3.test", "remove its lock"] {
            assert!(stays.to_string().contains(word), "{word} is not in: {stays}");
        }
    }
}
