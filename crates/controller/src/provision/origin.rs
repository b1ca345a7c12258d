//! With whose keys, and where, a bucket was begun. Never read from the claim, on which its author can write what they like:
//! a Secret that is named there would be used and talked about on behalf of somebody who may not even know of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};

use k8s_openapi::api::storage::v1::StorageClass;

use super::claim::Claim;
use super::endpoint::Endpoint;
use super::order::Order;
use super::storage_class::{ClassError, Plan, REGION, SecretRef};
use super::template::Subject;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Origin {
    /// Nothing for the driver's own keys.
    pub(super) secret: Option<SecretRef>,
    pub(super) region: Option<String>,
}

impl Origin {
    /// Of a claim's class as it is now.
    pub(super) fn of(claim: &Claim, class: &StorageClass, endpoint: &Endpoint) -> Result<Self, ClassError> {
        let parameters = class.parameters.clone().unwrap_or_default();
        let region = parameters.get(REGION).map(|region| region.trim());
        let options = class.mount_options.as_deref().unwrap_or_default();
        let plan = Plan::parse(&parameters, options, &endpoint.address(region))?;
        // The name of such a Secret cannot depend on annotations.
        let (volume_name, annotations) = (claim.persistent_volume(), BTreeMap::new());
        let subject = Subject {
            volume_name: &volume_name,
            namespace: &claim.namespace,
            name: &claim.name,
            annotations: &annotations,
        };
        let secret = plan.provisioner_secret.map(|secret| secret.resolve(&subject)).transpose()?;
        Ok(Self { secret, region: plan.region })
    }
}

impl From<&Order> for Origin {
    fn from(order: &Order) -> Self {
        Self { secret: order.provisioner_secret.clone(), region: order.region.clone() }
    }
}

/// Of what this process has begun, by the claim's UID. What an earlier process began is undone with the keys of the class
/// as it is then.
#[derive(Default)]
pub(super) struct Origins(Mutex<HashMap<String, Origin>>);

impl Origins {
    pub(super) fn note(&self, uid: &str, origin: Origin) {
        self.known().insert(uid.to_owned(), origin);
    }

    pub(super) fn get(&self, uid: &str) -> Option<Origin> {
        self.known().get(uid).cloned()
    }

    pub(super) fn forget(&self, uid: &str) {
        self.known().remove(uid);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Origin>> {
        self.0.lock().expect("nobody panics while noting")
    }
}
