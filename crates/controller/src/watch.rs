//! Keeps the [`World`] up to date: one watch for each kind of object, pruned by the server where it can.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::label;
use contract::slim::SlimPod;
use futures::{Stream, StreamExt as _};
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt as _};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use service::follow::{self, Selection};
use tokio::sync::oneshot;

use crate::flags::{Flags, Provisioning};
use crate::key::Key;
use crate::observed::{Attachment, MountpointPod, S3Volume, Workload};
use crate::provision::claims::cache::ProvisionCache;
use crate::provision::claims::claim::Claim;
use crate::queues::{Sink, send};
use crate::reserved_room::{HeadroomPod, Mark, Seeker};
use crate::slim::{SlimClaim, SlimNode, SlimVolume};
use crate::world::World;

/// What the watches keep up to date.
#[derive(Clone, Default)]
pub struct Caches {
    pub world: Arc<Mutex<World>>,
    pub claims: ProvisionCache,
}

impl Caches {
    pub fn all_keys(&self) -> Vec<Key> {
        let mut keys = self.world.lock().all_keys();
        keys.extend(self.claims.work());
        keys
    }
}

/// How objects of one kind are kept.
trait Kind {
    type Object: Clone + Debug + Send + 'static;
    const NAME: &'static str;
    /// Returns what the change may concern. An object that is of no interest is not kept.
    fn set(caches: &Caches, object: Self::Object) -> Vec<Key>;
    fn id(object: &Self::Object) -> String;
    fn remove(caches: &Caches, id: &str) -> Vec<Key>;
    fn ids(caches: &Caches) -> Vec<String>;
}

struct Workloads;
impl Kind for Workloads {
    type Object = SlimPod;
    const NAME: &'static str = "workloads";
    fn set(caches: &Caches, pod: SlimPod) -> Vec<Key> {
        Workload::of(&pod).map(|workload| caches.world.lock().set_workload(workload)).unwrap_or_default()
    }
    fn id(pod: &SlimPod) -> String {
        pod.uid().unwrap_or_default()
    }
    fn remove(caches: &Caches, uid: &str) -> Vec<Key> {
        caches.world.lock().remove_workload(uid)
    }
    fn ids(caches: &Caches) -> Vec<String> {
        caches.world.lock().workloads.keys().cloned().collect()
    }
}

struct Volumes;
impl Kind for Volumes {
    type Object = SlimVolume;
    const NAME: &'static str = "volumes";
    fn set(caches: &Caches, volume: SlimVolume) -> Vec<Key> {
        let mut keys: Vec<Key> = caches.claims.set_volume(&volume).into_iter().collect();
        keys.extend(
            S3Volume::of(&volume).map(|volume| caches.world.lock().set_volume(volume)).unwrap_or_default(),
        );
        keys
    }
    fn id(volume: &SlimVolume) -> String {
        volume.name_any()
    }
    fn remove(caches: &Caches, name: &str) -> Vec<Key> {
        caches.claims.remove_volume(name);
        caches.world.lock().remove_volume(name)
    }
    fn ids(caches: &Caches) -> Vec<String> {
        caches.world.lock().volumes.keys().cloned().collect()
    }
}

struct Claims;
impl Kind for Claims {
    type Object = SlimClaim;
    const NAME: &'static str = "claims";
    fn set(caches: &Caches, claim: SlimClaim) -> Vec<Key> {
        match Claim::of(&claim) {
            Some(claim) => caches.claims.set_claim(claim).into_iter().collect(),
            // It was ours, perhaps.
            None => Self::remove(caches, &Self::id(&claim)),
        }
    }
    fn id(claim: &SlimClaim) -> String {
        format!("{}/{}", claim.namespace().unwrap_or_default(), claim.name_any())
    }
    fn remove(caches: &Caches, id: &str) -> Vec<Key> {
        if let Some((namespace, name)) = id.split_once('/') {
            caches.claims.remove_claim(namespace, name);
        }
        Vec::new()
    }
    fn ids(caches: &Caches) -> Vec<String> {
        caches.claims.claims().iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect()
    }
}

struct Attachments;
impl Kind for Attachments {
    /// Guarded: one malformed object must not stop the list of all others.
    type Object = DeserializeGuard<MountpointS3PodAttachment>;
    const NAME: &'static str = "attachments";
    fn set(caches: &Caches, object: Self::Object) -> Vec<Key> {
        match object.0 {
            Ok(object) => Attachment::of(object)
                .map(|attachment| caches.world.lock().set_attachment(attachment))
                .unwrap_or_default(),
            Err(error) => {
                tracing::warn!(attachment = error.metadata.name, %error, "attachment ignored");
                Vec::new()
            }
        }
    }
    fn id(object: &Self::Object) -> String {
        object.name_any()
    }
    fn remove(caches: &Caches, name: &str) -> Vec<Key> {
        caches.world.lock().remove_attachment(name)
    }
    fn ids(caches: &Caches) -> Vec<String> {
        caches.world.lock().attachments.keys().cloned().collect()
    }
}

struct MountpointPods;
impl Kind for MountpointPods {
    type Object = SlimPod;
    const NAME: &'static str = "mountpoint_pods";
    fn set(caches: &Caches, pod: SlimPod) -> Vec<Key> {
        if let Some(pod) = HeadroomPod::of(&pod) {
            return caches.world.lock().set_headroom_pod(pod);
        }
        MountpointPod::of(&pod).map(|pod| caches.world.lock().set_pod(pod)).unwrap_or_default()
    }
    fn id(pod: &SlimPod) -> String {
        pod.name_any()
    }
    fn remove(caches: &Caches, name: &str) -> Vec<Key> {
        caches.world.lock().remove_pod(name)
    }
    fn ids(caches: &Caches) -> Vec<String> {
        let world = caches.world.lock();
        world.pods.keys().chain(world.room.pod_names()).cloned().collect()
    }
}

/// Pods that ask for room, as long as they are not scheduled; or those for which room was reserved, until the label is removed,
/// finished ones, too.
struct Seekers<const GATED: bool>;
impl<const GATED: bool> Seekers<GATED> {
    const MARK: Mark = if GATED { Mark::Gate } else { Mark::Label };
}
impl<const GATED: bool> Kind for Seekers<GATED> {
    type Object = SlimPod;
    const NAME: &'static str = if GATED { "gated_workloads" } else { "labelled_workloads" };
    fn set(caches: &Caches, pod: SlimPod) -> Vec<Key> {
        match Seeker::of(&pod) {
            Some(seeker) => caches.world.lock().set_marked(Self::MARK, seeker),
            None => Self::remove(caches, &Self::id(&pod)),
        }
    }
    fn id(pod: &SlimPod) -> String {
        pod.uid().unwrap_or_default()
    }
    fn remove(caches: &Caches, uid: &str) -> Vec<Key> {
        caches.world.lock().remove_marked(Self::MARK, uid)
    }
    fn ids(caches: &Caches) -> Vec<String> {
        caches.world.lock().room.marked(Self::MARK).keys().cloned().collect()
    }
}

struct Nodes;
impl Kind for Nodes {
    type Object = SlimNode;
    const NAME: &'static str = "nodes";
    fn set(caches: &Caches, node: Self::Object) -> Vec<Key> {
        let mut world = caches.world.lock();
        // It tolerates every taint, so the cluster does not delete a Mountpoint Pod there.
        if node.is_out_of_service() {
            return world.remove_node(&node.name_any());
        }
        let mut keys = world.set_node(node.name_any());
        let uid = node.metadata.uid.as_deref();
        keys.extend(world.set_open(&node.name_any(), uid.filter(|_| node.takes_warm_pods())));
        keys
    }
    fn id(node: &Self::Object) -> String {
        node.name_any()
    }
    fn remove(caches: &Caches, name: &str) -> Vec<Key> {
        caches.world.lock().remove_node(name)
    }
    fn ids(caches: &Caches) -> Vec<String> {
        caches.world.lock().nodes.iter().cloned().collect()
    }
}

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
    if flags.reserves_room() {
        // No selector knows gates. A pod without a node is rarely there for long, unless it is gated.
        let unscheduled =
            Selection::of_fields(format!("spec.nodeName=,metadata.namespace!={mountpoint_namespace}"));
        filled.push(follow::<Seekers<true>>(Api::all(client.clone()), unscheduled, caches, sink));
        let labelled = Some(label::HEADROOM_FOR_WORKLOAD.to_owned());
        let labelled = Selection { fields: None, labels: labelled };
        filled.push(follow::<Seekers<false>>(Api::all(client.clone()), labelled, caches, sink));
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
    // The back-off keeps a missing right or a missing definition from becoming a storm of requests.
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
                K::set(&caches, object)
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
