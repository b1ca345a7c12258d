//! What this node knows of the cluster: the attachments of this node and its Mountpoint Pods, kept current by watches.

use std::sync::Arc;
use std::time::Duration;

use contract::attachment::{AttachmentSpec, MountpointS3PodAttachment};
use contract::authentication::AuthenticationSource;
use contract::names::{CACHE_VOLUME, annotation, label};
use contract::quantity::Quantity;
use contract::volume::cache_share;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use service::follow;
use tokio::sync::{OnceCell, watch};

/// An API server that does not answer must not keep a publish longer than it may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

#[derive(Clone)]
pub struct Known {
    node: String,
    namespace: String,
    client: Client,
    attachments: Store<MountpointS3PodAttachment>,
    pods: Store<Pod>,
    version: Arc<OnceCell<String>>,
    complete: watch::Receiver<bool>,
    changes: watch::Receiver<u64>,
}

impl Known {
    /// Starts watching and does not wait for the API server: workloads are unmounted without it.
    pub fn start(client: &Client, node: &str, namespace: &str) -> Self {
        let (told, changes) = watch::channel(0);
        let told = Arc::new(told);
        // Only this node's: a watch of everything on every node would be too much for the API server.
        let here = format!("spec.nodeName={node}");
        let (attachments, writer) = reflector::store();
        let api = Api::<MountpointS3PodAttachment>::all(client.clone());
        let stream = follow::follow(api, Some(here.clone()));
        tokio::spawn(listen(stream.default_backoff().reflect(writer), Arc::clone(&told)));
        let (pods, writer) = reflector::store();
        let stream = follow::follow(Api::<Pod>::namespaced(client.clone(), namespace), Some(here));
        tokio::spawn(listen(stream.default_backoff().reflect(writer), told));
        // Waited for in one place: a store wakes only the last of several that wait for it.
        let (completed, complete) = watch::channel(false);
        let (all_attachments, all_pods) = (attachments.clone(), pods.clone());
        tokio::spawn(async move {
            let _ = all_attachments.wait_until_ready().await;
            let _ = all_pods.wait_until_ready().await;
            let _ = completed.send(true);
        });
        let (node, namespace, client) = (node.to_owned(), namespace.to_owned(), client.clone());
        Self { node, namespace, client, attachments, pods, version: Arc::default(), complete, changes }
    }

    /// Waits until all there is is known. Before, every cache is empty, which looks like a node without workloads.
    pub async fn complete(&self) {
        let _ = self.complete.clone().wait_for(|complete| *complete).await;
    }

    /// Of Kubernetes, asked for until it is known; nothing waits for it long.
    pub async fn cluster_version(&self) -> String {
        let ask = async || self.client.apiserver_version().await.map(|info| info.git_version);
        let answer = tokio::time::timeout(ANSWER_WITHIN, self.version.get_or_try_init(ask)).await;
        answer.ok().and_then(Result::ok).cloned().unwrap_or_else(|| "unknown".to_owned())
    }

    /// Wakes whoever waits for something to become true.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// The Mountpoint Pod that is to serve this workload.
    pub fn assignment(&self, volume_name: &str, volume_id: &str, pod_uid: &str) -> Option<String> {
        self.attachments.state().iter().find_map(|attachment| {
            let AttachmentSpec { persistent_volume_name, volume_id: id, .. } = &attachment.spec;
            let ours = persistent_volume_name == volume_name && id == volume_id;
            attachment.spec.mountpoint_pod_of(pod_uid).filter(|_| ours).map(str::to_owned)
        })
    }

    /// Whether any attachment names this workload.
    pub fn is_attached(&self, pod_uid: &str) -> bool {
        self.attachments
            .state()
            .iter()
            .any(|attachment| attachment.spec.workload_uids().any(|uid| uid == pod_uid))
    }

    pub fn pod(&self, name: &str) -> Option<MountpointPod> {
        let pod = self.pods.get(&ObjectRef::new(name).within(&self.namespace))?;
        Some(MountpointPod::from(&*pod))
    }

    /// Why a pod that has not come to this node does not: until it is scheduled, it is on no node, and not watched.
    pub async fn trouble_elsewhere(&self, name: &str) -> Option<String> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        match tokio::time::timeout(ANSWER_WITHIN, pods.get_opt(name)).await.ok()? {
            Ok(pod) => MountpointPod::from(&pod?).trouble,
            Err(error) => {
                tracing::debug!(%error, mountpoint_pod = name, "cannot read the Mountpoint Pod");
                None
            }
        }
    }

    pub fn pods(&self) -> Vec<MountpointPod> {
        self.pods.state().iter().map(|pod| MountpointPod::from(&**pod)).collect()
    }

    pub fn node(&self) -> &str {
        &self.node
    }
}

async fn listen<K>(
    stream: impl Stream<Item = watcher::Result<watcher::Event<K>>>,
    changed: Arc<watch::Sender<u64>>,
) {
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Ok(_) => changed.send_modify(|count| *count += 1),
            Err(error) => tracing::warn!(%error, "watch interrupted"),
        }
    }
}

/// What matters of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountpointPod {
    pub name: String,
    pub uid: String,
    pub node: Option<String>,
    pub volume_name: Option<String>,
    /// Whose credentials its volume asks for, as the controller read it there.
    pub authentication: Option<AuthenticationSource>,
    pub ours: bool,
    pub needs_unmount: bool,
    pub ended: bool,
    /// How many MiB its cache on disk may use; kubelet evicts a pod that uses more than its limit.
    pub cache_mebibytes: Option<u128>,
    /// Why it does not run, in kubelet's or the scheduler's words.
    pub trouble: Option<String>,
}

impl From<&Pod> for MountpointPod {
    fn from(pod: &Pod) -> Self {
        let annotations = pod.annotations();
        let status = pod.status.clone().unwrap_or_default();
        let phase = status.phase.as_deref().unwrap_or_default();
        Self {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            volume_name: annotations.get(annotation::VOLUME_NAME).cloned(),
            authentication: annotations
                .get(annotation::AUTHENTICATION_SOURCE)
                .and_then(|source| AuthenticationSource::parse(source)),
            ours: pod.labels().contains_key(label::DRIVER_VERSION),
            needs_unmount: annotations.get(annotation::NEEDS_UNMOUNT).is_some_and(|value| value == "true"),
            ended: phase == "Succeeded" || phase == "Failed",
            cache_mebibytes: cache_mebibytes(pod),
            trouble: trouble(&status),
        }
    }
}

fn cache_mebibytes(pod: &Pod) -> Option<u128> {
    let volumes = pod.spec.as_ref()?.volumes.as_ref()?;
    let cache = volumes.iter().find(|volume| volume.name == CACHE_VOLUME)?.empty_dir.as_ref()?;
    // One in memory cannot grow beyond its limit.
    let limit = cache.size_limit.as_ref().filter(|_| cache.medium.as_deref() != Some("Memory"))?;
    Some(cache_share(&Quantity::parse(&limit.0)?))
}

/// Waiting for something that will not come by itself.
fn trouble(status: &k8s_openapi::api::core::v1::PodStatus) -> Option<String> {
    const HARMLESS: &[&str] = &["ContainerCreating", "PodInitializing"];
    let told = |reason: Option<String>, message: Option<String>| {
        [reason, message].into_iter().flatten().collect::<Vec<_>>().join(": ")
    };
    if status.phase.as_deref() == Some("Failed") {
        return Some(told(status.reason.clone(), status.message.clone()));
    }
    let waiting = status.container_statuses.iter().flatten().find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.clone()?;
        let reason = waiting.reason.clone().unwrap_or_default();
        if HARMLESS.contains(&reason.as_str()) {
            return None;
        }
        let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref()?.message.clone());
        Some(told(waiting.reason, last.or(waiting.message)))
    });
    waiting.or_else(|| {
        let conditions = status.conditions.iter().flatten();
        let scheduled = conditions.clone().find(|condition| condition.type_ == "PodScheduled")?;
        (scheduled.status == "False").then(|| told(scheduled.reason.clone(), scheduled.message.clone()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(status: &Value) -> MountpointPod {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": "mp-1", "uid": "u", "labels": {"s3.csi.scality.com/mounted-by-csi-driver-version": "1"},
                "annotations": {
                    "s3.csi.scality.com/volume-name": "pv", "s3.csi.scality.com/needs-unmount": "true",
                    "s3.csi.scality.com/authentication-source": "secret",
                },
            },
            "spec": {
                "nodeName": "n", "containers": [],
                "volumes": [{"name": "local-cache", "emptyDir": {"sizeLimit": "1Gi"}}],
            },
            "status": status,
        }))
        .unwrap();
        MountpointPod::from(&pod)
    }

    #[test]
    fn what_matters_is_read() {
        let pod = pod(&json!({"phase": "Running"}));
        assert_eq!((pod.node.as_deref(), pod.volume_name.as_deref()), (Some("n"), Some("pv")));
        assert_eq!(pod.authentication, Some(AuthenticationSource::Secret));
        assert!(pod.ours && pod.needs_unmount && !pod.ended);
        assert_eq!((pod.trouble, pod.cache_mebibytes), (None, Some(972)));
    }

    #[test]
    fn a_pod_that_cannot_start_is_quoted() {
        let waiting = |reason: &str| {
            let state = json!({"waiting": {"reason": reason, "message": "because"}});
            let container = json!({"name": "m", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
            pod(&json!({"phase": "Pending", "containerStatuses": [container]})).trouble
        };
        assert_eq!(waiting("ImagePullBackOff").as_deref(), Some("ImagePullBackOff: because"));
        assert_eq!(waiting("ContainerCreating"), None);
        let condition =
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"});
        assert_eq!(
            pod(&json!({"phase": "Pending", "conditions": [condition]})).trouble.as_deref(),
            Some("Unschedulable: full")
        );
    }
}
