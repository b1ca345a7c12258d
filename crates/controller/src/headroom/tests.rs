use contract::authentication::SecretPresence;
use contract::volume_plan::VolumePlan;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::observed::{Phase, Workload};

fn gated() -> GatedWorkload {
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
        has_headroom: false,
        created: None,
    };
    GatedWorkload { workload, resource_version: 1, has_gate: true, has_label: false }
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

fn headroom(volumes: &[&str], pods: &[&str]) -> Headroom {
    let attributes = [("bucketName".to_owned(), "bucket".to_owned())].into();
    let volume = VolumePlan::parse(&attributes, SecretPresence::Absent, [""]).unwrap().volume;
    Headroom {
        is_on: true,
        gated: Some(gated()),
        volumes: volumes.iter().map(|name| ((*name).to_owned(), volume.clone())).collect(),
        awaits_claims: false,
        refused: BTreeSet::new(),
        unschedulable: BTreeSet::new(),
        pods: pods.iter().map(|volume| pod(volume)).collect(),
    }
}

/// The steps, each with the volume that it is about.
fn steps(headroom: &Headroom) -> Vec<String> {
    let text = |step: &Step| match step {
        Step::CreateHeadroomPod { volume_name, .. } => format!("create {volume_name}"),
        Step::DeleteHeadroomPod { uid, .. } => format!("delete {uid}"),
        step => step.name().to_owned(),
    };
    headroom.decide().iter().map(text).collect()
}

fn with(headroom: &Headroom, change: impl FnOnce(&mut GatedWorkload)) -> Headroom {
    let mut headroom = headroom.clone();
    change(headroom.gated.as_mut().unwrap());
    headroom
}

#[test]
fn the_gate_is_removed_when_every_volume_has_headroom() {
    assert_eq!(steps(&headroom(&["a", "b"], &[])), ["label_workload", "create a", "create b", "remove_gate"]);
    let labelled = with(&headroom(&["a", "b"], &["a"]), |gated| gated.has_label = true);
    assert_eq!(steps(&labelled), ["create b", "remove_gate"], "after a crash it goes on where it was");
    assert_eq!(steps(&headroom(&[], &[])), ["remove_gate"], "there is nothing to reserve headroom for");
}

#[test]
fn claims_that_are_not_bound_keep_the_gate() {
    let waiting = Headroom { awaits_claims: true, ..headroom(&["a"], &[]) };
    assert_eq!(steps(&waiting), ["label_workload", "create a"]);
}

#[test]
fn a_workload_that_waits_for_long_is_looked_at_less_often() {
    let again = |waited: i64, headroom: &Headroom| {
        let created = Some(Time(Timestamp::UNIX_EPOCH));
        let headroom = with(headroom, |gated| gated.workload.created = created);
        headroom.look_again(Timestamp::from_second(waited).unwrap()).map(|again| again.as_secs())
    };
    let waiting = Headroom { awaits_claims: true, ..headroom(&["a"], &[]) };
    for (waited, after) in [(-1, 5), (0, 5), (20, 5), (60, 15), (480, 120), (86_400, 120)] {
        assert_eq!(again(waited, &waiting), Some(after), "{waited} s");
    }
    assert_eq!(waiting.look_again(Timestamp::UNIX_EPOCH), Some(CLAIMS_AGAIN), "its age is not known");
    assert_eq!(again(60, &headroom(&["a"], &[])), None);
    assert_eq!(again(60, &Headroom { is_on: false, ..waiting }), None);
}

#[test]
fn a_volume_without_headroom_keeps_nothing_waiting() {
    let refused = Headroom { refused: ["a".to_owned()].into(), ..headroom(&["a", "b"], &["b"]) };
    assert_eq!(steps(&refused), ["label_workload", "remove_gate"]);
    let all = Headroom { refused: ["a".to_owned()].into(), ..headroom(&["a"], &[]) };
    assert_eq!(steps(&all), ["remove_gate"]);
}

#[test]
fn what_has_ended_is_replaced_before_the_workload_is_scheduled_and_not_after() {
    let mut ended = with(&headroom(&["a"], &["a"]), |gated| gated.has_label = true);
    ended.pods[0].has_ended = true;
    assert_eq!(steps(&ended), ["delete u-a", "create a", "remove_gate"]);
    let scheduled = with(&ended, |gated| gated.has_gate = false);
    assert_eq!(steps(&scheduled), ["delete u-a"]);
    assert_eq!(steps(&Headroom { pods: vec![], ..scheduled }), Vec::<String>::new(), "it was preempted");
}

#[test]
fn headroom_is_kept_until_its_mountpoint_pod_needs_it() {
    let waits = with(&headroom(&["a", "b"], &["a", "b"]), |gated| {
        gated.has_gate = false;
        gated.has_label = true;
    });
    assert_eq!(steps(&waits), Vec::<String>::new());
    let unschedulable = Headroom { unschedulable: ["b".to_owned()].into(), ..waits };
    assert_eq!(steps(&unschedulable), ["delete u-b"]);
}

#[test]
fn nothing_stays_when_the_workload_needs_it_no_more() {
    let reserved = with(&headroom(&["a"], &["a"]), |gated| {
        gated.has_gate = false;
        gated.has_label = true;
    });
    let both = ["delete u-a", "unlabel_workload"];
    for phase in [Phase::Running, Phase::Succeeded, Phase::Failed] {
        assert_eq!(steps(&with(&reserved, |gated| gated.workload.phase = phase)), both);
    }
    assert_eq!(steps(&with(&reserved, |gated| gated.workload.terminating = true)), both);
    let gone = Headroom { gated: None, ..reserved.clone() };
    assert_eq!(steps(&gone), ["delete u-a"]);
    let off = Headroom { is_on: false, ..reserved };
    assert_eq!(steps(&off), ["delete u-a"], "without the right to change workloads");
}

#[test]
fn nothing_is_deleted_twice() {
    let mut leaving = Headroom { gated: None, ..headroom(&["a"], &["a"]) };
    leaving.pods[0].terminating = true;
    assert_eq!(steps(&leaving), Vec::<String>::new());
}
