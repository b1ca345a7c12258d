//! Makes and deletes volumes; for the CSI service and for claims alike.

use std::collections::BTreeMap;

use contract::volume::{AuthenticationSource, attribute};
use service::keys::{DriverKeys, KeysError};
use thiserror::Error;
use tonic::Code;

use super::credentials::Credentials;
use super::fault::Fault;
use super::kind::Kind;
use super::naming::{Deletion, VolumeId};
use super::prefix::Prefix;
use super::server::{Account, Server};
use super::storage_class::{DELETION_POLICY, Plan, Target};
use crate::metrics::BucketsKept;

/// Says that the driver made it; the reference writes it, too.
const DYNAMIC: &str = "dynamicProvisioning";
/// Where the bucket is, for whoever deletes it.
pub const REGION: &str = "region";
/// What S3 lists and deletes with one request.
const BATCH: usize = 1000;
/// After so many batches others get their turn; the next call goes on.
const BATCHES_AT_ONCE: usize = 20;
/// The same for unfinished uploads, each of which takes a request.
const UPLOADS_AT_ONCE: usize = 200;

#[derive(Debug, Error)]
pub enum VolumeError {
    #[error("cannot find credentials: {0}")]
    Keys(#[from] KeysError),
    #[error(
        "cannot find credentials: the class names no provisioner secret, and the driver has no keys of its own: put \
         access_key_id and secret_access_key into the driver's Secret, or give the class a provisioner secret"
    )]
    NoDriverKeys,
    #[error("cannot create the volume: {0}")]
    Create(#[source] Fault),
    #[error("cannot delete the volume: {0}")]
    Delete(#[source] Fault),
    #[error("cannot look at the volume: {0}")]
    Look(#[source] Fault),
    #[error("{endpoint} listed {key:?} for {place}, which is not below it: nothing of that list was deleted")]
    Outside { endpoint: String, place: String, key: String },
    #[error(
        "{endpoint} said that {key:?} in {place} is deleted, and lists it again: is it locked or retained there, or does \
         somebody still write it? Remove the lock, or delete the object by hand"
    )]
    Stays { endpoint: String, place: String, key: String },
}

impl VolumeError {
    pub fn code(&self) -> Code {
        match self {
            Self::NoDriverKeys => Code::Unauthenticated,
            Self::Keys(_) => Code::InvalidArgument,
            Self::Create(fault) | Self::Delete(fault) | Self::Look(fault) => fault.code(),
            Self::Outside { .. } | Self::Stays { .. } => Code::FailedPrecondition,
        }
    }

    /// Whether it was a clear no, which the same keys get again.
    pub fn is_refusal(&self) -> bool {
        !matches!(self.code(), Code::Unavailable | Code::DeadlineExceeded)
    }

    /// Whether something may have been made all the same.
    pub fn is_ambiguous(&self) -> bool {
        match self {
            Self::Keys(_) | Self::NoDriverKeys | Self::Look(_) => false,
            Self::Create(fault) => fault.is_ambiguous(),
            Self::Delete(_) | Self::Outside { .. } | Self::Stays { .. } => true,
        }
    }
}

/// How a deletion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    Deleted,
    /// The bucket has something that nobody asked us to delete.
    Kept(Kept),
    /// Its policy is to keep what is there, or nothing of it is ours to delete.
    Retained,
    /// There is more to delete: call again.
    Partly,
}

/// Why S3 does not delete a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    NotEmpty,
    Uploading,
}

pub struct Volumes {
    pub server: Server,
    pub driver_keys: DriverKeys,
    pub kept: BucketsKept,
}

impl Volumes {
    /// For whoever has no Secret.
    pub fn drivers_own(&self) -> Result<Credentials, VolumeError> {
        self.driver_keys.find().map(Credentials::from).ok_or(VolumeError::NoDriverKeys)
    }

    /// One request: whoever asks again for the same id finds what is there.
    pub async fn create(&self, id: &VolumeId, account: Account<'_>) -> Result<(), VolumeError> {
        match id {
            VolumeId::Bucket(bucket) => match self.server.create_bucket(account, bucket).await {
                // An earlier request of the same name made it, and we did not hear the answer.
                Err(fault) if fault.kind == Kind::Owned => Ok(()),
                outcome => outcome.map_err(VolumeError::Create),
            },
            // Nothing has to be made, but a mount needs that it is there and may be listed.
            VolumeId::Prefix { bucket, prefix, .. } => {
                let listed = self.server.list(account, bucket, prefix.as_str(), 1).await;
                listed.map(drop).map_err(VolumeError::Look)
            }
        }
    }

    /// `whole` is what becomes of the objects of a bucket; the id of a prefix says that itself.
    pub async fn delete(
        &self,
        id: &VolumeId,
        whole: Deletion,
        account: Account<'_>,
    ) -> Result<Gone, VolumeError> {
        match id {
            VolumeId::Bucket(bucket) => self.delete_bucket(bucket, whole, account).await,
            VolumeId::Prefix { deletion: Deletion::Retain, .. } => Ok(Gone::Retained),
            VolumeId::Prefix { deletion: Deletion::DeleteObjects, bucket, prefix, .. } => {
                let left = self.delete_objects(bucket, Some(prefix), account).await?;
                Ok(if left == Left::More { Gone::Partly } else { Gone::Deleted })
            }
        }
    }

    async fn delete_bucket(
        &self,
        bucket: &str,
        deletion: Deletion,
        account: Account<'_>,
    ) -> Result<Gone, VolumeError> {
        let first = self.try_delete(bucket, account).await?;
        if deletion == Deletion::Retain || !matches!(first, Gone::Kept(_)) {
            return Ok(first);
        }
        let objects = self.delete_objects(bucket, None, account).await?;
        let uploads = self.abort_uploads(bucket, account).await?;
        if [objects, uploads].contains(&Left::More) {
            return Ok(Gone::Partly);
        }
        match self.try_delete(bucket, account).await? {
            // Somebody was still writing, or the server needs a moment: once more. What cannot be listed, as old versions
            // of objects are not, keeps its bucket.
            Gone::Kept(_) if [objects, uploads].contains(&Left::Nothing) => Ok(Gone::Partly),
            gone => Ok(gone),
        }
    }

    async fn try_delete(&self, bucket: &str, account: Account<'_>) -> Result<Gone, VolumeError> {
        match self.server.delete_bucket(account, bucket).await {
            Ok(()) => Ok(Gone::Deleted),
            Err(fault) => match fault.kind {
                Kind::Missing => Ok(Gone::Deleted),
                Kind::NotEmpty => Ok(Gone::Kept(Kept::NotEmpty)),
                Kind::Uploading => Ok(Gone::Kept(Kept::Uploading)),
                _ => Err(VolumeError::Delete(fault)),
            },
        }
    }

    /// Lists and deletes until the list is empty: below a prefix, or in the whole bucket. A restart begins with the list
    /// of what is left.
    async fn delete_objects(
        &self,
        bucket: &str,
        prefix: Option<&Prefix>,
        account: Account<'_>,
    ) -> Result<Left, VolumeError> {
        let (mut before, address) = (None, self.server.endpoint.address(account.region()));
        let text = prefix.map(Prefix::as_str).unwrap_or_default();
        for _ in 0..BATCHES_AT_ONCE {
            let keys = match self.server.list(account, bucket, text, BATCH).await {
                Ok(keys) if keys.is_empty() => return Ok(Left::after(before.is_some())),
                Ok(keys) => keys,
                Err(fault) if fault.kind == Kind::Missing => return Ok(Left::after(before.is_some())),
                Err(fault) => return Err(VolumeError::Delete(fault)),
            };
            check(&address, bucket, prefix, &keys, before.as_ref())?;
            self.server.delete_objects(account, bucket, &keys).await.map_err(VolumeError::Delete)?;
            before = keys.into_iter().next();
        }
        Ok(Left::More)
    }

    async fn abort_uploads(&self, bucket: &str, account: Account<'_>) -> Result<Left, VolumeError> {
        let uploads = match self.server.uploads(account, bucket, UPLOADS_AT_ONCE).await {
            Ok(uploads) => uploads,
            Err(fault) if fault.kind == Kind::Missing => Vec::new(),
            Err(fault) => return Err(VolumeError::Delete(fault)),
        };
        for upload in &uploads {
            self.server.abort_upload(account, bucket, upload).await.map_err(VolumeError::Delete)?;
        }
        Ok(if uploads.len() < UPLOADS_AT_ONCE { Left::after(!uploads.is_empty()) } else { Left::More })
    }

    /// Whether it is there.
    pub async fn exists(&self, id: &VolumeId, account: Account<'_>) -> Result<bool, VolumeError> {
        match self.server.list(account, id.bucket_name(), "", 1).await {
            Ok(_) => Ok(true),
            Err(fault) if fault.kind == Kind::Missing => Ok(false),
            Err(fault) => Err(VolumeError::Look(fault)),
        }
    }
}

/// What a turn of deleting leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    More,
    /// It found something, and no more now.
    Nothing,
    /// It found nothing.
    Untouched,
}

impl Left {
    fn after(found: bool) -> Self {
        if found { Self::Nothing } else { Self::Untouched }
    }
}

/// Whether what was listed may be deleted. `before` is the first key of the list that was deleted last.
fn check(
    endpoint: &str,
    bucket: &str,
    prefix: Option<&Prefix>,
    keys: &[String],
    before: Option<&String>,
) -> Result<(), VolumeError> {
    let (endpoint, place) = (endpoint.to_owned(), || match prefix {
        Some(prefix) => format!("prefix `{}` of bucket `{bucket}`", prefix.as_str()),
        None => format!("bucket `{bucket}`"),
    });
    // A server that does not know prefixes would list the whole bucket.
    if let Some(key) = keys.iter().find(|key| !prefix.is_none_or(|prefix| prefix.holds(key))) {
        return Err(VolumeError::Outside { endpoint, place: place(), key: key.clone() });
    }
    // One that says OK and keeps its objects would be asked again and again, without a pause.
    match keys.first().filter(|first| Some(*first) == before) {
        Some(key) => Err(VolumeError::Stays { endpoint, place: place(), key: key.clone() }),
        None => Ok(()),
    }
}

/// What the node is told about the volume, and whoever deletes it.
pub fn context(
    id: &VolumeId,
    source: Option<AuthenticationSource>,
    plan: &Plan,
    region: Option<&str>,
) -> BTreeMap<String, String> {
    let emptied = matches!(plan.target, Target::Bucket { deletion: Deletion::DeleteObjects, .. });
    let emptied = emptied.then(|| (DELETION_POLICY, Deletion::DeleteObjects.as_str()));
    let source = source.map(|source| (attribute::AUTHENTICATION_SOURCE, source.as_str()));
    let own = [(DYNAMIC, "true"), (attribute::BUCKET_NAME, id.bucket_name())].into_iter();
    let own = own.chain(source).chain(region.map(|region| (REGION, region))).chain(emptied);
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    plan.attributes.iter().map(|(key, value)| (key.clone(), value.clone())).chain(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_below_the_prefix_or_stays_is_not_deleted() {
        let prefix = Prefix::parse("mine").unwrap();
        let check = |keys: &[&str], before: Option<&str>| {
            let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
            check("http://s3.test", "shared", Some(&prefix), &keys, before.map(str::to_owned).as_ref())
        };
        assert!(check(&["mine/a", "mine/b"], None).is_ok());
        assert!(check(&["mine/c"], Some("mine/a")).is_ok());
        assert!(matches!(check(&["mine/a", "others/a"], None), Err(VolumeError::Outside { .. })));
        let stays = check(&["mine/a", "mine/b"], Some("mine/a")).unwrap_err();
        assert_eq!(stays.code(), Code::FailedPrecondition);
        for word in ["\"mine/a\"", "`mine/`", "`shared`", "http://s3.test", "Remove the lock"] {
            assert!(stays.to_string().contains(word), "{word} is not in: {stays}");
        }
    }
}
