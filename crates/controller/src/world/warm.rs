//! Warm Mountpoint Pods in the world.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::state::{World, remove_from};
use crate::key::Key;
use crate::observed::{MountpointPod, Phase};
use crate::room::lacked_by_mountpoint_pod;
use crate::warm::{WarmNode, is_ready};

impl World {
    /// A warm pod of the node that is ready. No other decision gets it until it is released or changed.
    pub fn reserve_warm(&mut self, node: &str, now: &Time) -> Option<MountpointPod> {
        let names = self.warm.by_node.get(node)?.iter().filter(|name| !self.warm.is_reserved(name, now));
        let is_of_shape =
            |pod: &MountpointPod| pod.warm.as_ref().is_some_and(|warm| warm.shape == self.warm.shape);
        let mut pods = names.filter_map(|name| self.pods.get(name));
        let found = pods.find(|pod| is_ready(pod) && is_of_shape(pod)).cloned()?;
        self.warm.reserved.insert(found.name.clone(), now.clone());
        Some(found)
    }

    pub fn warm_node(&mut self, node: &str, now: &Time) -> WarmNode {
        let own = self.warm.by_node.get(node).into_iter().flatten();
        let warm: Vec<MountpointPod> = own.filter_map(|name| self.pods.get(name)).cloned().collect();
        let named = self.attachments_on(node).flat_map(|attachment| attachment.spec.mountpoint_pods.keys());
        let starting = named.filter_map(|name| self.pods.get(name)).filter(|pod| pod.phase == Phase::Pending);
        let starting = starting.filter_map(|pod| pod.created.clone()).max();
        // Another leader kept one there, and only that one knew since when the node is in use.
        let is_inherited = !self.warm.used.contains_key(node) && !warm.is_empty();
        if self.nodes.contains(node) && (is_inherited || self.attachments_by_node.contains_key(node)) {
            self.warm.used.insert(node.to_owned(), now.clone());
        }
        let yields = self.warm.yielding.remove(node);
        if yields || self.warm.unplaced.values().any(|home| home == node) {
            self.warm.full.insert(node.to_owned(), now.clone());
        }
        let all = self.lasting_warm_pods().len() + self.warm.coming;
        WarmNode {
            node: node.to_owned(),
            now: now.clone(),
            shape: self.warm.shape.clone(),
            per_node: self.warm.per_node,
            quota_left: self.warm.in_cluster.saturating_sub(all),
            beyond: self.beyond(node),
            open: self.warm.open.get(node).cloned(),
            node_gone: false,
            used: self.warm.used.get(node).cloned(),
            missed: self.warm.missed.get(node).cloned(),
            claimed: self.warm.unreplaced.get(node).cloned(),
            starting,
            full: self.warm.full.get(node).cloned(),
            warm,
        }
    }

    /// Without those that are deleted, which may stay for as long as their node is unreachable.
    fn lasting_warm_pods(&self) -> Vec<&String> {
        let lasts = |name: &&String| self.pods.get(*name).is_some_and(|pod| !pod.terminating);
        self.warm.by_node.values().flatten().filter(lasts).collect()
    }

    /// How many of the node's are too many for the cluster: the last ones by name, so that every node's decision means others.
    fn beyond(&self, node: &str) -> usize {
        let mut names = self.lasting_warm_pods();
        if names.len() <= self.warm.in_cluster {
            return 0;
        }
        names.sort();
        let own = self.warm.by_node.get(node);
        names
            .iter()
            .skip(self.warm.in_cluster)
            .filter(|name| own.is_some_and(|own| own.contains(**name)))
            .count()
    }

    /// The UID of a node on which warm pods may be kept.
    pub fn set_open(&mut self, node: &str, uid: Option<&str>) -> Vec<Key> {
        let before = match uid {
            Some(uid) => self.warm.open.insert(node.to_owned(), uid.to_owned()),
            None => self.warm.open.remove(node),
        };
        self.warm_key(node).into_iter().filter(|_| before.as_deref() != uid).collect()
    }

    /// A workload that is on no node, and what it lacks there. If warm pods have that, those of all nodes, or of the only ones
    /// where it may run, make room for it, but only once: a workload that does not fit even then would otherwise keep them away
    /// for good.
    pub fn set_unscheduled(
        &mut self,
        uid: &str,
        lacks: &BTreeSet<&str>,
        only_on: Option<&BTreeSet<String>>,
    ) -> Vec<Key> {
        if !self.warm.has_any(lacks) || !self.warm.crowded_out.insert(uid.to_owned()) {
            return Vec::new();
        }
        let may_run = |node: &&String| only_on.is_none_or(|nodes| nodes.contains(*node));
        let nodes: Vec<String> = self.warm.by_node.keys().filter(may_run).cloned().collect();
        self.warm.yielding.extend(nodes.iter().cloned());
        nodes.into_iter().map(Key::WarmPods).collect()
    }

    pub fn remove_crowded_out(&mut self, uid: &str) {
        self.warm.crowded_out.remove(uid);
    }

    pub fn crowded_out(&self) -> impl Iterator<Item = &String> {
        self.warm.crowded_out.iter()
    }

    pub(super) fn forget_node(&mut self, node: &str) {
        let warm = &mut self.warm;
        warm.yielding.remove(node);
        warm.open.remove(node);
        let times =
            [&mut warm.used, &mut warm.missed, &mut warm.claimed, &mut warm.unreplaced, &mut warm.full];
        for times in times {
            times.remove(node);
        }
    }

    /// Returns the node that has to be looked at because of it.
    pub(super) fn index_warm(&mut self, pod: &MountpointPod) -> Option<Key> {
        if let Some(warm) = &pod.warm {
            self.warm.by_node.entry(warm.node.clone()).or_default().insert(pod.name.clone());
        }
        if !self.warm.has_any(&lacked_by_mountpoint_pod(pod)) {
            return None;
        }
        let attached = self.attachments_in(self.attachments_by_pod.get(&pod.name)).next();
        let named = attached.map(|attachment| &attachment.spec.node_name);
        let node = pod.warm.as_ref().map(|warm| &warm.node).or(named)?.clone();
        self.warm.unplaced.insert(pod.name.clone(), node.clone());
        self.warm_key(&node)
    }

    /// Returns the node that it was kept on.
    pub(super) fn unindex_warm(&mut self, pod: &MountpointPod) -> Option<String> {
        self.warm.reserved.remove(&pod.name);
        self.warm.unplaced.remove(&pod.name);
        let node = pod.warm.as_ref()?.node.clone();
        remove_from(&mut self.warm.by_node, &node, &pod.name);
        Some(node)
    }

    /// Where there are warm pods to keep or to remove.
    pub(super) fn warm_keys(&self) -> Vec<Key> {
        let warm = &self.warm;
        let kept = warm.by_node.keys().chain(warm.open.keys().filter(|_| !warm.is_off()));
        kept.cloned().map(Key::WarmPods).collect()
    }

    /// The node, if there is anything to do about it.
    pub(super) fn warm_key(&self, node: &str) -> Option<Key> {
        let is_concerned = !self.warm.is_off() || self.warm.by_node.contains_key(node);
        is_concerned.then(|| Key::WarmPods(node.to_owned()))
    }
}

#[cfg(test)]
mod tests;
