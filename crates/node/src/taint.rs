//! The start-up taint keeps workloads off a node until the kubelet has registered the driver there.

use std::time::{Duration, Instant};

use contract::names::{DRIVER, NOT_READY_TAINT};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use service::backoff::Backoff;

/// After the first failed attempt: the kubelet and others write the Node object, too, so conflicts are normal.
const RETRY: Duration = Duration::from_secs(1);
/// After many: what the API server forbids, it forbids until someone changes the permissions.
const LONGEST_RETRY: Duration = Duration::from_mins(1);

/// Waits until the node's `CSINode` lists the driver, then removes the taint, if there is one.
pub async fn remove_when_registered(client: Client, node: String) {
    let own = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let registered = watcher(Api::<CSINode>::all(client.clone()), own).default_backoff().applied_objects();
    let mut registered = std::pin::pin!(registered);
    loop {
        match registered.try_next().await {
            Ok(Some(object)) if object.spec.drivers.iter().any(|driver| driver.name == DRIVER) => break,
            Ok(Some(_)) => tracing::debug!(node, "CSINode does not list the driver yet"),
            Ok(None) => return,
            Err(error) => tracing::debug!(%error, "cannot watch the CSINode"),
        }
    }
    let (nodes, mut backoff) = (Api::<Node>::all(client), Backoff::new(RETRY, LONGEST_RETRY));
    loop {
        match remove(&nodes, &node).await {
            Ok(true) => return tracing::info!(node, taint = NOT_READY_TAINT, "start-up taint removed"),
            Ok(false) => return,
            Err(error) => tracing::warn!(%error, node, "cannot remove the start-up taint, retrying"),
        }
        tokio::time::sleep(backoff.record_failure(&(), Instant::now())).await;
    }
}

/// Returns whether there was one. The patch carries the resourceVersion: a merge patch replaces the whole list, and a
/// taint added meanwhile must not get lost.
async fn remove(nodes: &Api<Node>, name: &str) -> kube::Result<bool> {
    let node = nodes.get(name).await?;
    let version = node.resource_version();
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let others: Vec<_> = taints.iter().filter(|taint| taint.key != NOT_READY_TAINT).collect();
    if others.len() == taints.len() {
        return Ok(false);
    }
    let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": others}});
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(true)
}
