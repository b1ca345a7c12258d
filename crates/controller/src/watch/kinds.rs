//! How objects of each kind are kept.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use contract::attachment::MountpointS3PodAttachment;
use contract::slim::SlimPod;
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::core::DeserializeGuard;
use parking_lot::Mutex;

use crate::headroom::{GatedWorkload, HeadroomPod, Mark};
use crate::key::Key;
use crate::observed::{Attachment, MountpointPod, S3Volume, Workload};
use crate::provision::claims::cache::ProvisionCache;
use crate::provision::claims::claim::Claim;
use crate::room::{lacked_by, only_on};
use crate::slim::{SlimClaim, SlimNode, SlimVolume};
use crate::warm::has_had_room;
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
pub(super) trait Kind {
    type Object: Clone + Debug + Send + 'static;
    const NAME: &'static str;
    /// Returns what the change may concern. An object that is of no interest is not kept.
    fn set(caches: &Caches, object: Self::Object) -> Vec<Key>;
    /// The same for one that was there before the watch began.
    fn list(caches: &Caches, object: Self::Object) -> Vec<Key> {
        Self::set(caches, object)
    }
    fn id(object: &Self::Object) -> String;
    fn remove(caches: &Caches, id: &str) -> Vec<Key>;
    fn ids(caches: &Caches) -> Vec<String>;
}

pub(super) struct Workloads;
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

pub(super) struct Volumes;
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

pub(super) struct Claims;
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

pub(super) struct Attachments;
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

pub(super) struct MountpointPods;
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
        world.pods.keys().chain(world.headroom.pod_names()).cloned().collect()
    }
}

/// Pods that ask for headroom, as long as they are not scheduled; or those for which it was reserved, until the label is
/// removed, finished ones, too.
pub(super) struct MarkedWorkloads<const GATED: bool>;
impl<const GATED: bool> MarkedWorkloads<GATED> {
    const MARK: Mark = if GATED { Mark::Gate } else { Mark::Label };
}
impl<const GATED: bool> Kind for MarkedWorkloads<GATED> {
    type Object = SlimPod;
    const NAME: &'static str = if GATED { "gated_workloads" } else { "labelled_workloads" };
    fn set(caches: &Caches, pod: SlimPod) -> Vec<Key> {
        match GatedWorkload::of(&pod) {
            Some(gated) => caches.world.lock().set_marked(Self::MARK, gated),
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
        caches.world.lock().headroom.marked(Self::MARK).keys().cloned().collect()
    }
}

/// Pods that the scheduler finds no room for: warm Mountpoint Pods make room for them.
pub(super) struct CrowdedOut;
impl Kind for CrowdedOut {
    type Object = SlimPod;
    const NAME: &'static str = "unscheduled_pods";
    fn set(caches: &Caches, pod: SlimPod) -> Vec<Key> {
        caches.world.lock().set_unscheduled(&Self::id(&pod), &lacked_by(&pod), only_on(&pod).as_ref())
    }
    fn list(caches: &Caches, pod: SlimPod) -> Vec<Key> {
        let only_on =
            if has_had_room(&pod, Timestamp::now()) { Some(BTreeSet::new()) } else { only_on(&pod) };
        caches.world.lock().set_unscheduled(&Self::id(&pod), &lacked_by(&pod), only_on.as_ref())
    }
    fn id(pod: &SlimPod) -> String {
        pod.uid().unwrap_or_default()
    }
    fn remove(caches: &Caches, uid: &str) -> Vec<Key> {
        caches.world.lock().remove_crowded_out(uid);
        Vec::new()
    }
    fn ids(caches: &Caches) -> Vec<String> {
        caches.world.lock().crowded_out().cloned().collect()
    }
}

pub(super) struct Nodes;
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
