//! Makes and deletes volumes; for the CSI service and for claims alike.

use std::collections::BTreeMap;

use contract::volume::attribute;
use service::keys::{DriverKeys, KeysError};
use thiserror::Error;
use tonic::Code;

use super::credentials::Credentials;
use super::fault::Fault;
use super::kind::Kind;
use super::naming::{Deletion, VolumeId};
use super::prefix::Prefix;
use super::server::{Account, Server};

/// Says that the driver made it; the reference writes it, too.
const DYNAMIC: &str = "dynamicProvisioning";
/// Where the bucket is, for whoever deletes it.
pub const REGION: &str = "region";
/// What S3 lists and deletes with one request.
const BATCH: usize = 1000;
/// After so many batches others get their turn; the next call goes on.
const BATCHES_AT_ONCE: usize = 20;

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
    #[error(
        "{endpoint} listed `{key}` for prefix `{prefix}` of bucket `{bucket}`, which is not below it: nothing of that list \
         was deleted"
    )]
    Outside { endpoint: String, bucket: String, prefix: String, key: String },
    #[error(
        "{endpoint} said that `{key}` below prefix `{prefix}` of bucket `{bucket}` is deleted, and lists it again: is it locked \
         or retained there, or does somebody still write it? Remove the lock, or delete the object by hand"
    )]
    Stays { endpoint: String, bucket: String, prefix: String, key: String },
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
    /// The bucket has objects, which nobody asked us to delete.
    NotEmpty,
    /// Its policy is to keep the objects of the prefix.
    Retained,
    /// There is more to delete: call again.
    Partly,
}

pub struct Volumes {
    pub server: Server,
    pub driver_keys: DriverKeys,
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

    pub async fn delete(&self, id: &VolumeId, account: Account<'_>) -> Result<Gone, VolumeError> {
        match id {
            VolumeId::Bucket(bucket) => match self.server.delete_bucket(account, bucket).await {
                Ok(()) => Ok(Gone::Deleted),
                Err(fault) if fault.kind == Kind::Missing => Ok(Gone::Deleted),
                Err(fault) if fault.kind == Kind::NotEmpty => Ok(Gone::NotEmpty),
                Err(fault) => Err(VolumeError::Delete(fault)),
            },
            VolumeId::Prefix { deletion: Deletion::Retain, .. } => Ok(Gone::Retained),
            VolumeId::Prefix { deletion: Deletion::DeleteObjects, bucket, prefix, .. } => {
                self.delete_objects(bucket, prefix, account).await
            }
        }
    }

    /// Lists and deletes until the list is empty. A restart begins with the list of what is left.
    async fn delete_objects(
        &self,
        bucket: &str,
        prefix: &Prefix,
        account: Account<'_>,
    ) -> Result<Gone, VolumeError> {
        let mut before = None;
        for _ in 0..BATCHES_AT_ONCE {
            let keys = match self.server.list(account, bucket, prefix.as_str(), BATCH).await {
                Ok(keys) if keys.is_empty() => return Ok(Gone::Deleted),
                Ok(keys) => keys,
                Err(fault) if fault.kind == Kind::Missing => return Ok(Gone::Deleted),
                Err(fault) => return Err(VolumeError::Delete(fault)),
            };
            check(&self.server.endpoint.address(account.region()), bucket, prefix, &keys, before.as_ref())?;
            self.server.delete_objects(account, bucket, &keys).await.map_err(VolumeError::Delete)?;
            before = keys.into_iter().next();
        }
        Ok(Gone::Partly)
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

/// Whether what was listed may be deleted. `before` is the first key of the list that was deleted last.
fn check(
    endpoint: &str,
    bucket: &str,
    prefix: &Prefix,
    keys: &[String],
    before: Option<&String>,
) -> Result<(), VolumeError> {
    let (endpoint, bucket) = (endpoint.to_owned(), bucket.to_owned());
    let name = || prefix.as_str().to_owned();
    // A server that does not know prefixes would list the whole bucket.
    if let Some(key) = keys.iter().find(|key| !prefix.holds(key)) {
        return Err(VolumeError::Outside { endpoint, bucket, prefix: name(), key: key.clone() });
    }
    // One that says OK and keeps its objects would be asked again and again, without a pause.
    match keys.first().filter(|first| Some(*first) == before) {
        Some(key) => Err(VolumeError::Stays { endpoint, bucket, prefix: name(), key: key.clone() }),
        None => Ok(()),
    }
}

/// What the node is told about the volume.
pub fn context(
    id: &VolumeId,
    source: &str,
    region: Option<&str>,
    attributes: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let own = [
        (DYNAMIC, "true"),
        (attribute::BUCKET_NAME, id.bucket_name()),
        (attribute::AUTHENTICATION_SOURCE, source),
    ];
    let own = own.into_iter().chain(region.map(|region| (REGION, region)));
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    attributes.iter().map(|(key, value)| (key.clone(), value.clone())).chain(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_below_the_prefix_or_stays_is_not_deleted() {
        let prefix = Prefix::parse("mine").unwrap();
        let check = |keys: &[&str], before: Option<&str>| {
            let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
            check("http://s3.test", "shared", &prefix, &keys, before.map(str::to_owned).as_ref())
        };
        assert!(check(&["mine/a", "mine/b"], None).is_ok());
        assert!(check(&["mine/c"], Some("mine/a")).is_ok());
        assert!(matches!(check(&["mine/a", "others/a"], None), Err(VolumeError::Outside { .. })));
        let stays = check(&["mine/a", "mine/b"], Some("mine/a")).unwrap_err();
        assert_eq!(stays.code(), Code::FailedPrecondition);
        for word in ["`mine/a`", "`mine/`", "`shared`", "http://s3.test", "Remove the lock"] {
            assert!(stays.to_string().contains(word), "{word} is not in: {stays}");
        }
    }
}
