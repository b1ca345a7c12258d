//! Caches of this node's attachments and Mountpoint Pods, kept current by watches.

use std::sync::Arc;

use contract::attachment::{AttachmentSpec, MountpointS3PodAttachment};
use contract::mountpoint_pod::{MountpointPod, StartFailure};
use contract::slim::SlimPod;
use futures::{Stream, StreamExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Client};
use mounter::deadlines::API_ANSWER;
use service::follow::{self, Selection};
use tokio::sync::{OnceCell, watch};

#[derive(Clone)]
pub struct NodeCache {
    node: String,
    namespace: String,
    client: Client,
    attachments: Store<MountpointS3PodAttachment>,
    pods: Store<SlimPod>,
    version: Arc<OnceCell<String>>,
    synced: watch::Receiver<bool>,
    changes: watch::Receiver<u64>,
}

impl NodeCache {
    /// Starts the watches without waiting for the API server, which an unpublish does not need.
    pub fn start(client: &Client, node: &str, namespace: &str) -> Self {
        let (counter, changes) = watch::channel(0);
        let counter = Arc::new(counter);
        // Only this node's objects: every node watching everything would overload the API server.
        let here = format!("spec.nodeName={node}");
        let (attachments, writer) = reflector::store();
        let api = Api::<MountpointS3PodAttachment>::all(client.clone());
        let stream = follow::follow(api, Selection::of_fields(here.clone()));
        tokio::spawn(drive(stream.default_backoff().reflect(writer), Arc::clone(&counter)));
        let (pods, writer) = reflector::store();
        let stream =
            follow::follow(Api::<SlimPod>::namespaced(client.clone(), namespace), Selection::of_fields(here));
        tokio::spawn(drive(stream.default_backoff().reflect(writer), counter));
        // Waited for in one place, because a store wakes only the last of its waiters.
        let (done, synced) = watch::channel(false);
        let (all_attachments, all_pods) = (attachments.clone(), pods.clone());
        tokio::spawn(async move {
            let _ = all_attachments.wait_until_ready().await;
            let _ = all_pods.wait_until_ready().await;
            let _ = done.send(true);
        });
        let (node, namespace, client) = (node.to_owned(), namespace.to_owned(), client.clone());
        Self { node, namespace, client, attachments, pods, version: Arc::default(), synced, changes }
    }

    /// Waits for the first complete list. Before that, the caches are empty, as on a node without workloads.
    pub async fn wait_until_synced(&self) {
        let _ = self.synced.clone().wait_for(|synced| *synced).await;
    }

    /// Version of the API server, `unknown` if it does not answer in time.
    pub async fn cluster_version(&self) -> String {
        let ask = async || self.client.apiserver_version().await.map(|info| info.git_version);
        let answer = tokio::time::timeout(API_ANSWER, self.version.get_or_try_init(ask)).await;
        answer.ok().and_then(Result::ok).cloned().unwrap_or_else(|| "unknown".to_owned())
    }

    /// Changes whenever either cache does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// Name of the Mountpoint Pod that the workload is assigned to.
    pub fn assignment(&self, volume_name: &str, volume_id: &str, pod_uid: &str) -> Option<String> {
        let attachment = self.attachment(volume_name, volume_id, pod_uid)?;
        attachment.spec.mountpoint_pod_of(pod_uid).map(str::to_owned)
    }

    /// Role of the workload's service account, as the controller read it; empty if it has none.
    pub fn role_arn(&self, volume_name: &str, volume_id: &str, pod_uid: &str) -> String {
        let attachment = self.attachment(volume_name, volume_id, pod_uid);
        attachment.map(|it| it.spec.workload_service_account_iam_role_arn.clone()).unwrap_or_default()
    }

    fn attachment(
        &self,
        volume_name: &str,
        volume_id: &str,
        pod_uid: &str,
    ) -> Option<Arc<MountpointS3PodAttachment>> {
        self.attachments.state().into_iter().find(|attachment| {
            let AttachmentSpec { persistent_volume_name, volume_id: id, .. } = &attachment.spec;
            let is_same_volume = persistent_volume_name == volume_name && id == volume_id;
            is_same_volume && attachment.spec.mountpoint_pod_of(pod_uid).is_some()
        })
    }

    pub fn attachment_naming(&self, mountpoint_pod: &str) -> Option<Arc<MountpointS3PodAttachment>> {
        let all = self.attachments.state().into_iter();
        all.into_iter().find(|attachment| attachment.spec.mountpoint_pods.contains_key(mountpoint_pod))
    }

    /// Whether any attachment lists this workload.
    pub fn is_attached(&self, pod_uid: &str) -> bool {
        self.attachments
            .state()
            .iter()
            .any(|attachment| attachment.spec.workload_uids().any(|uid| uid == pod_uid))
    }

    /// Whether there is a pod of this name in the Mountpoint Pods' namespace, with the driver's labels or without.
    pub fn pod_exists(&self, name: &str) -> bool {
        self.slim_pod(name).is_some()
    }

    /// `None` also for a pod without the driver's labels.
    pub fn pod(&self, name: &str) -> Option<MountpointPod> {
        MountpointPod::of(&*self.slim_pod(name)?)
    }

    pub fn slim_pod(&self, name: &str) -> Option<Arc<SlimPod>> {
        self.pods.get(&ObjectRef::new(name).within(&self.namespace))
    }

    /// Why a Mountpoint Pod that is not in the cache cannot start. Until it is scheduled, it is on no node and not watched.
    pub async fn unscheduled_failure(&self, name: &str) -> Option<StartFailure> {
        let pods = Api::<SlimPod>::namespaced(self.client.clone(), &self.namespace);
        match tokio::time::timeout(API_ANSWER, pods.get_opt(name)).await.ok()? {
            Ok(pod) => StartFailure::of(&pod?.status),
            Err(error) => {
                tracing::debug!(%error, mountpoint_pod = name, "cannot read the Mountpoint Pod");
                None
            }
        }
    }

    pub fn pods(&self) -> Vec<MountpointPod> {
        self.pods.state().iter().filter_map(|pod| MountpointPod::of(pod)).collect()
    }

    pub fn node(&self) -> &str {
        &self.node
    }
}

/// Feeds a store and counts its changes.
async fn drive<K>(
    stream: impl Stream<Item = watcher::Result<watcher::Event<K>>>,
    counter: Arc<watch::Sender<u64>>,
) {
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Ok(_) => counter.send_modify(|count| *count += 1),
            Err(error) => tracing::warn!(%error, "watch interrupted, reconnecting"),
        }
    }
}
