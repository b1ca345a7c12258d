//! Keeps the [`World`](crate::world::World) up to date: one watch for each kind of object, pruned by the server where it can.

mod kinds;

use std::collections::HashSet;
use std::sync::Arc;

use contract::names::label;
use futures::{Stream, StreamExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use service::follow::{self, Selection};
use tokio::sync::oneshot;

use crate::flags::{Flags, Provisioning};
use crate::queues::{Sink, send};
pub use kinds::Caches;
use kinds::{
    Attachments, Claims, CrowdedOut, Kind, MarkedWorkloads, MountpointPods, Nodes, Volumes, Workloads,
};

/// Starts every watch. Completes when each has listed everything there is: before that, an empty cache would look as if
/// all workloads were gone.
pub async fn start(client: &Client, flags: &Flags, caches: &Caches, sink: &Sink) {
    let mountpoint_namespace = &flags.mountpoint_namespace;
    // Scheduled, outside the Mountpoint namespace, and not finished: what leaves the selection arrives as deleted.
    let workloads = format!(
        "spec.nodeName!=,metadata.namespace!={mountpoint_namespace},status.phase!=Succeeded,status.phase!=Failed"
    );
    let mut filled = vec![
        follow::<Workloads>(Api::all(client.clone()), Selection::of_fields(workloads), caches, sink),
        follow::<Volumes>(Api::all(client.clone()), Selection::default(), caches, sink),
        follow::<Attachments>(Api::all(client.clone()), Selection::default(), caches, sink),
        follow::<MountpointPods>(
            Api::namespaced(client.clone(), mountpoint_namespace),
            Selection::default(),
            caches,
            sink,
        ),
        follow::<Nodes>(Api::all(client.clone()), Selection::default(), caches, sink),
    ];
    if flags.provisioning == Provisioning::On {
        filled.push(follow::<Claims>(Api::all(client.clone()), Selection::default(), caches, sink));
    }
    let unscheduled =
        || Selection::of_fields(format!("spec.nodeName=,metadata.namespace!={mountpoint_namespace}"));
    if !caches.world.lock().warm.is_off() {
        filled.push(follow::<CrowdedOut>(Api::all(client.clone()), unscheduled(), caches, sink));
    }
    if flags.reserves_headroom() {
        // No selector knows gates. A pod without a node is rarely there for long, unless it is gated.
        filled.push(follow::<MarkedWorkloads<true>>(Api::all(client.clone()), unscheduled(), caches, sink));
        let labelled = Some(label::HEADROOM_FOR_WORKLOAD.to_owned());
        let labelled = Selection { fields: None, labels: labelled };
        filled.push(follow::<MarkedWorkloads<false>>(Api::all(client.clone()), labelled, caches, sink));
    }
    futures::future::join_all(filled).await;
}

fn follow<K: Kind + 'static>(
    api: Api<K::Object>,
    selection: Selection,
    caches: &Caches,
    sink: &Sink,
) -> oneshot::Receiver<()>
where
    K::Object: Resource + DeserializeOwned,
{
    let (filled, is_filled) = oneshot::channel();
    // The backoff keeps a missing right or a missing definition from becoming a storm of requests.
    let events = follow::follow(api, selection).default_backoff();
    tokio::spawn(absorb::<K>(events, caches.clone(), Arc::clone(sink), filled));
    is_filled
}

async fn absorb<K: Kind>(
    events: impl Stream<Item = watcher::Result<Event<K::Object>>>,
    caches: Caches,
    sink: Sink,
    filled: oneshot::Sender<()>,
) {
    let mut filled = Some(filled);
    let mut listed = HashSet::new();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        let keys = match event {
            Err(error) => {
                tracing::warn!(kind = K::NAME, %error, "watch interrupted");
                caches.world.lock().mark_stale();
                continue;
            }
            Ok(Event::Apply(object)) => K::set(&caches, object),
            Ok(Event::Delete(object)) => K::remove(&caches, &K::id(&object)),
            Ok(Event::Init) => {
                // The list may be older than our own last writes.
                caches.world.lock().mark_stale();
                listed.clear();
                Vec::new()
            }
            Ok(Event::InitApply(object)) => {
                listed.insert(K::id(&object));
                K::list(&caches, object)
            }
            // What was known and is not in the new list was deleted while the watch was interrupted.
            Ok(Event::InitDone) => {
                let missing: Vec<String> =
                    K::ids(&caches).into_iter().filter(|id| !listed.contains(id)).collect();
                listed = HashSet::new();
                if let Some(filled) = filled.take() {
                    let _ = filled.send(());
                }
                missing.iter().flat_map(|id| K::remove(&caches, id)).collect()
            }
        };
        send(&sink, keys);
    }
}
