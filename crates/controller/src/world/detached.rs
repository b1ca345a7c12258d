//! Workloads whose attachment was deleted by hand. They keep running, and the labels of their Mountpoint Pod show which
//! attachment they had.

use contract::sharing::SharingKey;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::state::{Demand, World};
use crate::observed::{MountpointPod, Phase, Workload};

/// A workload that no attachment lists, and the Mountpoint Pod that serves it.
#[derive(Clone, Debug)]
pub struct Detached {
    pub workload: Workload,
    pub pod: MountpointPod,
    pub key: SharingKey,
}

impl World {
    /// Those of one sharing key. A workload that runs without any Mountpoint Pod of its key was mounted by a driver
    /// without Mountpoint Pods and is not attached.
    pub fn detached(&self, group: &str) -> Vec<Detached> {
        let unnamed = self.pods_by_attachment.get(group).into_iter().flatten();
        let unnamed = unnamed.filter(|name| !self.is_named(name) && !self.held.contains(*name));
        let pods: Vec<&MountpointPod> =
            unnamed.filter_map(|name| self.pods.get(name)).filter(|pod| !pod.is_ending()).collect();
        let volume = pods.first().and_then(|pod| self.volumes.get(pod.volume_name.as_ref()?));
        let Some((volume, claim)) = volume.and_then(|volume| Some((volume, volume.claim.as_ref()?))) else {
            return Vec::new();
        };
        let workloads = self.workloads_by_claim.get(claim).into_iter().flatten();
        let workloads = workloads.filter(|uid| !self.is_attached(uid, &volume.name));
        workloads
            .filter_map(|uid| self.workloads.get(uid).filter(|workload| !workload.terminating))
            .filter_map(|workload| {
                let Demand::Group { name, key } = self.demand_for(workload, volume) else { return None };
                let runs = workload.phase == Phase::Running;
                let pod = served_by(&workload.uid, runs, workload.created.as_ref(), &pods)?;
                (name == group).then(|| Detached { workload: workload.clone(), pod: pod.clone(), key: *key })
            })
            .collect()
    }
}

/// Which of these pods serves a workload: the one that was created for it; else, if the workload runs, the youngest that was
/// there when it came, else the oldest, to which it was moved.
pub(crate) fn served_by<'a>(
    uid: &str,
    runs: bool,
    came: Option<&Time>,
    pods: &[&'a MountpointPod],
) -> Option<&'a MountpointPod> {
    let made_for_it = pods.iter().find(|pod| pod.workload_uid.as_deref() == Some(uid));
    let there_before = pods.iter().filter(|pod| pod.created.as_ref() <= came);
    let youngest = there_before.max_by_key(|pod| &pod.created);
    let oldest = pods.iter().min_by_key(|pod| &pod.created);
    made_for_it.or_else(|| youngest.or(oldest).filter(|_| runs)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::world::tests::{attachment, mountpoint_pod, volume, workload};

    fn running(uid: &str) -> Workload {
        Workload { phase: Phase::Running, ..workload(uid) }
    }

    /// A workload that runs on a pod of its key, with its attachment or without.
    fn world(attached: bool) -> (World, String) {
        let mut world = World::default();
        world.set_volume(volume("", "driver"));
        let keys = world.set_workload(workload("w"));
        let [Key::Group(group)] = keys.as_slice() else { panic!("{keys:?}") };
        world.set_workload(running("w"));
        if attached {
            world.set_attachment(attachment(1, "", "mp", &["w"]));
        }
        world.set_pod(mountpoint_pod("mp", group, "w"));
        (world, group.clone())
    }

    #[test]
    fn a_workload_on_a_pod_that_nothing_names_comes_back_to_it() {
        let (mut world, group) = world(true);
        assert!(world.detached(&group).is_empty(), "it is attached");
        let keys = world.remove_attachment("a");
        assert!(keys.contains(&Key::Group(group.clone())), "{keys:?}");
        let view = world.view(&group).unwrap();
        let detached: Vec<_> =
            view.detached.iter().map(|it| (it.workload.uid.as_str(), it.pod.name.as_str())).collect();
        assert_eq!(detached, [("w", "mp")]);
        assert!(view.pods.contains_key("mp"), "else it would be made again");
    }

    #[test]
    fn everything_is_looked_at_for_those_who_lost_their_attachment_while_no_controller_ran() {
        let (world, group) = world(false);
        assert!(world.all_keys().contains(&Key::Group(group)));
    }

    #[test]
    fn nothing_comes_back_to_a_pod_that_is_leaving() {
        let (mut world, group) = world(false);
        world.held.insert("mp".to_owned());
        assert!(world.detached(&group).is_empty());
        world.held.clear();
        let leaving =
            MountpointPod { needs_unmount: true, resource_version: 2, ..mountpoint_pod("mp", &group, "w") };
        world.set_pod(leaving);
        assert!(world.detached(&group).is_empty());
    }

    #[test]
    fn a_pod_serves_those_it_was_made_for_and_those_who_came_after_it() {
        let at = |second| Some(Time(jiff::Timestamp::from_second(second).unwrap()));
        let pod = |name, second, uid| MountpointPod { created: at(second), ..mountpoint_pod(name, "g", uid) };
        let (old, new) = (pod("old", 10, "first"), pod("new", 20, "later"));
        let pods = [&old, &new];
        let serves = |uid, runs, second: i64| {
            served_by(uid, runs, at(second).as_ref(), &pods).map(|pod| pod.name.as_str())
        };
        assert_eq!(serves("later", true, 9), Some("new"));
        assert_eq!(serves("later", false, 9), Some("new"), "it may be mounted already");
        assert_eq!(serves("joined", true, 15), Some("old"));
        assert_eq!(serves("joined", true, 25), Some("new"));
        assert_eq!(serves("moved", true, 5), Some("old"));
        assert_eq!(serves("waits", false, 25), None);
    }
}
