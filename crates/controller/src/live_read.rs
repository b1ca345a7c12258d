//! Live reads, where a decision must not rely on a cache, which may be outdated.

mod headroom;

use std::collections::BTreeSet;

use contract::attachment::MountpointS3PodAttachment;
use contract::slim::SlimPod;
use kube::api::ListParams;
use kube::{Api, Client};
use service::follow::{Objects, Selection};
use thiserror::Error;
use tokio::sync::Semaphore;

use crate::api::{Cause, Failure, answer};
use crate::observed::{MountpointPod, Workload};
use crate::slim::SlimNode;
use crate::world::{Detached, View};

#[derive(Debug, Error)]
#[error("cannot read {what}: {failure}")]
pub struct ReadError {
    what: &'static str,
    failure: Failure,
}

impl ReadError {
    /// Missing permissions: a retry does not help, a chart value does.
    pub fn is_forbidden(&self) -> bool {
        self.failure.cause == Cause::Forbidden
    }
}

/// Workloads read at once. A response is held whole, which can be megabytes, and every worker may read at the same time.
const WORKLOADS_AT_ONCE: usize = 4;

pub struct Reader {
    pub client: Client,
    pub mountpoint_namespace: String,
    workloads: Semaphore,
}

impl Reader {
    pub fn new(client: &Client, mountpoint_namespace: &str) -> Self {
        Self {
            client: client.clone(),
            mountpoint_namespace: mountpoint_namespace.to_owned(),
            workloads: Semaphore::new(WORKLOADS_AT_ONCE),
        }
    }

    /// Which of the listed workloads are gone. Their absence from a cache does not prove it.
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
            // The names of workloads that left before this process started are unknown: list all pods of the node.
            let node = Selection::of_fields(format!("spec.nodeName={}", view.key.node));
            let _permit = self.workloads.acquire().await.expect("the semaphore is never closed");
            let mut pods = Objects::of(&Api::<SlimPod>::all(self.client.clone()), &node);
            while let Some(pod) = read("the node's pods", pods.next()).await? {
                alive.extend(Workload::of(&pod).filter(Workload::is_alive).map(|found| found.uid));
            }
        }
        Ok(view.suspects.keys().filter(|uid| !alive.contains(*uid)).cloned().collect())
    }

    /// Which of the waiting workloads still wait and are attached nowhere. While another controller may be writing, the
    /// cache is not enough: that controller may have attached a workload under another key, because it has not seen the
    /// volume's last edit, and keys of different names do not collide at the API server; or the workload may have come and
    /// gone, and its pod be about to be unmounted.
    pub async fn waiting(&self, view: &View) -> Result<Vec<Workload>, ReadError> {
        let attachments = self.attachments_of(Some(&view.key.node), Some(&view.key.volume_name)).await?;
        let listed: BTreeSet<&str> =
            attachments.iter().flat_map(|found| found.spec.workload_uids()).collect();
        let mut confirmed = Vec::new();
        for waiting in view.waiting.iter().filter(|workload| !listed.contains(workload.uid.as_str())) {
            let found = self.workload(&waiting.namespace, &waiting.name).await?;
            if found.is_some_and(|found| found.uid == waiting.uid && found.awaits_volumes()) {
                confirmed.push(waiting.clone());
            }
        }
        Ok(confirmed)
    }

    /// Which of the detached workloads to attach again, each with its Mountpoint Pod: a pod that another controller has
    /// marked for unmount must not be named again, and a workload must not be listed twice.
    pub async fn detached(&self, view: &View) -> Result<Vec<(String, String)>, ReadError> {
        let mut confirmed = Vec::new();
        if view.detached.is_empty() {
            return Ok(confirmed);
        }
        let attachments = self.attachments_of(Some(&view.key.node), Some(&view.key.volume_name)).await?;
        for detached in &view.detached {
            let uid = &detached.workload.uid;
            let is_listed = attachments.iter().any(|found| found.spec.mountpoint_pod_of(uid).is_some());
            if !is_listed && self.is_served(detached).await? {
                confirmed.push((uid.clone(), detached.pod.name.clone()));
            }
        }
        Ok(confirmed)
    }

    /// Whether the workload still runs on its pod, and the pod is not ending.
    async fn is_served(&self, detached: &Detached) -> Result<bool, ReadError> {
        let Detached { workload, pod, .. } = detached;
        let pods = Api::<SlimPod>::namespaced(self.client.clone(), &self.mountpoint_namespace);
        let found = read("the Mountpoint Pod", pods.get_opt(&pod.name)).await?;
        let found = found.as_ref().and_then(MountpointPod::of);
        if !found.is_some_and(|found| found.uid == pod.uid && !found.is_ending()) {
            return Ok(false);
        }
        let found = self.workload(&workload.namespace, &workload.name).await?;
        Ok(found.is_some_and(|found| found.uid == workload.uid && found.is_alive() && !found.terminating))
    }

    async fn workload(&self, namespace: &str, name: &str) -> Result<Option<Workload>, ReadError> {
        let pods = Api::<SlimPod>::namespaced(self.client.clone(), namespace);
        let _permit = self.workloads.acquire().await.expect("the semaphore is never closed");
        let found = read("a workload", pods.get_opt(name)).await?;
        Ok(found.as_ref().and_then(Workload::of))
    }

    /// Whether pods on the node no longer run, because it is gone or an administrator says so.
    pub async fn node_gone(&self, node: &str) -> Result<bool, ReadError> {
        let nodes = Api::<SlimNode>::all(self.client.clone());
        Ok(read("the node", nodes.get_opt(node)).await?.is_none_or(|node| node.is_out_of_service()))
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

    /// The attachments of a node, of a volume, or all.
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
    answer(request).await.map_err(|failure| ReadError { what, failure })
}
