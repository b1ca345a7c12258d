//! The provisioner's observations and steps, carried out in the simulated cluster.

use std::collections::HashMap;

use futures::FutureExt as _;

use super::cluster::{Answer, Cluster, SimVolume};
use crate::provision::bucket::DeleteOutcome;
use crate::provision::claims::account::BucketAccount;
use crate::provision::claims::apply::{Applied, Execute, apply};
use crate::provision::claims::claim::{Claim, Need};
use crate::provision::claims::plan::{self, Observed, Started, Wanted};
use crate::provision::error::ProvisionError;
use crate::provision::events::EventReason;
use crate::provision::kubernetes::{ApiError, Request};
use crate::provision::new_volume::NewVolume;
use crate::provision::reclaim::plan as reclaim;
use crate::provision::reclaim::volume as released;
use crate::provision::s3::endpoint::Endpoint;
use crate::provision::volume_id::VolumeId;

fn endpoint() -> Endpoint {
    Endpoint::parse("http://s3.test", "").unwrap()
}

impl Cluster {
    /// As the provisioner observes it: the claim from a cache, unless it is resumed, and the rest live.
    fn observe(&self, cached: Claim, accounts: &HashMap<String, BucketAccount>) -> Option<Observed> {
        let mut claim = cached;
        let mut volume = None;
        if claim.has_finalizer() {
            let live = self.claims.get(&claim.name).filter(|live| live.uid == claim.uid)?;
            claim = live.object(&claim.name);
            volume = self.volumes.get(&claim.volume_name()).map(|volume| volume.handle.clone());
        }
        let is_wanted = claim.need() == Need::Provision && volume.is_none();
        let wanted = if is_wanted { self.wanted(&claim) } else { Ok(None) };
        let started = claim.started_bucket().filter(|id| volume.as_deref() != Some(&id.to_string()));
        let started = started.map(|id| {
            let (own, class) = (accounts.get(&claim.uid).cloned(), self.class());
            let is_own = own.is_some();
            let of_class = || BucketAccount::of_class(&claim, &class?, &endpoint()).ok();
            let owner = own.or_else(of_class);
            let account = self.account(owner.as_ref().and_then(|owner| owner.secret.as_ref()));
            Started { id, owner, is_own, account, endpoint: "http://s3.test".to_owned() }
        });
        Some(Observed { claim, volume, wanted, started, now: self.now })
    }

    fn wanted(&self, claim: &Claim) -> Result<Option<Wanted>, ProvisionError> {
        let class = self.class().ok_or_else(|| ProvisionError::ClassMissing("class".to_owned()))?;
        let new = NewVolume::of_claim(claim, &class, &endpoint()).unwrap();
        let account = self.account(new.provisioner_secret.as_ref())?;
        Ok(Some(Wanted { new, class, account, endpoint: "http://s3.test".to_owned() }))
    }

    pub(super) fn provision(
        &mut self,
        cached: Claim,
        accounts: &mut HashMap<String, BucketAccount>,
        steps: usize,
        answer: Answer,
    ) {
        let Some(observed) = self.observe(cached, accounts) else { return };
        let claim = observed.claim.clone();
        let Ok(plan) = plan::plan(observed) else { return };
        let mut executor = Executor { cluster: self, accounts, claim, steps, answer };
        let _ = apply(plan, &mut executor).now_or_never().expect("a simulation never waits");
    }

    pub(super) fn reclaim(&mut self, name: &str, limit: usize, answer: Answer) {
        let volume = self.volumes[name].clone();
        let object = volume.object(name);
        let is_deleted = released::need(&object) == released::Need::Delete;
        let account = is_deleted.then(|| self.account(volume.secret.as_ref()));
        let observed = reclaim::Observed { account, endpoint: "http://s3.test".to_owned(), now: self.now };
        for step in reclaim::plan(&object, observed).into_iter().take(limit) {
            match step {
                reclaim::Step::DeleteBucket { id, account, .. } => {
                    let deleted = self.delete_bucket(id.bucket_name(), account.access_key_id(), answer);
                    let Ok(outcome) = deleted else { return };
                    if let DeleteOutcome::Kept(kept) = outcome {
                        self.notes.push(kept.note(&id.place(), "http://s3.test"));
                    }
                }
                reclaim::Step::ReportKept { note, .. } => self.notes.push(note),
                reclaim::Step::RecordMissingSecret(since) => {
                    self.volumes.get_mut(name).unwrap().missing_since = since.map(|since| since.to_string());
                }
                reclaim::Step::DeleteVolume => {
                    self.volumes.remove(name);
                }
                reclaim::Step::Fail(_) => return,
                reclaim::Step::AddFinalizer | reclaim::Step::RemoveFinalizer => {}
            }
            self.check();
        }
    }
}

struct Executor<'a> {
    cluster: &'a mut Cluster,
    accounts: &'a mut HashMap<String, BucketAccount>,
    claim: Claim,
    /// That are left before the process is killed.
    steps: usize,
    answer: Answer,
}

fn conflict() -> ProvisionError {
    ApiError::Conflict { request: Request::AddClaimFinalizer, message: "simulated".to_owned() }.into()
}

impl Execute for Executor<'_> {
    async fn execute(&mut self, step: &plan::Step) -> Result<Applied, ProvisionError> {
        let Some(steps) = self.steps.checked_sub(1) else {
            return Err(ApiError::Failed { request: Request::ReadClaim, message: "killed".to_owned() }.into());
        };
        self.steps = steps;
        let applied = self.execute_now(step);
        self.cluster.check();
        applied
    }
}

impl Executor<'_> {
    fn execute_now(&mut self, step: &plan::Step) -> Result<Applied, ProvisionError> {
        let (cluster, name) = (&mut *self.cluster, self.claim.name.clone());
        let version = cluster.next();
        match step {
            plan::Step::Publish(EventReason::BucketLeft, note) => cluster.notes.push(note.clone()),
            plan::Step::Publish(..) => {}
            plan::Step::AddFinalizer { id, owner } => {
                let live = cluster.claims.get_mut(&name).ok_or_else(conflict)?;
                if live.uid != self.claim.uid
                    || live.version != self.claim.resource_version
                    || live.deleted_at.is_some()
                {
                    return Err(conflict());
                }
                (live.has_finalizer, live.started, live.version) = (true, Some(id.to_string()), version);
                self.claim = live.object(&name);
                self.accounts.insert(self.claim.uid.clone(), owner.clone());
            }
            plan::Step::CreateBucket { id, account, .. } => {
                cluster.create_bucket(id.bucket_name(), account.access_key_id(), self.answer)?;
            }
            plan::Step::CreateVolume { new, .. } => {
                let volume = SimVolume {
                    handle: new.id.to_string(),
                    claim_uid: self.claim.uid.clone(),
                    secret: new.provisioner_secret.clone(),
                    missing_since: None,
                    released: false,
                };
                let written = cluster.volumes.entry(self.claim.volume_name()).or_insert(volume);
                if written.handle != new.id.to_string() && self.claim.has_finalizer() {
                    return Ok(Applied::OtherVolume);
                }
            }
            plan::Step::DeleteBucket { id, account, .. } => {
                assert!(matches!(id, VolumeId::Bucket(_)));
                let outcome =
                    cluster.delete_bucket(id.bucket_name(), account.access_key_id(), self.answer)?;
                if let DeleteOutcome::Kept(kept) = outcome {
                    cluster.notes.push(kept.note(&id.place(), "http://s3.test"));
                }
            }
            plan::Step::RemoveFinalizer => {
                self.accounts.remove(&self.claim.uid);
                if let Some(live) = cluster.claims.get_mut(&name).filter(|live| live.uid == self.claim.uid) {
                    (live.has_finalizer, live.started, live.version) = (false, None, version);
                    self.claim = live.object(&name);
                }
                cluster.collect();
            }
        }
        Ok(Applied::Done)
    }
}
