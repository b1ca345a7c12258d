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

/// After the first failed attempt.
const RETRY: Duration = Duration::from_secs(1);
/// After many: what the API server forbids, it forbids until someone changes the permissions.
const LONGEST_RETRY: Duration = Duration::from_mins(1);
/// HTTP status: the kubelet and others write the Node object, too.
const CONFLICT: u16 = 409;
/// HTTP status: the Node was deleted.
const NOT_FOUND: u16 = 404;

/// Removes the taint whenever the node has it and its `CSINode` lists the driver: the kubelet adds it each time that it
/// registers the node.
pub async fn keep_removed(client: Client, node: String) {
    let own = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let nodes = Api::<Node>::all(client.clone());
    let changes = watcher(nodes.clone(), own.clone()).default_backoff().applied_objects();
    let mut changes = std::pin::pin!(changes);
    let mut backoff = Backoff::new(RETRY, LONGEST_RETRY);
    loop {
        let seen = match changes.try_next().await {
            Ok(Some(seen)) if is_tainted(&seen) => seen,
            Ok(Some(_)) => continue,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, node, "cannot watch the Node for the start-up taint");
                continue;
            }
        };
        wait_until_listed(&client, &own).await;
        loop {
            match remove(&nodes, &seen).await {
                Ok(()) => {
                    backoff.record_success(&());
                    tracing::info!(node, taint = NOT_READY_TAINT, "start-up taint removed");
                    break;
                }
                // There is a newer one, or none: the watch has it.
                Err(kube::Error::Api(status)) if matches!(status.code, CONFLICT | NOT_FOUND) => break,
                Err(error) => tracing::warn!(%error, node, "cannot remove the start-up taint, retrying"),
            }
            tokio::time::sleep(backoff.record_failure(&(), Instant::now())).await;
        }
    }
}

async fn wait_until_listed(client: &Client, own: &watcher::Config) {
    let listed =
        watcher(Api::<CSINode>::all(client.clone()), own.clone()).default_backoff().applied_objects();
    let mut listed = std::pin::pin!(listed);
    loop {
        match listed.try_next().await {
            Ok(Some(object)) if object.spec.drivers.iter().any(|driver| driver.name == DRIVER) => return,
            Ok(Some(object)) => {
                tracing::debug!(node = object.name_any(), "CSINode does not list the driver yet");
            }
            Ok(None) => return,
            Err(error) => tracing::warn!(%error, "cannot watch the CSINode"),
        }
    }
}

fn is_tainted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.is_some_and(|taints| taints.iter().any(|taint| taint.key == NOT_READY_TAINT))
}

/// The patch carries the resourceVersion: a merge patch replaces the whole list, and a taint added meanwhile must not get
/// lost.
async fn remove(nodes: &Api<Node>, node: &Node) -> kube::Result<()> {
    let taints = node.spec.iter().filter_map(|spec| spec.taints.as_ref()).flatten();
    let others: Vec<_> = taints.filter(|taint| taint.key != NOT_READY_TAINT).collect();
    let patch = json!({"metadata": {"resourceVersion": node.resource_version()}, "spec": {"taints": others}});
    nodes.patch(&node.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}
