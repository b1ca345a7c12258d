use contract::authentication::SecretRef;
use contract::volume_plan::VolumePlan;

use super::*;
use crate::observed::{Phase, Workload};

fn seeker() -> Seeker {
    let workload = Workload {
        uid: "w".into(),
        namespace: "ns".into(),
        name: "pod-w".into(),
        node: String::new(),
        fs_group: String::new(),
        service_account: "sa".into(),
        claims: vec!["a".into(), "b".into()],
        phase: Phase::Pending,
        terminating: false,
        busy: false,
        has_reserved_room: false,
        created: None,
    };
    Seeker { workload, resource_version: 1, is_gated: true, is_labelled: false }
}

fn pod(volume: &str) -> HeadroomPod {
    HeadroomPod {
        name: headroom_pod("w", volume),
        uid: format!("u-{volume}"),
        resource_version: 1,
        workload_uid: "w".into(),
        workload: Some(("ns".into(), "pod-w".into())),
        volume_name: volume.into(),
        terminating: false,
        has_ended: false,
    }
}

fn room(volumes: &[&str], pods: &[&str]) -> ReservedRoom {
    let attributes = [("bucketName".to_owned(), "bucket".to_owned())].into();
    let volume = VolumePlan::parse(&attributes, SecretRef::Absent, [""]).unwrap().volume;
    ReservedRoom {
        is_on: true,
        seeker: Some(seeker()),
        volumes: volumes.iter().map(|name| ((*name).to_owned(), volume.clone())).collect(),
        awaits_claims: false,
        refused: BTreeSet::new(),
        crowded: BTreeSet::new(),
        pods: pods.iter().map(|volume| pod(volume)).collect(),
    }
}

/// The steps, each with the volume that it is about.
fn steps(room: &ReservedRoom) -> Vec<String> {
    let text = |step: &Step| match step {
        Step::CreateHeadroomPod { volume_name, .. } => format!("create {volume_name}"),
        Step::DeleteHeadroomPod { uid, .. } => format!("delete {uid}"),
        step => step.name().to_owned(),
    };
    room.decide().iter().map(text).collect()
}

fn with(room: &ReservedRoom, change: impl FnOnce(&mut Seeker)) -> ReservedRoom {
    let mut room = room.clone();
    change(room.seeker.as_mut().unwrap());
    room
}

#[test]
fn the_gate_is_removed_when_every_volume_has_room() {
    assert_eq!(steps(&room(&["a", "b"], &[])), ["label_workload", "create a", "create b", "remove_gate"]);
    let labelled = with(&room(&["a", "b"], &["a"]), |seeker| seeker.is_labelled = true);
    assert_eq!(steps(&labelled), ["create b", "remove_gate"], "after a crash it goes on where it was");
    assert_eq!(steps(&room(&[], &[])), ["remove_gate"], "there is nothing to reserve room for");
}

#[test]
fn claims_that_are_not_bound_keep_the_gate() {
    let waiting = ReservedRoom { awaits_claims: true, ..room(&["a"], &[]) };
    assert_eq!(steps(&waiting), ["label_workload", "create a"]);
    assert_eq!(waiting.look_again(), Some(CLAIMS_AGAIN));
    assert_eq!(room(&["a"], &[]).look_again(), None);
}

#[test]
fn a_volume_without_room_keeps_nothing_waiting() {
    let refused = ReservedRoom { refused: ["a".to_owned()].into(), ..room(&["a", "b"], &["b"]) };
    assert_eq!(steps(&refused), ["label_workload", "remove_gate"]);
    let all = ReservedRoom { refused: ["a".to_owned()].into(), ..room(&["a"], &[]) };
    assert_eq!(steps(&all), ["remove_gate"]);
}

#[test]
fn what_has_ended_is_replaced_before_the_workload_is_scheduled_and_not_after() {
    let mut ended = with(&room(&["a"], &["a"]), |seeker| seeker.is_labelled = true);
    ended.pods[0].has_ended = true;
    assert_eq!(steps(&ended), ["delete u-a", "create a", "remove_gate"]);
    let scheduled = with(&ended, |seeker| seeker.is_gated = false);
    assert_eq!(steps(&scheduled), ["delete u-a"]);
    assert_eq!(steps(&ReservedRoom { pods: vec![], ..scheduled }), Vec::<String>::new(), "it was preempted");
}

#[test]
fn room_is_kept_until_its_mountpoint_pod_needs_it() {
    let waits = with(&room(&["a", "b"], &["a", "b"]), |seeker| {
        seeker.is_gated = false;
        seeker.is_labelled = true;
    });
    assert_eq!(steps(&waits), Vec::<String>::new());
    let crowded = ReservedRoom { crowded: ["b".to_owned()].into(), ..waits };
    assert_eq!(steps(&crowded), ["delete u-b"]);
}

#[test]
fn nothing_stays_when_the_workload_needs_it_no_more() {
    let reserved = with(&room(&["a"], &["a"]), |seeker| {
        seeker.is_gated = false;
        seeker.is_labelled = true;
    });
    let both = ["delete u-a", "unlabel_workload"];
    for phase in [Phase::Running, Phase::Succeeded, Phase::Failed] {
        assert_eq!(steps(&with(&reserved, |seeker| seeker.workload.phase = phase)), both);
    }
    assert_eq!(steps(&with(&reserved, |seeker| seeker.workload.terminating = true)), both);
    let gone = ReservedRoom { seeker: None, ..reserved.clone() };
    assert_eq!(steps(&gone), ["delete u-a"]);
    let off = ReservedRoom { is_on: false, ..reserved };
    assert_eq!(steps(&off), ["delete u-a"], "without the right to change workloads");
}

#[test]
fn nothing_is_deleted_twice() {
    let mut leaving = ReservedRoom { seeker: None, ..room(&["a"], &["a"]) };
    leaving.pods[0].terminating = true;
    assert_eq!(steps(&leaving), Vec::<String>::new());
}
