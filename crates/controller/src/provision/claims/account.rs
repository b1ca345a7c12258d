//! Whose bucket is created for a claim.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::storage::v1::StorageClass;
use parking_lot::Mutex;

use super::claim::Claim;
use crate::provision::class::parameters::{ClassError, ClassParameters, SecretRef};
use crate::provision::class::template::Subject;
use crate::provision::new_volume::NewVolume;
use crate::provision::s3::endpoint::Endpoint;

/// The Secret and the region that a bucket is created with. Never read from the claim, on which its author can write
/// anything: a Secret that they name there would be used for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketAccount {
    /// `None` for the driver's own keys.
    pub secret: Option<SecretRef>,
    pub region: Option<String>,
}

impl BucketAccount {
    pub fn of_class(claim: &Claim, class: &StorageClass, endpoint: &Endpoint) -> Result<Self, ClassError> {
        let parameters = ClassParameters::of_class(class, endpoint)?;
        // The provisioner secret cannot depend on annotations.
        let (volume_name, annotations) = (claim.volume_name(), BTreeMap::new());
        let subject = Subject {
            volume_name: &volume_name,
            namespace: &claim.namespace,
            name: &claim.name,
            annotations: &annotations,
        };
        let secret = parameters.provisioner_secret.map(|secret| secret.resolve(&subject)).transpose()?;
        Ok(Self { secret, region: parameters.region })
    }
}

impl From<&NewVolume> for BucketAccount {
    fn from(new: &NewVolume) -> Self {
        Self { secret: new.provisioner_secret.clone(), region: new.region.clone() }
    }
}

/// The accounts of buckets that this process has started, by claim UID: the class may change before they are cleaned up.
/// After a restart the class as it is then decides.
#[derive(Default)]
pub(super) struct StartedAccounts(Mutex<HashMap<String, BucketAccount>>);

impl StartedAccounts {
    pub(super) fn insert(&self, uid: &str, account: BucketAccount) {
        self.0.lock().insert(uid.to_owned(), account);
    }

    pub(super) fn get(&self, uid: &str) -> Option<BucketAccount> {
        self.0.lock().get(uid).cloned()
    }

    pub(super) fn remove(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}
