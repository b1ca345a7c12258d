//! Keeps the [`World`] up to date: one watch for each kind of object, pruned by the server where it can.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use contract::attachment::MountpointS3PodAttachment;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Node;
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use service::follow;
use tokio::sync::{mpsc, oneshot};

use crate::flags::{Flags, Provisioning};
use crate::observed::{Attachment, MountpointPod, S3Volume, Workload};
use crate::provision::claim::Claim;
use crate::slim::{SlimClaim, SlimPod, SlimVolume};
use crate::world::{Key, World};

/// Where keys go: to the dispatchers of a leader, nowhere while another controller leads.
pub type Sink = Arc<Mutex<Option<Queues>>>;

/// Two of them: an S3 server that does not answer must not keep mounts waiting, which need no such server.
#[derive(Debug)]
pub struct Queues {
    pub mounts: mpsc::UnboundedSender<Key>,
    pub provisioning: mpsc::UnboundedSender<Key>,
}

pub fn send(sink: &Sink, keys: Vec<Key>) {
    if let Some(queues) = sink.lock().expect("nobody panics while sending").as_ref() {
        for key in keys {
            let queue = if key.is_of_provisioning() { &queues.provisioning } else { &queues.mounts };
            // A dispatcher that has just ended needs no keys.
            let _ = queue.send(key);
        }
    }
}

/// How objects of one kind are kept.
trait Kind {
    type Object: Clone + Debug + Send + 'static;
    const NAME: &'static str;
    /// Nothing for an object that is of no interest.
    fn set(world: &mut World, object: Self::Object) -> Vec<Key>;
    fn id(object: &Self::Object) -> String;
    fn remove(world: &mut World, id: &str) -> Vec<Key>;
    fn ids(world: &World) -> Vec<String>;
}

struct Workloads;
impl Kind for Workloads {
    type Object = SlimPod;
    const NAME: &'static str = "workloads";
    fn set(world: &mut World, pod: SlimPod) -> Vec<Key> {
        Workload::of(&pod).map(|workload| world.set_workload(workload)).unwrap_or_default()
    }
    fn id(pod: &SlimPod) -> String {
        pod.uid().unwrap_or_default()
    }
    fn remove(world: &mut World, uid: &str) -> Vec<Key> {
        world.remove_workload(uid)
    }
    fn ids(world: &World) -> Vec<String> {
        world.workloads.keys().cloned().collect()
    }
}

struct Volumes;
impl Kind for Volumes {
    type Object = SlimVolume;
    const NAME: &'static str = "volumes";
    fn set(world: &mut World, volume: SlimVolume) -> Vec<Key> {
        let mut keys = world.provision.set_volume(&volume);
        keys.extend(S3Volume::of(&volume).map(|volume| world.set_volume(volume)).unwrap_or_default());
        keys
    }
    fn id(volume: &SlimVolume) -> String {
        volume.name_any()
    }
    fn remove(world: &mut World, name: &str) -> Vec<Key> {
        world.provision.remove_volume(name);
        world.remove_volume(name)
    }
    fn ids(world: &World) -> Vec<String> {
        world.volumes.keys().cloned().collect()
    }
}

struct Claims;
impl Kind for Claims {
    type Object = SlimClaim;
    const NAME: &'static str = "claims";
    fn set(world: &mut World, claim: SlimClaim) -> Vec<Key> {
        match Claim::of(&claim) {
            Some(claim) => world.provision.set_claim(claim),
            // It was ours, perhaps.
            None => Self::remove(world, &Self::id(&claim)),
        }
    }
    fn id(claim: &SlimClaim) -> String {
        format!("{}/{}", claim.namespace().unwrap_or_default(), claim.name_any())
    }
    fn remove(world: &mut World, id: &str) -> Vec<Key> {
        if let Some((namespace, name)) = id.split_once('/') {
            world.provision.remove_claim(namespace, name);
        }
        Vec::new()
    }
    fn ids(world: &World) -> Vec<String> {
        world.provision.claims().map(|(namespace, name)| format!("{namespace}/{name}")).collect()
    }
}

struct Attachments;
impl Kind for Attachments {
    /// Guarded: one object that somebody wrote wrongly must not stop the list of all others.
    type Object = DeserializeGuard<MountpointS3PodAttachment>;
    const NAME: &'static str = "attachments";
    fn set(world: &mut World, object: Self::Object) -> Vec<Key> {
        match object.0 {
            Ok(object) => {
                Attachment::of(object).map(|attachment| world.set_attachment(attachment)).unwrap_or_default()
            }
            Err(error) => {
                tracing::warn!(attachment = error.metadata.name, %error, "attachment ignored");
                Vec::new()
            }
        }
    }
    fn id(object: &Self::Object) -> String {
        object.name_any()
    }
    fn remove(world: &mut World, name: &str) -> Vec<Key> {
        world.remove_attachment(name)
    }
    fn ids(world: &World) -> Vec<String> {
        world.attachments.keys().cloned().collect()
    }
}

struct MountpointPods;
impl Kind for MountpointPods {
    type Object = SlimPod;
    const NAME: &'static str = "mountpoint_pods";
    fn set(world: &mut World, pod: SlimPod) -> Vec<Key> {
        MountpointPod::of(&pod).map(|pod| world.set_pod(pod)).unwrap_or_default()
    }
    fn id(pod: &SlimPod) -> String {
        pod.name_any()
    }
    fn remove(world: &mut World, name: &str) -> Vec<Key> {
        world.remove_pod(name)
    }
    fn ids(world: &World) -> Vec<String> {
        world.pods.keys().cloned().collect()
    }
}

struct Nodes;
impl Kind for Nodes {
    type Object = PartialObjectMeta<Node>;
    const NAME: &'static str = "nodes";
    fn set(world: &mut World, node: Self::Object) -> Vec<Key> {
        world.set_node(node.name_any())
    }
    fn id(node: &Self::Object) -> String {
        node.name_any()
    }
    fn remove(world: &mut World, name: &str) -> Vec<Key> {
        world.remove_node(name)
    }
    fn ids(world: &World) -> Vec<String> {
        world.nodes.iter().cloned().collect()
    }
}

/// Starts every watch. Completes when each has told everything there is: before that, an empty cache would look as if
/// all workloads were gone.
pub async fn start(client: &Client, flags: &Flags, world: &Arc<Mutex<World>>, sink: &Sink) {
    let mountpoint_namespace = &flags.mountpoint_namespace;
    // Scheduled, outside the Mountpoint namespace, and not finished: what leaves the selection arrives as deleted.
    let workloads = format!(
        "spec.nodeName!=,metadata.namespace!={mountpoint_namespace},status.phase!=Succeeded,status.phase!=Failed"
    );
    let mut filled = vec![
        follow::<Workloads>(Api::all(client.clone()), Some(workloads), world, sink),
        follow::<Volumes>(Api::all(client.clone()), None, world, sink),
        follow::<Attachments>(Api::all(client.clone()), None, world, sink),
        follow::<MountpointPods>(Api::namespaced(client.clone(), mountpoint_namespace), None, world, sink),
        follow::<Nodes>(Api::all(client.clone()), None, world, sink),
    ];
    if flags.provisioning == Provisioning::On {
        filled.push(follow::<Claims>(Api::all(client.clone()), None, world, sink));
    }
    futures::future::join_all(filled).await;
}

fn follow<K: Kind + 'static>(
    api: Api<K::Object>,
    fields: Option<String>,
    world: &Arc<Mutex<World>>,
    sink: &Sink,
) -> oneshot::Receiver<()>
where
    K::Object: Resource + DeserializeOwned,
{
    let (filled, is_filled) = oneshot::channel();
    // The back-off keeps a missing right or a missing definition from becoming a storm of requests.
    let events = follow::follow(api, fields).default_backoff();
    tokio::spawn(absorb::<K>(events, Arc::clone(world), Arc::clone(sink), filled));
    is_filled
}

async fn absorb<K: Kind>(
    events: impl Stream<Item = watcher::Result<Event<K::Object>>>,
    world: Arc<Mutex<World>>,
    sink: Sink,
    filled: oneshot::Sender<()>,
) {
    let mut filled = Some(filled);
    let mut listed = HashSet::new();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                tracing::warn!(kind = K::NAME, %error, "watch interrupted");
                world.lock().expect("nobody panics while changing the world").doubt();
                continue;
            }
        };
        let keys = {
            let mut world = world.lock().expect("nobody panics while changing the world");
            match event {
                Event::Apply(object) => K::set(&mut world, object),
                Event::Delete(object) => K::remove(&mut world, &K::id(&object)),
                Event::Init => {
                    // The list may be older than our own last writes.
                    world.doubt();
                    listed.clear();
                    Vec::new()
                }
                Event::InitApply(object) => {
                    listed.insert(K::id(&object));
                    K::set(&mut world, object)
                }
                // What was known and is not in the new list went while nobody watched.
                Event::InitDone => {
                    let missing: Vec<String> =
                        K::ids(&world).into_iter().filter(|id| !listed.contains(id)).collect();
                    listed = HashSet::new();
                    if let Some(filled) = filled.take() {
                        let _ = filled.send(());
                    }
                    missing.iter().flat_map(|id| K::remove(&mut world, id)).collect()
                }
            }
        };
        send(&sink, keys);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_s3_has_a_queue_of_its_own() {
        let ((mounts, mut to_mount), (provisioning, mut to_provision)) =
            (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let sink: Sink = Arc::new(Mutex::new(Some(Queues { mounts, provisioning })));
        let name = || "a".to_owned();
        let (claim, volume) = (Key::Claim(name(), name()), Key::Volume(name()));
        send(&sink, vec![claim.clone(), Key::Group(name()), volume.clone(), Key::Pod(name())]);
        let all = |queue: &mut mpsc::UnboundedReceiver<Key>| {
            std::iter::from_fn(|| queue.try_recv().ok()).collect::<Vec<_>>()
        };
        assert_eq!(all(&mut to_mount), [Key::Group(name()), Key::Pod(name())]);
        assert_eq!(all(&mut to_provision), [claim, volume]);
    }
}
