//! Creates and deletes buckets and prefixes; for claims and the CSI service alike.

mod emptying;
mod error;

use contract::s3::S3Failure;
use strum::IntoStaticStr;

use self::emptying::{Remaining, Turn};
pub use self::error::BucketError;
use super::class::parameters::SecretRef;
use super::s3::client::S3Client;
use super::s3::credentials::Account;
use super::volume_id::{DeletionPolicy, VolumeId};

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
                let remaining = Turn::begin(&self.s3, account, bucket).delete_objects(Some(prefix)).await?;
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
        let turn = Turn::begin(&self.s3, account, bucket);
        let (objects, uploads) = (turn.delete_objects(None).await?, turn.abort_uploads().await?);
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

    pub async fn exists(&self, id: &VolumeId, account: &Account) -> Result<bool, BucketError> {
        match self.s3.list(account, id.bucket_name(), "", 1).await {
            Ok(_) => Ok(true),
            Err(error) if error.is(S3Failure::NoSuchBucket) => Ok(false),
            Err(error) => Err(BucketError::Read(error)),
        }
    }
}
