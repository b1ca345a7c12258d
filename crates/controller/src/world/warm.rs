//! Warm Mountpoint Pods in the world.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::state::{World, remove_from};
use crate::key::Key;
use crate::observed::MountpointPod;
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
        for times in [&mut warm.used, &mut warm.missed, &mut warm.claimed, &mut warm.full] {
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
mod tests {
    use contract::mountpoint_pod::{StartFailure, Warm};
    use jiff::Timestamp;

    use super::*;
    use crate::observed::Phase;
    use crate::warm::PerNode;
    use crate::world::WarmPods;
    use crate::world::tests::{attachment, mountpoint_pod, unscheduled};

    fn now() -> Time {
        Time(Timestamp::from_second(1000).unwrap())
    }

    fn pod(name: &str, shape: &str) -> MountpointPod {
        let warm = Some(Warm { node: "n".into(), shape: shape.into() });
        MountpointPod { attachment: None, workload_uid: None, warm, ..mountpoint_pod(name, "", "") }
    }

    fn world(pods: &[MountpointPod]) -> World {
        let warm =
            WarmPods::new(PerNode::Fixed(2), 3, "now".into(), ["memory", "pods"].map(str::to_owned).into());
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
        let memory = BTreeSet::from(["memory"]);
        assert_eq!(world.set_unscheduled("w", &memory, None), [Key::WarmPods("n".into())]);
        assert_eq!(world.warm_node("n", &now()).full, Some(now()));
        world.warm.full.clear();
        assert_eq!(world.set_unscheduled("w", &BTreeSet::new(), None), [], "it waits for something else");
        assert_eq!(world.set_unscheduled("w", &memory, None), [], "it is still there");
        assert_eq!(world.warm_node("n", &now()).full, None);
        world.remove_crowded_out("w");
        assert_eq!(world.set_unscheduled("w", &memory, None).len(), 1);
    }

    #[test]
    fn warm_pods_stay_where_their_end_would_not_help() {
        let mut world = world(&[pod("mp-1", "now")]);
        let scarce = BTreeSet::from(["cpu", "nvidia.com/gpu", "hugepages-2Mi"]);
        assert_eq!(world.set_unscheduled("other-resources", &scarce, None), []);
        let lacks = BTreeSet::from(["cpu", "memory"]);
        let elsewhere = BTreeSet::from(["another".to_owned()]);
        assert_eq!(world.set_unscheduled("daemon-elsewhere", &lacks, Some(&elsewhere)), []);
        assert_eq!(world.set_unscheduled("has-had-room", &lacks, Some(&BTreeSet::new())), []);
        assert_eq!(world.set_unscheduled("has-had-room", &lacks, None), [], "in a later message, too");
        assert_eq!(world.warm_node("n", &now()).full, None);
        let here = BTreeSet::from(["n".to_owned()]);
        assert_eq!(world.set_unscheduled("daemon-here", &lacks, Some(&here)), [Key::WarmPods("n".into())]);
    }

    #[test]
    fn a_node_without_room_for_a_serving_pod_is_full() {
        let mut world = world(&[pod("mp-1", "now")]);
        world.set_attachment(attachment(1, "", "mp", &["w"]));
        let claim = "0/1 nodes are available: waiting for ephemeral volume controller to create the persistentvolumeclaim \
                     \"mp-local-cache\".";
        for (version, message) in [(1, claim), (2, "0/1 nodes are available: 1 Insufficient cpu.")] {
            let keys = world.set_pod(unscheduled("mp", version, message));
            assert!(!keys.contains(&Key::WarmPods("n".into())), "{message}: {keys:?}");
            assert_eq!(world.warm_node("n", &now()).full, None, "{message}");
        }
        let keys = world.set_pod(unscheduled("mp", 3, "0/1 nodes are available: 1 Insufficient memory."));
        assert!(keys.contains(&Key::WarmPods("n".into())), "{keys:?}");
        assert_eq!(world.warm_node("n", &now()).full, Some(now()));
    }
}
