//! Reads what a decision about a claim needs. Live, because a class or a Secret may just have been corrected.

use contract::names::DRIVER;
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::StorageClass;

use super::account::BucketAccount;
use super::claim::{Claim, Need};
use super::claim_context::ClaimContext;
use super::plan::{Observed, Started, Wanted};
use crate::provision::class::template::reads_annotations;
use crate::provision::error::ProvisionError;
use crate::provision::new_volume::NewVolume;
use crate::provision::s3::credentials::Account;

impl ClaimContext {
    pub(super) async fn observe(&self, claim: Claim) -> Result<Observed, ProvisionError> {
        let (mut claim, mut volume) = (claim, None);
        // A cached claim that is resumed must not be outdated: its bucket would be created again after a predecessor has
        // deleted it with the claim. On any other claim, adding the finalizer fails with a conflict.
        if claim.has_finalizer() {
            claim = self.context.kubernetes.reread(&claim).await?;
            volume = self.context.kubernetes.volume_of(&claim).await?;
        }
        let is_wanted = claim.need() == Need::Provision && volume.is_none();
        let wanted = if is_wanted { self.wanted(&claim).await } else { Ok(None) };
        let started = self.started(&claim, volume.as_deref()).await?;
        Ok(Observed { claim, volume, wanted, started, now: Timestamp::now() })
    }

    async fn wanted(&self, claim: &Claim) -> Result<Option<Wanted>, ProvisionError> {
        let class = self.class(claim).await?;
        if class.provisioner != DRIVER || (waits_for_consumer(&class) && !claim.has_node()) {
            return Ok(None);
        }
        let claim = if reads_annotations(&class) {
            &self.context.kubernetes.with_annotations(claim).await?
        } else {
            claim
        };
        let endpoint = &self.context.buckets.s3.endpoint;
        let new = NewVolume::of_claim(claim, &class, endpoint);
        let mut new = new.map_err(|error| ProvisionError::Class(claim.class.clone(), error))?;
        let credentials = self.context.credentials(new.provisioner_secret.as_ref()).await?;
        let account = Account::new(credentials, new.region.as_deref());
        // A bucket is mounted from the region in which it was created.
        new.region = account.region().map(str::to_owned);
        let endpoint = endpoint.address(account.region()).into_owned();
        Ok(Some(Wanted { new, class, account, endpoint }))
    }

    async fn started(&self, claim: &Claim, volume: Option<&str>) -> Result<Option<Started>, ProvisionError> {
        let id = claim.started_bucket().filter(|id| volume != Some(&id.to_string()));
        let Some(id) = id else { return Ok(None) };
        let own = self.accounts.get(&claim.uid);
        let is_own = own.is_some();
        let owner = match own {
            Some(owner) => Some(owner),
            None => self.owner(claim).await?,
        };
        let (secret, region) = owner.clone().map(|owner| (owner.secret, owner.region)).unwrap_or_default();
        let account = self.context.credentials(secret.as_ref()).await;
        let account = account.map(|credentials| Account::new(credentials, region.as_deref()));
        let endpoint = self.context.buckets.s3.endpoint.address(region.as_deref()).into_owned();
        Ok(Some(Started { id, owner, is_own, account, endpoint }))
    }

    /// According to the class as it is now.
    async fn owner(&self, claim: &Claim) -> Result<Option<BucketAccount>, ProvisionError> {
        match self.class(claim).await {
            Ok(class) if class.provisioner == DRIVER => {
                let endpoint = &self.context.buckets.s3.endpoint;
                Ok(BucketAccount::of_class(claim, &class, endpoint).ok())
            }
            Ok(_) | Err(ProvisionError::NoClass | ProvisionError::ClassMissing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn class(&self, claim: &Claim) -> Result<StorageClass, ProvisionError> {
        if claim.class.is_empty() {
            return Err(ProvisionError::NoClass);
        }
        let class = self.context.kubernetes.class(&claim.class).await?;
        class.ok_or_else(|| ProvisionError::ClassMissing(claim.class.clone()))
    }
}

fn waits_for_consumer(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}
