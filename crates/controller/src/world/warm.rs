//! Warm Mountpoint Pods in the world.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::state::{World, remove_from};
use crate::key::Key;
use crate::observed::MountpointPod;
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
        let is_known = self.nodes.contains(node);
        if is_known && self.attachments.values().any(|attachment| attachment.spec.node_name == node) {
            self.warm.used.insert(node.to_owned(), now.clone());
        }
        let yields = self.warm.yielding.remove(node);
        if yields || self.warm.unplaced.values().any(|home| home == node) {
            self.warm.full.insert(node.to_owned(), now.clone());
        }
        let own = self.warm.by_node.get(node).into_iter().flatten();
        let all = self.warm.all() + self.warm.coming;
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
            claimed: self.warm.claimed.get(node).cloned(),
            full: self.warm.full.get(node).cloned(),
            warm: own.filter_map(|name| self.pods.get(name)).cloned().collect(),
        }
    }

    /// How many of the node's are too many for the cluster: the last ones by name, so that every node's decision means others.
    fn beyond(&self, node: &str) -> usize {
        if self.warm.all() <= self.warm.in_cluster {
            return 0;
        }
        let mut names: Vec<&String> = self.warm.by_node.values().flatten().collect();
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

    /// A workload that the scheduler finds no room for. The warm pods of all nodes make room for it, but only once: a workload that
    /// does not fit even then would otherwise keep them away for good.
    pub fn set_crowded_out(&mut self, uid: &str) -> Vec<Key> {
        if !self.warm.crowded_out.insert(uid.to_owned()) {
            return Vec::new();
        }
        let nodes: Vec<String> = self.warm.by_node.keys().cloned().collect();
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
        for times in [&mut warm.used, &mut warm.missed, &mut warm.claimed, &mut warm.full] {
            times.remove(node);
        }
    }

    /// Returns the node that has to be looked at because of it.
    pub(super) fn index_warm(&mut self, pod: &MountpointPod) -> Option<Key> {
        if let Some(warm) = &pod.warm {
            self.warm.by_node.entry(warm.node.clone()).or_default().insert(pod.name.clone());
        }
        if !pod.is_unschedulable() {
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
mod tests {
    use contract::mountpoint_pod::{StartFailure, Warm};
    use jiff::Timestamp;

    use super::*;
    use crate::observed::Phase;
    use crate::warm::PerNode;
    use crate::world::WarmPods;
    use crate::world::tests::{attachment, mountpoint_pod};

    fn now() -> Time {
        Time(Timestamp::from_second(1000).unwrap())
    }

    fn pod(name: &str, shape: &str) -> MountpointPod {
        let warm = Some(Warm { node: "n".into(), shape: shape.into() });
        MountpointPod { attachment: None, workload_uid: None, warm, ..mountpoint_pod(name, "", "") }
    }

    fn world(pods: &[MountpointPod]) -> World {
        let warm = WarmPods::new(PerNode::Fixed(2), 3, "now".into());
        let mut world = World { warm, ..World::default() };
        world.set_node("n".to_owned());
        for pod in pods {
            world.set_pod(pod.clone());
        }
        world
    }

    #[test]
    fn what_runs_and_is_of_the_current_shape_is_reserved_once() {
        let starting = MountpointPod { phase: Phase::Pending, ..pod("mp-1", "now") };
        let leaving = MountpointPod { terminating: true, ..pod("mp-2", "now") };
        let crash = StartFailure { reason: "CrashLoopBackOff".into(), message: "exited".into() };
        let crashing = MountpointPod { start_failure: Some(crash), ..pod("mp-0", "now") };
        let pods = [crashing, starting, leaving, pod("mp-3", "before"), pod("mp-4", "now")];
        let mut world = world(&pods);
        assert_eq!(world.reserve_warm("other", &now()), None);
        assert_eq!(world.reserve_warm("n", &now()).unwrap().name, "mp-4");
        assert_eq!(world.reserve_warm("n", &now()), None);
        world.warm.release("mp-4");
        assert_eq!(world.reserve_warm("n", &now()).unwrap().name, "mp-4");
        world.set_pod(MountpointPod { resource_version: 2, ..pod("mp-4", "now") });
        let again = world.reserve_warm("n", &now()).unwrap();
        assert_eq!(again.resource_version, 2, "what was tried in vain has changed");
        let later = Time(now().0 + jiff::SignedDuration::from_mins(2));
        assert_eq!(world.reserve_warm("n", &later).unwrap().name, "mp-4", "nothing is reserved for good");
    }

    #[test]
    fn a_claimed_pod_leaves_a_place_to_fill() {
        let mut world = world(&[pod("mp-1", "now")]);
        let claimed = MountpointPod { resource_version: 2, ..mountpoint_pod("mp-1", "a", "w") };
        let keys = world.set_pod(claimed);
        assert!(keys.contains(&Key::WarmPods("n".into())), "{keys:?}");
        assert!(world.warm_node("n", &now()).warm.is_empty());
        assert!(!world.all_keys().contains(&Key::WarmPods("n".into())));
    }

    #[test]
    fn a_node_is_in_use_as_long_as_it_has_attachments() {
        let mut world = world(&[]);
        assert_eq!(world.warm_node("n", &now()).used, None);
        let keys = world.set_attachment(attachment(1, "", "mp", &["w"]));
        assert!(keys.contains(&Key::WarmPods("n".into())), "{keys:?}");
        assert_eq!(world.warm_node("n", &now()).used, Some(now()));
        world.remove_attachment("a");
        assert_eq!(world.warm_node("n", &now()).used, Some(now()), "it was until now");
    }

    #[test]
    fn two_volumes_at_once_are_a_burst_and_the_first_of_a_node_is_none() {
        let mut world = world(&[]);
        world.warm.miss("n", &now());
        assert_eq!(world.warm_node("n", &now()).missed, None);
        world.warm.hit("n", &now());
        world.warm.miss("n", &now());
        assert_eq!(world.warm_node("n", &now()).missed, Some(now()));
    }

    #[test]
    fn the_limit_counts_what_is_about_to_be_created() {
        let mut world = world(&[pod("mp-1", "now")]);
        assert_eq!(world.warm_node("n", &now()).quota_left, 2);
        world.warm.expect(2);
        assert_eq!(world.warm_node("n", &now()).quota_left, 0);
        world.warm.arrived(2);
        world.warm.in_cluster = 0;
        assert_eq!(world.warm_node("n", &now()).beyond, 1);
        assert_eq!(world.warm_node("other", &now()).beyond, 0);
    }

    #[test]
    fn warm_pods_make_room_once_for_each_workload_that_fits_nowhere() {
        let mut world = world(&[pod("mp-1", "now")]);
        assert_eq!(world.set_crowded_out("w"), [Key::WarmPods("n".into())]);
        assert_eq!(world.warm_node("n", &now()).full, Some(now()));
        world.warm.full.clear();
        assert_eq!(world.set_crowded_out("w"), [], "it is still there");
        assert_eq!(world.warm_node("n", &now()).full, None);
        world.remove_crowded_out("w");
        assert_eq!(world.set_crowded_out("w").len(), 1);
    }

    #[test]
    fn a_node_without_room_for_a_serving_pod_is_full() {
        let mut world = world(&[pod("mp-1", "now")]);
        world.set_attachment(attachment(1, "", "mp", &["w"]));
        let failure = StartFailure { reason: "Unschedulable".into(), message: "full".into() };
        let waiting = MountpointPod {
            phase: Phase::Pending,
            node: None,
            start_failure: Some(failure),
            ..mountpoint_pod("mp", "a", "w")
        };
        let keys = world.set_pod(waiting);
        assert!(keys.contains(&Key::WarmPods("n".into())), "{keys:?}");
        assert_eq!(world.warm_node("n", &now()).full, Some(now()));
    }
}
