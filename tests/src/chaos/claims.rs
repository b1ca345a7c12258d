//! Claims that come and go, several at once: one alone is bound before anything can be made to fail.

use futures::future::join_all;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::scene::{Scene, Stuck};
use crate::story::LIMIT;
use crate::{Seen, reached};

const AT_ONCE: usize = 20;
/// A label.
const BATCH: &str = "batch";

impl Scene {
    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.story.here.client.clone(), &self.story.here.namespace)
    }

    pub(super) async fn create_claims(&self, batch: &str) {
        let created = (0..AT_ONCE).map(async |number| {
            let claim = json!({
                "metadata": {"name": format!("{batch}-{number}"), "labels": {BATCH: batch}},
                "spec": {
                    "accessModes": ["ReadWriteMany"], "storageClassName": self.story.name,
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            });
            let claim = serde_json::from_value(claim).unwrap();
            self.claims().create(&PostParams::default(), &claim).await.unwrap();
        });
        join_all(created).await;
    }

    pub(super) async fn bound(&self, batch: &str) -> Result<(), Stuck> {
        let is_bound = |claim: &PersistentVolumeClaim| {
            claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
        };
        reached(LIMIT, || async {
            match self.claims().list(&of(batch)).await {
                Ok(all) => {
                    let (bound, waiting): (Vec<_>, Vec<_>) = all.into_iter().partition(is_bound);
                    let seen = format!("{} of {batch} are bound, and not {:?}", bound.len(), waiting.first());
                    Seen::some((bound.len() == AT_ONCE).then_some(()), seen)
                }
                Err(error) => Seen::NotYet(error.to_string()),
            }
        })
        .await
    }

    pub(super) async fn delete_claims(&self, batch: &str) {
        self.claims().delete_collection(&DeleteParams::default(), &of(batch)).await.map(drop).unwrap();
    }

    /// Buckets and volumes that were made for claims of this scene.
    pub(super) async fn provisioned(&self) -> Vec<String> {
        let volumes = Api::<PersistentVolume>::all(self.story.here.client.clone());
        let all = volumes.list(&ListParams::default()).await.unwrap().items.into_iter();
        let ours = all.filter(|volume| {
            volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()) == Some(self.story.name)
        });
        let buckets = self.story.server.buckets().unwrap().into_iter();
        let buckets = buckets.filter(|bucket| !self.buckets.contains(bucket));
        ours.map(|volume| volume.name_any()).chain(buckets.map(|name| format!("bucket {name}"))).collect()
    }

    /// Waits until all that was deleted is gone, with its buckets.
    pub(super) async fn unprovisioned(&self) -> Result<(), Stuck> {
        reached(LIMIT, || async {
            let left = self.provisioned().await;
            Seen::some(left.is_empty().then_some(()), format!("not deleted: {left:?}"))
        })
        .await
    }
}

fn of(batch: &str) -> ListParams {
    ListParams::default().labels(&format!("{BATCH}={batch}"))
}
