//! Classes, Secrets and claims of one test, and what becomes of them in a control plane with its own binder.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use contract::names::DRIVER;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use xtask::s3::{Account, Client, ENDPOINT};

use crate::account::install;
use crate::{Inside, Seen, eventually};

/// The binder looks every second; the rest is for a machine that is busy with other tests.
pub const LIMIT: Duration = Duration::from_mins(4);

static BARRIERS: AtomicUsize = AtomicUsize::new(0);

pub struct Tenant {
    pub here: Inside,
    pub server: Client,
}

impl Tenant {
    /// `account` is whose buckets are looked at.
    pub async fn set(test: &str, account: Account) -> Self {
        let here = Inside::join(test).await;
        install(&here.client).await;
        Self { here, server: Client::new(ENDPOINT, account).unwrap() }
    }

    pub fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.here.client.clone(), &self.here.namespace)
    }

    pub fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.here.client.clone())
    }

    /// The test's class of this name; unique in the cluster.
    pub fn class_name(&self, name: &str) -> String {
        format!("{}-{name}", self.here.namespace)
    }

    /// With whatever differs from the plainest.
    pub async fn class(&self, name: &str, parameters: Value, more: Value) {
        let mut class = json!({
            "metadata": {"name": self.class_name(name)}, "provisioner": DRIVER, "parameters": parameters,
        });
        for (key, value) in more.as_object().unwrap() {
            class[key] = value.clone();
        }
        Api::<StorageClass>::all(self.here.client.clone())
            .create(&PostParams::default(), &serde_json::from_value(class).unwrap())
            .await
            .unwrap();
    }

    pub async fn secret(&self, name: &str, data: Value) {
        let secret = json!({"metadata": {"name": name}, "stringData": data});
        let secrets = Api::<Secret>::namespaced(self.here.client.clone(), &self.here.namespace);
        let params = PatchParams::apply("tests").force();
        let mut secret = secret;
        secret["apiVersion"] = json!("v1");
        secret["kind"] = json!("Secret");
        secrets.patch(name, &params, &Patch::Apply(secret)).await.unwrap();
    }

    pub async fn keys(&self, name: &str, account: Account) {
        let data = json!({"access_key_id": account.access_key, "secret_access_key": account.secret_key});
        self.secret(name, data).await;
    }

    /// Parameters that name a Secret of this namespace, for making buckets and for mounting them.
    pub fn provisioner_secret(&self, name: &str) -> Value {
        json!({
            "csi.storage.k8s.io/provisioner-secret-name": name,
            "csi.storage.k8s.io/provisioner-secret-namespace": self.here.namespace,
            "csi.storage.k8s.io/node-publish-secret-name": name,
            "csi.storage.k8s.io/node-publish-secret-namespace": self.here.namespace,
        })
    }

    pub async fn claim(&self, name: &str, class: &str) -> PersistentVolumeClaim {
        self.claim_with(name, class, json!({})).await
    }

    pub async fn claim_with(&self, name: &str, class: &str, more: Value) -> PersistentVolumeClaim {
        let mut spec = json!({
            "accessModes": ["ReadWriteMany"], "storageClassName": self.class_name(class),
            "resources": {"requests": {"storage": "5Gi"}},
        });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let claim = json!({"metadata": {"name": name}, "spec": spec});
        let claim = serde_json::from_value(claim).unwrap();
        self.claims().create(&PostParams::default(), &claim).await.unwrap()
    }

    /// Waits until the claim is bound; returns its volume.
    pub async fn bound(&self, name: &str) -> PersistentVolume {
        let claim = eventually(&format!("claim {name} is bound"), LIMIT, || async {
            let claim = self.claims().get(name).await.unwrap();
            let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
            if bound { Seen::Yes(claim) } else { Seen::NotYet(self.events(name).await.join("\n")) }
        })
        .await;
        self.volumes().get(&claim.spec.unwrap().volume_name.unwrap()).await.unwrap()
    }

    /// Waits until the controller has made and deleted a volume: it has seen before what was there before, claims and
    /// volumes alike, as each kind comes by one watch and is worked off in its order.
    pub async fn barrier(&self) {
        let name = format!("barrier-{}", BARRIERS.fetch_add(1, Ordering::Relaxed));
        self.class(&name, json!({}), json!({})).await;
        self.claim(&name, &name).await;
        let volume = self.bound(&name).await;
        self.delete(&name).await;
        self.volume_gone(&volume.name_any()).await;
    }

    pub async fn stays_unbound(&self, name: &str) {
        self.barrier().await;
        let claim = self.claims().get(name).await.unwrap();
        assert_eq!(claim.spec.unwrap().volume_name, None, "{:?}", self.events(name).await);
    }

    pub async fn delete(&self, name: &str) {
        self.claims().delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub async fn claim_gone(&self, name: &str) {
        eventually(&format!("claim {name} is gone"), LIMIT, || async {
            match self.claims().get_opt(name).await.unwrap() {
                None => Seen::Yes(()),
                Some(claim) => Seen::NotYet(format!("{:?} {:?}", claim.metadata, self.events(name).await)),
            }
        })
        .await;
    }

    /// Waits until nothing of ours is on the claim, as is so between attempts that S3 clearly refuses.
    pub async fn has_no_finalizer(&self, name: &str) {
        eventually(&format!("claim {name} has no finalizer of ours"), LIMIT, || async {
            let claim = self.claims().get(name).await.unwrap();
            let unmarked = claim.finalizers() == ["kubernetes.io/pvc-protection"];
            Seen::some(unmarked.then_some(()), format!("{:?}", claim.finalizers()))
        })
        .await;
    }

    pub async fn volume_gone(&self, name: &str) {
        eventually(&format!("volume {name} is gone"), LIMIT, || async {
            match self.volumes().get_opt(name).await.unwrap() {
                None => Seen::Yes(()),
                Some(volume) => Seen::NotYet(format!("{:?} {:?}", volume.metadata, volume.status)),
            }
        })
        .await;
    }

    /// Events on an object of this name, as `reason: note`.
    pub async fn events(&self, name: &str) -> Vec<String> {
        let events = Api::<Event>::all(self.here.client.clone());
        let ours = [self.here.namespace.as_str(), "default"];
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let about = all.iter().filter(|event| {
            let regarding = event.regarding.clone().unwrap_or_default();
            regarding.name.as_deref() == Some(name)
                && ours.contains(&event.namespace().unwrap_or_default().as_str())
        });
        let said = |event: &Event| {
            let (reason, note) = (event.reason.clone(), event.note.clone());
            format!("{}: {}", reason.unwrap_or_default(), note.unwrap_or_default())
        };
        about.map(said).collect()
    }

    /// Waits for an Event that contains all of these words.
    pub async fn has_event(&self, name: &str, words: &[&str]) -> String {
        eventually(&format!("{name} has an event {words:?}"), LIMIT, || async {
            let seen = self.events(name).await;
            let found = seen.iter().find(|line| words.iter().all(|word| line.contains(word)));
            Seen::some(found.cloned(), seen.join("\n"))
        })
        .await
    }

    pub fn buckets(&self) -> BTreeSet<String> {
        self.server.buckets().unwrap().into_iter().collect()
    }

    pub fn has_bucket(&self, name: &str) -> bool {
        self.buckets().contains(name)
    }

    /// The names of this test's volumes.
    pub async fn volumes_here(&self) -> BTreeSet<String> {
        let all = self.volumes().list(&ListParams::default()).await.unwrap();
        let here = |volume: &&PersistentVolume| {
            let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            claim.and_then(|claim| claim.namespace.as_ref()) == Some(&self.here.namespace)
        };
        all.iter().filter(here).map(ResourceExt::name_any).collect()
    }
}

/// The bucket or id behind a volume.
pub fn handle(volume: &PersistentVolume) -> String {
    volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()).unwrap().volume_handle.clone()
}
