//! Live reads, for what must not be guessed from a cache: caches are the past.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use contract::attachment::MountpointS3PodAttachment;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client};
use service::follow::Objects;
use thiserror::Error;
use tokio::sync::Semaphore;

use crate::group::is_broken;
use crate::observed::{MountpointPod, Workload};
use crate::slim::SlimPod;
use crate::world::View;
use crate::world::returning::Returning;

/// A live read is answered in milliseconds; a connection that died without saying so never answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Error)]
#[error("cannot read {what}: {error}")]
pub struct ReadError {
    what: &'static str,
    error: String,
    /// The account has no right to it: trying again does not help, a value of the chart does.
    pub is_forbidden: bool,
}

/// Workloads read at once. An answer is held as it came, some megabytes if the pod's author wants that, and every worker
/// may ask at the same time.
const WORKLOADS_AT_ONCE: usize = 4;

pub struct Reader {
    pub client: Client,
    workloads: Semaphore,
}

impl Reader {
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone(), workloads: Semaphore::new(WORKLOADS_AT_ONCE) }
    }

    /// Absence from a cache is no proof: before a workload is dropped, the API server itself says that it is gone.
    pub async fn gone(&self, view: &View) -> Result<BTreeSet<String>, ReadError> {
        let mut alive = BTreeSet::new();
        let mut unplaced = false;
        for (uid, place) in &view.suspects {
            let Some((namespace, name)) = place else {
                unplaced = true;
                continue;
            };
            let found = self.workload(namespace, name).await?;
            alive.extend(found.filter(|found| found.uid == *uid && found.is_alive()).map(|found| found.uid));
        }
        if unplaced {
            // After a restart nobody knows the names of those who left meanwhile: ask for all pods of the node.
            let node = format!("spec.nodeName={}", view.key.node);
            let _turn = self.workloads.acquire().await.expect("it is never closed");
            let mut pods = Objects::of(&Api::<SlimPod>::all(self.client.clone()), Some(&node));
            while let Some(pod) = read("the node's pods", pods.next()).await? {
                alive.extend(Workload::of(&pod).filter(Workload::is_alive).map(|found| found.uid));
            }
        }
        Ok(view.suspects.keys().filter(|uid| !alive.contains(*uid)).cloned().collect())
    }

    /// Whether it is still there and waits.
    pub async fn awaits_volumes(&self, workload: &Workload) -> Result<bool, ReadError> {
        let found = self.workload(&workload.namespace, &workload.name).await?;
        Ok(found.is_some_and(|found| found.uid == workload.uid && found.awaits_volumes()))
    }

    /// Whether the workload is still there, to be served by a pod that is not leaving.
    pub async fn returns(
        &self,
        returning: &Returning,
        mountpoint_namespace: &str,
    ) -> Result<bool, ReadError> {
        let Returning { workload, pod, .. } = returning;
        let pods = Api::<SlimPod>::namespaced(self.client.clone(), mountpoint_namespace);
        let found = read("the Mountpoint Pod", pods.get_opt(&pod.name)).await?;
        let found = found.as_ref().and_then(MountpointPod::of);
        if !found.is_some_and(|found| found.uid == pod.uid && !is_broken(&found)) {
            return Ok(false);
        }
        let found = self.workload(&workload.namespace, &workload.name).await?;
        Ok(found.is_some_and(|found| found.uid == workload.uid && found.is_alive() && !found.terminating))
    }

    async fn workload(&self, namespace: &str, name: &str) -> Result<Option<Workload>, ReadError> {
        let pods = Api::<SlimPod>::namespaced(self.client.clone(), namespace);
        let _turn = self.workloads.acquire().await.expect("it is never closed");
        let found = read("a workload", pods.get_opt(name)).await?;
        Ok(found.as_ref().and_then(Workload::of))
    }

    pub async fn node_gone(&self, node: &str) -> Result<bool, ReadError> {
        let nodes = Api::<Node>::all(self.client.clone());
        Ok(read("the node", nodes.get_metadata_opt(node)).await?.is_none())
    }

    /// Whether an attachment names the pod, by a live read: attachments are written before their pods, but the watch of
    /// pods may be ahead of the watch of attachments.
    pub async fn is_named(&self, pod: &MountpointPod) -> Result<bool, ReadError> {
        if let Some(name) = &pod.attachment {
            let attachments = Api::<MountpointS3PodAttachment>::all(self.client.clone());
            let found = read("the attachment", attachments.get_opt(name)).await?;
            return Ok(found.is_some_and(|found| found.spec.mountpoint_pods.contains_key(&pod.name)));
        }
        let attachments = self.attachments_of(pod.node.as_deref(), None).await?;
        Ok(attachments.iter().any(|found| found.spec.mountpoint_pods.contains_key(&pod.name)))
    }

    /// Of a node, of a volume, or all.
    pub async fn attachments_of(
        &self,
        node: Option<&str>,
        volume: Option<&str>,
    ) -> Result<Vec<MountpointS3PodAttachment>, ReadError> {
        let attachments = Api::<MountpointS3PodAttachment>::all(self.client.clone());
        let node = node.map(|node| format!("spec.nodeName={node}"));
        let volume = volume.map(|volume| format!("spec.persistentVolumeName={volume}"));
        let selector = node.into_iter().chain(volume).collect::<Vec<_>>().join(",");
        Ok(read("attachments", attachments.list(&ListParams::default().fields(&selector))).await?.items)
    }
}

pub async fn read<T>(
    what: &'static str,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, ReadError> {
    match tokio::time::timeout(ANSWER_WITHIN, request).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => {
            let is_forbidden = matches!(&error, kube::Error::Api(status) if status.is_forbidden());
            Err(ReadError { what, error: error.to_string(), is_forbidden })
        }
        Err(_) => {
            let error = format!("no answer within {ANSWER_WITHIN:?}");
            Err(ReadError { what, error, is_forbidden: false })
        }
    }
}
