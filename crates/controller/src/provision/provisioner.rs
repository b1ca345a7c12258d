//! Claims and volumes one at a time: gather, decide, act, tell.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use contract::names::DRIVER;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, Client, ResourceExt as _};

use super::claim::{Begun, Claim, Need};
use super::credentials::Credentials;
use super::failure::ProvisionError;
use super::naming::VolumeId;
use super::order::{Order, waits_for_consumer};
use super::patience::Patience;
use super::reclaim::{self, Leftover};
use super::server::Account;
use super::storage_class::{REGION, SecretRef};
use super::tell::{self, Reason, Teller};
use super::volume::{Gone, VolumeError, Volumes};
use super::write::{WriteError, Writer};
use crate::confirm::read;
use crate::dispatch::Outcome;
use crate::slim::SlimVolume;
use crate::world::{Key, World};

/// The binder takes milliseconds. Until then the claim looks as if it still waited for a volume.
const BOUND_WITHIN: Duration = Duration::from_secs(20);

pub struct Provisioner {
    client: Client,
    volumes: Arc<Volumes>,
    world: Arc<Mutex<World>>,
    writer: Writer,
    teller: Teller,
    patience: Patience,
    /// Of this process, in the form of csi-provisioner's.
    identity: String,
}

impl Provisioner {
    pub fn new(client: &Client, volumes: Arc<Volumes>, world: Arc<Mutex<World>>) -> Self {
        let identity = format!("{}-{}-{DRIVER}", Timestamp::now().as_millisecond(), std::process::id());
        Self {
            client: client.clone(),
            volumes,
            world,
            writer: Writer::new(client),
            teller: Teller::new(client),
            patience: Patience::default(),
            identity,
        }
    }

    pub async fn claim(&self, namespace: &str, name: &str) -> Outcome {
        let Some(claim) = self.world().provision.claim(namespace, name) else { return Outcome::Done };
        // By UID: a claim that is made again under its name need not wait for what kept the first one.
        let key = Key::Claim(namespace.to_owned(), claim.uid.clone());
        let need = claim.need();
        // A claim that is to go need not wait for what kept it from being provisioned.
        if let Some(left) = self.patience.left(&key, Instant::now()).filter(|_| need != Need::Settle) {
            return Outcome::Again(left);
        }
        let (done, reason) = match need {
            Need::Nothing => (Ok(Duration::ZERO), Reason::ProvisioningFailed),
            Need::Refuse(refusal) => {
                self.teller.tell(tell::claim(&claim), Reason::ProvisioningFailed, refusal.to_string());
                (Ok(Duration::ZERO), Reason::ProvisioningFailed)
            }
            Need::Provision => (self.provision(&claim).await, Reason::ProvisioningFailed),
            Need::Settle => {
                (self.settle(&claim).await.map(|_| Duration::ZERO), Reason::ProvisioningCleanupFailed)
            }
        };
        self.finish(&key, done, |message| self.teller.tell(tell::claim(&claim), reason, message))
    }

    /// `done` with how long it may rest.
    fn finish(
        &self,
        key: &Key,
        done: Result<Duration, ProvisionError>,
        tell: impl FnOnce(String),
    ) -> Outcome {
        match done {
            Ok(Duration::ZERO) => {
                self.patience.regain(key);
                Outcome::Done
            }
            Ok(rest) => {
                self.patience.rest(key, Instant::now(), rest);
                Outcome::Again(rest)
            }
            Err(error) if error.is_outdated() => {
                tracing::debug!(?key, %error, "decided on old knowledge");
                Outcome::Outdated
            }
            Err(error) => {
                tracing::warn!(?key, %error, "not done");
                tell(error.told());
                Outcome::Failed(Some(self.patience.lose(key, Instant::now())))
            }
        }
    }

    async fn provision(&self, claim: &Claim) -> Result<Duration, ProvisionError> {
        if claim.class.is_empty() {
            return Err(ProvisionError::NoClass);
        }
        let classes = Api::<StorageClass>::all(self.client.clone());
        let class = read("the StorageClass", classes.get_opt(&claim.class)).await?;
        let class = class.ok_or_else(|| ProvisionError::ClassMissing(claim.class.clone()))?;
        if class.provisioner != DRIVER || (waits_for_consumer(&class) && !claim.has_node()) {
            return Ok(Duration::ZERO);
        }
        let region = class.parameters.iter().find_map(|given| given.get(REGION)).map(|region| region.trim());
        let mut order = Order::of(claim, &class, &self.volumes.server.endpoint.address(region))
            .map_err(|error| ProvisionError::Class(claim.class.clone(), error))?;
        let credentials = self.credentials(order.provisioner_secret.as_ref()).await?;
        // A bucket is mounted from where it was made.
        order.region = order.region.or_else(|| credentials.region.clone());
        let address = self.volumes.server.endpoint.address(order.region.as_deref());
        let message = format!("making volume `{}` at {address}", order.id);
        self.teller.tell(tell::claim(claim), Reason::Provisioning, message);

        let account = Account { credentials: &credentials, region: order.region.as_deref() };
        let (claim, begun_before) = (self.begin(claim, &order).await?, claim.is_begun());
        if let Err(error) = self.volumes.create(&order.id, account).await {
            // It was a clear no: nothing was made, and nothing has to be undone should the claim be deleted.
            if !begun_before && !error.is_ambiguous() {
                self.release(&claim).await?;
            }
            return Err(error.into());
        }
        let volume = order.persistent_volume(&claim, &class, &self.identity);
        let written = self.writer.create_volume(&volume, &claim).await?;
        if written != order.id.to_string() {
            // An earlier volume, of the class's old self, has not reached the claim yet: one is enough.
            self.undo(&claim).await?;
        }
        let (namespace, name, volume) = (&claim.namespace, &claim.name, volume.name_any());
        tracing::info!(namespace, claim = name, volume, volume_id = %order.id, "claim provisioned");
        self.release(&claim).await?;
        let message = format!("made volume {volume}");
        self.teller.tell(tell::claim(&claim), Reason::ProvisioningSucceeded, message);
        Ok(BOUND_WITHIN)
    }

    /// From here on a claim that is deleted waits for us. A prefix leaves nothing to undo.
    async fn begin(&self, claim: &Claim, order: &Order) -> Result<Claim, ProvisionError> {
        let begun = Begun::new(&order.id, order.provisioner_secret.as_ref(), order.region.as_deref());
        let before = claim.begun().map(|(_, before)| before);
        let mut claim = claim.clone();
        if claim.is_begun() && before.as_ref() != Some(&begun) {
            // The class is not what it was: what was begun under its old self goes first.
            claim = self.settle(&claim).await?.ok_or_else(|| WriteError::Outdated {
                step: "begin_claim",
                message: "the claim is gone, or not as it was".to_owned(),
            })?;
        }
        if claim.is_begun() || matches!(order.id, VolumeId::Prefix { .. }) {
            return Ok(claim);
        }
        let claim = self.writer.begin(&claim, &begun).await?;
        // What the watch will tell of this write is no news.
        self.world().provision.note_written(claim.clone());
        Ok(claim)
    }

    /// Takes the mark away; the claim as it is then. Nothing, if it is gone or somebody else has taken the mark away.
    async fn release(&self, claim: &Claim) -> Result<Option<Claim>, ProvisionError> {
        let released = self.writer.release(claim).await?;
        if let Some(released) = &released {
            self.world().provision.note_written(released.clone());
        }
        Ok(released)
    }

    /// A claim that was begun and is deleted, or has a volume: what has no volume is undone.
    async fn settle(&self, claim: &Claim) -> Result<Option<Claim>, ProvisionError> {
        if !self.writer.has_volume(claim).await? {
            self.undo(claim).await?;
        }
        self.release(claim).await
    }

    async fn undo(&self, claim: &Claim) -> Result<(), ProvisionError> {
        let Some((id, begun)) = claim.begun() else { return Ok(()) };
        let (secret, region) = (begun.secret(), begun.region.as_deref());
        let known = secret.as_ref().filter(|secret| claim.may_know(secret));
        let (namespace, name) = (&claim.namespace, &claim.name);
        match self.delete_behind(&id, secret.as_ref(), region).await {
            Ok(gone) => {
                tracing::info!(namespace, claim = name, volume_id = %id, ?gone, "volume undone");
                Ok(())
            }
            // Deleted with its namespace, which would wait for ever for a claim that waits for its Secret.
            Err(ProvisionError::SecretMissing(..)) => {
                let address = self.volumes.server.endpoint.address(region);
                let message = tell::left(&id, &address, secret.as_ref());
                tracing::warn!(namespace, claim = name, volume_id = %id, message, "volume not undone");
                self.teller.tell(tell::claim(claim), Reason::BucketLeft, tell::left(&id, &address, known));
                Ok(())
            }
            Err(error) if secret.is_some() && known.is_none() => Err(ProvisionError::Untold(Box::new(error))),
            Err(error) => Err(error),
        }
    }

    async fn delete_behind(
        &self,
        id: &VolumeId,
        secret: Option<&SecretRef>,
        region: Option<&str>,
    ) -> Result<Gone, ProvisionError> {
        let credentials = self.credentials(secret).await?;
        Ok(self.volumes.delete(id, Account { credentials: &credentials, region }).await?)
    }

    /// A volume that nobody claims any more, or whose policy was changed.
    pub async fn volume(&self, name: &str) -> Outcome {
        let key = Key::Volume(name.to_owned());
        if let Some(left) = self.patience.left(&key, Instant::now()) {
            return Outcome::Again(left);
        }
        // Live: what is deleted by what a cache says may have been changed to Retain a moment ago.
        let volume = match self.writer.volume(name).await {
            Ok(Some(volume)) => volume,
            Ok(None) => return self.finish(&key, Ok(Duration::ZERO), drop),
            Err(error) => return self.finish(&key, Err(error.into()), drop),
        };
        let done = match reclaim::need(&volume) {
            reclaim::Need::Nothing => Ok(Gone::Deleted),
            reclaim::Need::AddFinalizer => {
                self.writer.add_finalizer(&volume).await.map_err(Into::into).map(|()| Gone::Deleted)
            }
            reclaim::Need::DropFinalizer => {
                self.writer.drop_finalizer(&volume).await.map_err(Into::into).map(|()| Gone::Deleted)
            }
            reclaim::Need::Delete => self.delete(&volume).await,
        };
        match done {
            // Others get their turn in between.
            Ok(Gone::Partly) => Outcome::Again(Duration::ZERO),
            done => self.finish(&key, done.map(|_| Duration::ZERO), |message| {
                self.teller.tell(tell::volume(&volume), Reason::VolumeFailedDelete, message);
            }),
        }
    }

    async fn delete(&self, volume: &SlimVolume) -> Result<Gone, ProvisionError> {
        let Some(leftover) = Leftover::of(volume) else { return Ok(Gone::Deleted) };
        let about = || tell::volume(volume);
        let gone = match VolumeId::parse(&leftover.handle) {
            Some(id) => {
                let credentials = self.credentials(leftover.secret.as_ref()).await?;
                let account = Account { credentials: &credentials, region: leftover.region.as_deref() };
                let gone = self.volumes.delete(&id, account).await?;
                if gone == Gone::NotEmpty {
                    let address = self.volumes.server.endpoint.address(account.region());
                    let message = tell::kept(id.bucket_name(), &address);
                    self.teller.tell(about(), Reason::BucketKept, message);
                }
                gone
            }
            None => {
                let message = format!("`{}` was not made by this driver and is kept", leftover.handle);
                self.teller.tell(about(), Reason::BucketKept, message);
                Gone::NotEmpty
            }
        };
        if gone != Gone::Partly {
            self.writer.delete_volume(volume).await?;
            tracing::info!(volume = volume.name_any(), volume_id = leftover.handle, ?gone, "volume deleted");
        }
        Ok(gone)
    }

    /// Of the Secret, live: it may have been corrected a moment ago. Without one, the driver's.
    async fn credentials(&self, secret: Option<&SecretRef>) -> Result<Credentials, ProvisionError> {
        let Some(SecretRef { namespace, name }) = secret else {
            return Ok(self.volumes.drivers_own()?);
        };
        let secrets = Api::<Secret>::namespaced(self.client.clone(), namespace);
        let found = read("the Secret", secrets.get_opt(name)).await?;
        let missing = || ProvisionError::SecretMissing(namespace.clone(), name.clone());
        let data = found.ok_or_else(missing)?.data.unwrap_or_default();
        let text =
            |(key, value): (String, k8s_openapi::ByteString)| Some((key, String::from_utf8(value.0).ok()?));
        let data: BTreeMap<String, String> = data.into_iter().filter_map(text).collect();
        Ok(Credentials::of_secret(&data, &format!("Secret {namespace}/{name}")).map_err(VolumeError::from)?)
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("nobody panics while changing the world")
    }
}
