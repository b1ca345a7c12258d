use contract::mountpoint_pod::{StartFailure, Warm};
use jiff::Timestamp;

use super::*;
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
fn a_new_leader_keeps_what_it_finds() {
    let mut world = world(&[pod("mp-1", "now")]);
    assert_eq!(world.warm_node("n", &now()).used, Some(now()), "another leader knew since when");
    let later = Time(now().0 + jiff::SignedDuration::from_hours(1));
    assert_eq!(world.warm_node("n", &later).used, Some(now()), "but not for good");
}

#[test]
fn the_first_claim_that_is_not_replaced_decides_when() {
    let mut world = world(&[]);
    let later = Time(now().0 + jiff::SignedDuration::from_secs(1));
    world.warm.hit("n", &now());
    world.warm.hit("n", &later);
    assert_eq!(world.warm_node("n", &later).claimed, Some(now()));
    world.warm.replaced("n");
    assert_eq!(world.warm_node("n", &later).claimed, None);
    world.warm.hit("n", &later);
    assert_eq!(world.warm_node("n", &later).claimed, Some(later));
}

#[test]
fn a_node_is_looked_at_when_its_mountpoint_pods_have_started() {
    let mut world = world(&[]);
    world.set_attachment(attachment(1, "", "mp", &["w"]));
    let started = mountpoint_pod("mp", "a", "w");
    let starting = MountpointPod { phase: Phase::Pending, created: Some(now()), ..started.clone() };
    assert!(!world.set_pod(starting).contains(&Key::WarmPods("n".into())));
    assert_eq!(world.warm_node("n", &now()).starting, Some(now()));
    let keys = world.set_pod(MountpointPod { resource_version: 2, ..started });
    assert!(keys.contains(&Key::WarmPods("n".into())), "{keys:?}");
    assert_eq!(world.warm_node("n", &now()).starting, None);
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
    world.mark_deleted("mp-1", "mp-1");
    assert_eq!(world.warm_node("n", &now()).beyond, 0, "it is leaving, if its node can be reached");
    world.warm.in_cluster = 3;
    assert_eq!(world.warm_node("n", &now()).quota_left, 3);
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
