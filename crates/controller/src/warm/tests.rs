use contract::mountpoint_pod::Warm;
use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::observed::created;

const MINUTE: i64 = 60;
const NOW: i64 = 10;

fn at(second: i64) -> Time {
    Time(Timestamp::from_second(second).unwrap())
}

fn warm(name: &str, phase: Phase) -> MountpointPod {
    MountpointPod {
        node: Some("n".to_owned()),
        phase,
        created: Some(at(0)),
        started: phase == Phase::Running,
        warm: Some(Warm { node: "n".to_owned(), shape: "shape".to_owned() }),
        ..created(name)
    }
}

/// Two are wanted.
fn warm_node(warm: &[MountpointPod]) -> WarmNode {
    WarmNode {
        node: "n".to_owned(),
        now: at(NOW),
        shape: "shape".to_owned(),
        per_node: PerNode::Fixed(2),
        quota_left: 100,
        beyond: 0,
        open: Some("node-uid".to_owned()),
        node_gone: false,
        used: Some(at(NOW)),
        missed: None,
        claimed: None,
        starting: None,
        full: None,
        warm: warm.to_vec(),
    }
}

/// `+` for a pod that is created, its name for one that is deleted.
fn decided(warm_node: &WarmNode) -> Vec<String> {
    let steps = warm_node.decide(|| "new".to_owned()).into_iter();
    let shown = steps.map(|step| match step {
        Step::CreateWarmPod { node, node_uid, .. } if (&*node, &*node_uid) == ("n", "node-uid") => {
            "+".to_owned()
        }
        Step::DeleteWarmPod { name, by_force: false, .. } => name,
        Step::DeleteWarmPod { name, by_force: true, .. } => format!("{name} by force"),
        other => panic!("{other:?}"),
    });
    shown.collect()
}

#[test]
fn a_node_keeps_as_many_as_are_wanted() {
    let (one, two) = (warm("one", Phase::Running), warm("two", Phase::Pending));
    assert_eq!(decided(&warm_node(&[])), ["+", "+"]);
    assert_eq!(decided(&warm_node(std::slice::from_ref(&one))), ["+"]);
    assert_eq!(decided(&warm_node(&[one.clone(), two.clone()])), [""; 0]);
    let three = warm("three", Phase::Running);
    assert_eq!(decided(&warm_node(&[one.clone(), two.clone(), three])), ["two"], "those that run stay");
    assert_eq!(decided(&WarmNode { quota_left: 1, ..warm_node(&[]) }), ["+"], "the cluster has a limit");
    let lowered = WarmNode { quota_left: 0, beyond: 1, ..warm_node(&[one.clone(), two.clone()]) };
    assert_eq!(decided(&lowered), ["two"], "the limit was lowered");
    for unwanted in [
        WarmNode { open: None, ..warm_node(&[one.clone(), two.clone()]) },
        WarmNode { full: Some(at(NOW - 9 * MINUTE)), ..warm_node(&[one.clone(), two.clone()]) },
        WarmNode { per_node: PerNode::Fixed(0), ..warm_node(&[one.clone(), two.clone()]) },
    ] {
        assert_eq!(decided(&unwanted), ["one", "two"], "{unwanted:?}");
    }
    let gone = WarmNode { node_gone: true, open: None, ..warm_node(&[one, two]) };
    assert_eq!(decided(&gone), ["one by force", "two by force"], "no kubelet ends them");
}

#[test]
fn auto_keeps_one_where_buckets_are_used_and_two_after_a_burst() {
    let auto = WarmNode { per_node: PerNode::Auto, ..warm_node(&[]) };
    assert_eq!(decided(&auto), ["+"]);
    let burst = WarmNode { missed: Some(at(NOW - 59 * MINUTE)), ..auto.clone() };
    assert_eq!(decided(&burst), ["+", "+"]);
    assert_eq!(decided(&WarmNode { missed: Some(at(NOW - 60 * MINUTE)), ..auto.clone() }), ["+"]);
    assert_eq!(decided(&WarmNode { used: None, ..auto.clone() }), [""; 0]);
    let unused =
        WarmNode { used: Some(at(NOW - 60 * MINUTE)), warm: vec![warm("one", Phase::Running)], ..auto };
    assert_eq!(decided(&unused), ["one"]);
}

#[test]
fn what_cannot_be_claimed_is_replaced() {
    let other = Some(Warm { node: "n".to_owned(), shape: "other".to_owned() });
    let old = MountpointPod { warm: other, ..warm("old", Phase::Running) };
    assert_eq!(decided(&warm_node(&[old])), ["old", "+", "+"]);
    let leaving = MountpointPod { terminating: true, ..warm("leaving", Phase::Running) };
    assert_eq!(decided(&warm_node(&[leaving])), ["+", "+"]);
}

#[test]
fn one_that_is_claimed_is_replaced_when_the_workload_has_started() {
    let claimed = WarmNode { claimed: Some(at(NOW - 1)), ..warm_node(&[]) };
    assert_eq!(decided(&claimed), [""; 0]);
    assert_eq!(claimed.look_again(), Some(Duration::from_secs(1)));
    assert_eq!(decided(&WarmNode { claimed: Some(at(NOW - 2)), ..claimed.clone() }), ["+", "+"]);
    let starting = WarmNode { claimed: Some(at(NOW - 9)), starting: Some(at(NOW - 1)), ..claimed };
    assert_eq!(decided(&starting), [""; 0], "a workload waits for it");
    assert_eq!(starting.look_again(), Some(Duration::from_secs(29)));
    assert_eq!(decided(&WarmNode { starting: Some(at(NOW - 30)), ..starting }), ["+", "+"]);
}

#[test]
fn a_pod_that_failed_keeps_its_place_for_a_while() {
    let failed = warm_node(&[warm("failed", Phase::Failed)]);
    assert_eq!(decided(&failed), ["+"]);
    assert_eq!(failed.look_again(), Some(Duration::from_secs(50)));
    assert_eq!(decided(&WarmNode { open: None, ..failed.clone() }), ["failed"]);
    let later = WarmNode { now: at(MINUTE), ..failed };
    assert_eq!(decided(&later), ["failed", "+", "+"]);
}

#[test]
fn a_node_is_looked_at_again_when_its_time_is_over() {
    let unused = WarmNode { used: Some(at(0)), ..warm_node(&[]) };
    assert_eq!(unused.look_again(), Some(Duration::from_secs(3590)));
    let full = WarmNode { full: Some(at(0)), ..unused };
    assert_eq!(full.look_again(), Some(Duration::from_secs(590)));
}

#[test]
fn a_policy_is_a_number_off_or_auto() {
    assert_eq!("auto".parse(), Ok(PerNode::Auto));
    assert_eq!("off".parse(), Ok(PerNode::Fixed(0)));
    assert_eq!("3".parse(), Ok(PerNode::Fixed(3)));
    for wrong in ["", "-1", "Auto", "many", "on"] {
        assert!(wrong.parse::<PerNode>().is_err(), "{wrong}");
    }
}

#[test]
fn a_workload_has_had_its_room_after_ten_minutes() {
    let has_had_room = |age: i64| {
        let pod = json!({"metadata": {"creationTimestamp": at(NOW - age)}});
        has_had_room(&serde_json::from_value(pod).unwrap(), at(NOW).0)
    };
    assert!(!has_had_room(9 * MINUTE));
    assert!(has_had_room(10 * MINUTE));
}

#[test]
fn a_volume_without_a_warm_pod_has_a_reason() {
    use Warmth::{BeingReplaced, LimitReached, NodeFull, NoneReady, NotKept};
    let none = warm_node(&[]);
    let full = WarmNode { full: Some(at(NOW)), ..none.clone() };
    let unused = WarmNode { per_node: PerNode::Auto, used: None, ..none.clone() };
    let claimed = WarmNode { claimed: Some(at(NOW)), ..none.clone() };
    for (warm_node, reason) in [
        (warm_node(&[warm("starts", Phase::Pending)]), BeingReplaced),
        (WarmNode { quota_left: 0, ..claimed.clone() }, BeingReplaced),
        (claimed, BeingReplaced),
        (full, NodeFull),
        (unused, NotKept),
        (WarmNode { open: None, ..none.clone() }, NotKept),
        (WarmNode { quota_left: 0, ..none.clone() }, LimitReached),
        (warm_node(&[warm("failed", Phase::Failed)]), NoneReady),
        (none, NoneReady),
    ] {
        assert_eq!(warm_node.why_none(), reason, "{warm_node:?}");
    }
}
