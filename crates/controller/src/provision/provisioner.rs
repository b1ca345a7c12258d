//! Claims one at a time: gather, decide, act, tell.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use contract::names::DRIVER;
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, Client, ResourceExt as _};

use super::claim::{Claim, Need};
use super::failure::ProvisionError;
use super::keyring::{Keyring, KeyringError};
use super::naming::{Deletion, VolumeId};
use super::order::{Order, waits_for_consumer};
use super::origin::{Origin, Origins};
use super::patience::{Patience, Task};
use super::server::Account;
use super::storage_class::REGION;
use super::tell::{self, Reason, Teller};
use super::template;
use super::volume::{Gone, Volumes};
use super::write::{WriteError, Writer};
use crate::confirm::read;
use crate::dispatch::Outcome;
use crate::world::World;

/// The binder takes milliseconds. Until then the claim looks as if it still waited for a volume.
const BOUND_WITHIN: Duration = Duration::from_secs(20);

pub struct Provisioner {
    client: Client,
    pub(super) volumes: Arc<Volumes>,
    world: Arc<Mutex<World>>,
    pub(super) writer: Writer,
    pub(super) teller: Teller,
    pub(super) patience: Patience,
    pub(super) keyring: Keyring,
    origins: Origins,
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
            keyring: Keyring::new(client),
            origins: Origins::default(),
            identity,
        }
    }

    pub async fn claim(&self, namespace: &str, name: &str) -> Outcome {
        let Some(claim) = self.world().provision.claim(namespace, name) else { return Outcome::Done };
        let need = claim.need();
        let task = match need {
            Need::Settle => Task::Settle(claim.uid.clone()),
            Need::Nothing | Need::Refuse(_) | Need::Provision => Task::Provision(claim.uid.clone()),
        };
        if let Some(left) = self.patience.left(&task, Instant::now()) {
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
        self.finish(&task, done, |message| self.teller.tell(tell::claim(&claim), reason, message))
    }

    /// `done` with how long it may rest.
    pub(super) fn finish(
        &self,
        task: &Task,
        done: Result<Duration, ProvisionError>,
        tell: impl FnOnce(String),
    ) -> Outcome {
        match done {
            Ok(Duration::ZERO) => {
                self.patience.regain(task);
                Outcome::Done
            }
            Ok(rest) => {
                self.patience.rest(task, Instant::now(), rest);
                Outcome::Again(rest)
            }
            Err(error) if error.is_outdated() => {
                tracing::debug!(?task, %error, "decided on old knowledge");
                Outcome::Outdated
            }
            Err(error) => {
                tracing::warn!(?task, %error, "not done");
                tell(error.to_string());
                Outcome::Failed(Some(self.patience.lose(task, Instant::now())))
            }
        }
    }

    async fn provision(&self, claim: &Claim) -> Result<Duration, ProvisionError> {
        let class = self.class(claim).await?;
        if class.provisioner != DRIVER || (waits_for_consumer(&class) && !claim.has_node()) {
            return Ok(Duration::ZERO);
        }
        let region = class.parameters.iter().find_map(|given| given.get(REGION)).map(|region| region.trim());
        let claim = if template::reads_annotations(&class) {
            &self.writer.with_annotations(claim).await?
        } else {
            claim
        };
        let mut order = Order::of(claim, &class, &self.volumes.server.endpoint.address(region))
            .map_err(|error| ProvisionError::Class(claim.class.clone(), error))?;
        let credentials = self.keyring.find(order.provisioner_secret.as_ref(), &self.volumes).await?;
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

    async fn class(&self, claim: &Claim) -> Result<StorageClass, ProvisionError> {
        if claim.class.is_empty() {
            return Err(ProvisionError::NoClass);
        }
        let classes = Api::<StorageClass>::all(self.client.clone());
        let class = read("the StorageClass", classes.get_opt(&claim.class)).await?;
        class.ok_or_else(|| ProvisionError::ClassMissing(claim.class.clone()))
    }

    /// From here on a claim that is deleted waits for us. A prefix leaves nothing to undo.
    async fn begin(&self, claim: &Claim, order: &Order) -> Result<Claim, ProvisionError> {
        let (mut claim, origin) = (claim.clone(), Origin::from(order));
        let elsewhere = self.origins.get(&claim.uid).is_some_and(|known| known != origin);
        if claim.is_begun() && (elsewhere || claim.begun().as_ref() != Some(&order.id)) {
            // The class is not what it was: what was begun under its old self goes first.
            claim = self.settle(&claim).await?.ok_or_else(|| WriteError::Outdated {
                step: "begin_claim",
                message: "the claim is gone, or not as it was".to_owned(),
            })?;
        }
        if matches!(order.id, VolumeId::Prefix { .. }) {
            return Ok(claim);
        }
        if !claim.is_begun() {
            claim = self.writer.begin(&claim, &order.id).await?;
            // What the watch will tell of this write is no news.
            self.world().provision.note_written(claim.clone());
        }
        self.origins.note(&claim.uid, origin);
        Ok(claim)
    }

    /// Takes the mark away; the claim as it is then. Nothing, if it is gone or somebody else has taken the mark away.
    async fn release(&self, claim: &Claim) -> Result<Option<Claim>, ProvisionError> {
        let released = self.writer.release(claim).await?;
        self.origins.forget(&claim.uid);
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
        let Some(id) = claim.begun() else { return Ok(()) };
        let origin = self.origin(claim).await?;
        let (namespace, name) = (&claim.namespace, &claim.name);
        let known = origin.clone().unwrap_or_default();
        let missing = match self.delete_begun(&id, &known).await {
            Ok(gone) => {
                tracing::info!(namespace, claim = name, volume_id = %id, ?gone, "volume undone");
                return Ok(());
            }
            // Deleted with its namespace, which would wait for ever for a claim that waits for its Secret.
            Err(ProvisionError::Keyring(KeyringError::SecretMissing(secret))) => Some(secret),
            Err(error) if origin.is_none() && error.is_refusal() => {
                tracing::warn!(namespace, claim = name, volume_id = %id, %error, "the driver's keys do not help");
                None
            }
            Err(error) => return Err(error),
        };
        let address = self.volumes.server.endpoint.address(known.region.as_deref());
        let message = tell::left(&id, &address, missing.as_ref());
        tracing::warn!(namespace, claim = name, volume_id = %id, message, "volume not undone");
        self.teller.tell(tell::claim(claim), Reason::BucketLeft, message);
        Ok(())
    }

    /// Nothing, if neither this process nor the class knows: the driver's own keys are tried then. All that they could
    /// delete is an empty bucket whose name follows from the claim's UID.
    async fn origin(&self, claim: &Claim) -> Result<Option<Origin>, ProvisionError> {
        if let Some(origin) = self.origins.get(&claim.uid) {
            return Ok(Some(origin));
        }
        match self.class(claim).await {
            Ok(class) if class.provisioner == DRIVER => {
                Ok(Origin::of(claim, &class, &self.volumes.server.endpoint).ok())
            }
            Ok(_) | Err(ProvisionError::NoClass | ProvisionError::ClassMissing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn delete_begun(&self, id: &VolumeId, origin: &Origin) -> Result<Gone, ProvisionError> {
        let credentials = self.keyring.find(origin.secret.as_ref(), &self.volumes).await?;
        let account = Account { credentials: &credentials, region: origin.region.as_deref() };
        Ok(self.volumes.delete(id, Deletion::Retain, account).await?)
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("nobody panics while changing the world")
    }
}
