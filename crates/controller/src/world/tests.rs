use std::collections::BTreeMap;

use contract::authentication::SecretPresence;
use contract::sharing::Identity;

use super::*;
use crate::key::Key;
use crate::observed::{Attachment, MountpointPod, Phase, S3Volume, Workload};
use contract::attachment::{AttachmentSpec, WorkloadAttachment};
use contract::mountpoint_pod::StartFailure;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub(super) fn workload(uid: &str) -> Workload {
    Workload {
        uid: uid.into(),
        namespace: "ns".into(),
        name: format!("pod-{uid}"),
        node: "n".into(),
        fs_group: String::new(),
        service_account: "sa".into(),
        claims: vec!["c".into()],
        phase: Phase::Pending,
        terminating: false,
        busy: false,
        has_headroom: false,
        created: None,
    }
}

/// One that runs, made for this workload.
pub(super) fn mountpoint_pod(name: &str, attachment: &str, workload_uid: &str) -> MountpointPod {
    MountpointPod {
        name: name.into(),
        uid: name.into(),
        resource_version: 1,
        node: Some("n".into()),
        phase: Phase::Running,
        created: None,
        terminating: false,
        deleted: None,
        started: true,
        running_since: None,
        needs_unmount: false,
        no_new_workload: false,
        movable: true,
        driver_version: "1".into(),
        attachment: Some(attachment.into()),
        warm: None,
        claimed: false,
        early_mount: None,
        volume_name: Some("pv".into()),
        workload_uid: Some(workload_uid.into()),
        authentication: None,
        cache_mebibytes: None,
        start_failure: None,
        last_end: None,
    }
}

/// One that the scheduler has placed on no node, for this reason.
pub(super) fn unscheduled(name: &str, version: u64, message: &str) -> MountpointPod {
    let failure = StartFailure { reason: "Unschedulable".into(), message: message.into() };
    MountpointPod {
        resource_version: version,
        phase: Phase::Pending,
        node: None,
        started: false,
        start_failure: Some(failure),
        ..mountpoint_pod(name, "a", "w")
    }
}

pub(super) fn volume(options: &str, source: &str) -> S3Volume {
    S3Volume {
        name: "pv".into(),
        handle: "h".into(),
        attributes: BTreeMap::from([("authenticationSource".into(), source.into())]),
        secret: SecretPresence::Absent,
        mount_options: vec![options.into()],
        access_mode: Some("ReadWriteMany".into()),
        claim: Some(("ns".into(), "c".into())),
    }
}

/// As another driver writes it: under a name of its own, without the source of credentials.
pub(super) fn attachment(version: u64, options: &str, pod: &str, uids: &[&str]) -> Attachment {
    let workloads =
        uids.iter().map(|uid| WorkloadAttachment::new(uid, Time(jiff::Timestamp::UNIX_EPOCH))).collect();
    let spec = AttachmentSpec {
        node_name: "n".into(),
        persistent_volume_name: "pv".into(),
        volume_id: "h".into(),
        mount_options: options.into(),
        mountpoint_pods: BTreeMap::from([(pod.to_owned(), workloads)]),
        ..AttachmentSpec::default()
    };
    Attachment {
        name: "a".into(),
        uid: "a".into(),
        resource_version: version,
        spec,
        conditions: vec![],
        terminating: false,
    }
}

fn groups(keys: &[Key]) -> Vec<&str> {
    keys.iter()
        .filter_map(|key| if let Key::Group(name) = key { Some(name.as_str()) } else { None })
        .collect()
}

#[test]
fn whichever_comes_last_makes_the_workload_want() {
    let (mut one, mut other) = (World::default(), World::default());
    assert_eq!(one.set_workload(workload("w")), []);
    let late_volume = one.set_volume(volume("", "driver"));
    assert_eq!(other.set_volume(volume("", "driver")), []);
    let late_workload = other.set_workload(workload("w"));
    assert_eq!(late_volume, late_workload);
    let view = one.view(groups(&late_volume)[0]).unwrap();
    assert_eq!(view.waiting, [workload("w")]);
}

#[test]
fn an_attached_workload_wants_nothing_even_if_its_volume_was_edited() {
    let mut world = World::default();
    world.set_volume(volume("uid=1", "driver"));
    world.set_workload(workload("w"));
    world.set_attachment(attachment(1, "uid=1", "mp", &["w"]));
    let keys = world.set_volume(volume("uid=2", "driver"));
    let waiting: Vec<_> =
        groups(&keys).iter().filter_map(|name| world.view(name)).flat_map(|view| view.waiting).collect();
    assert_eq!(waiting, []);
}

#[test]
fn an_unrecorded_source_is_the_volumes() {
    let mut world = World::default();
    world.set_attachment(attachment(1, "uid=1", "mp", &["other"]));
    world.set_volume(S3Volume { secret: SecretPresence::Present, ..volume("uid=1", "secret") });
    let keys = world.set_workload(workload("w"));
    let view = world.view(groups(&keys)[0]).unwrap();
    assert_eq!((view.attachments.len(), view.waiting.len()), (1, 1), "the workload finds the attachment");
}

#[test]
fn a_volume_that_names_a_secret_is_mounted_with_its_keys_whether_it_says_so_or_not() {
    for (source, identity) in
        [("", Identity::Secret), ("secret", Identity::Secret), ("driver", Identity::Driver)]
    {
        let mut world = World::default();
        world.set_volume(S3Volume { secret: SecretPresence::Present, ..volume("", source) });
        let keys = world.set_workload(workload("w"));
        assert_eq!(world.view(groups(&keys)[0]).unwrap().key.identity, identity, "{source:?}");
    }
}

#[test]
fn a_workload_that_leaves_is_suspected_and_can_be_looked_up() {
    let mut world = World::default();
    world.set_volume(volume("", "driver"));
    world.set_workload(workload("w"));
    world.set_attachment(attachment(1, "", "mp", &["w", "unknown"]));
    let keys = world.remove_workload("w");
    // Another write to the attachment in between does not make us forget where it was.
    world.set_attachment(attachment(2, "", "mp", &["w", "unknown"]));
    let view = world.view(groups(&keys)[0]).unwrap();
    let place = ("ns".to_owned(), "pod-w".to_owned());
    assert_eq!(view.suspects, BTreeMap::from([("w".into(), Some(place)), ("unknown".into(), None)]));
}

#[test]
fn old_news_is_no_news() {
    let mut world = World::default();
    world.set_attachment(attachment(5, "", "mp-2", &["w"]));
    assert_eq!(world.set_attachment(attachment(4, "", "mp-1", &["w"])), []);
    assert!(world.is_named("mp-2") && !world.is_named("mp-1"));
    let keys = world.set_attachment(attachment(6, "", "mp-3", &["w"]));
    assert!(keys.contains(&Key::Pod("mp-2".into())), "no attachment names it any more: {keys:?}");
}

#[test]
fn roles_are_asked_for_and_then_part_of_the_key() {
    let mut world = World::default();
    world.set_volume(volume("", "pod"));
    assert_eq!(world.set_workload(workload("w")), [Key::Role("w".into())]);
    assert_eq!(world.all_keys(), [Key::Role("w".into())], "a later leader looks at it, too");
    let keys = world.set_role("w", "arn".into());
    let view = world.view(groups(&keys)[0]).unwrap();
    let identity = Identity::Pod { namespace: "ns".into(), service_account: "sa".into(), role: "arn".into() };
    assert_eq!(view.key.identity, identity);
    world.remove_workload("w");
    assert_eq!(world.set_role("w", "arn".into()), []);
    assert!(world.roles.is_empty(), "it left while its role was asked for");
}

#[test]
fn a_node_that_comes_wakes_those_who_wait_on_it() {
    let mut world = World::default();
    world.set_volume(volume("", "driver"));
    let wanted = world.set_workload(workload("w"));
    assert_eq!(world.set_node("n".into()), wanted);
    assert_eq!(world.set_node("n".into()), []);
}

#[test]
fn another_mount_of_a_node_waits_for_the_one_that_moves() {
    let (mut world, now) = (World::default(), Time(jiff::Timestamp::UNIX_EPOCH));
    world.set_attachment(attachment(1, "", "mp-2", &["w"]));
    let next = mountpoint_pod("mp-2", "a", "w");
    world.set_pod(MountpointPod { running_since: Some(now.clone()), driver_version: "2".into(), ..next });
    let old = mountpoint_pod("mp", "a", "w");
    world.set_pod(old.clone());
    assert!(!world.begin_upgrade("n", "2", &now));
    assert!(world.begin_upgrade("other", "2", &now));
    world.set_pod(MountpointPod { resource_version: 2, phase: Phase::Succeeded, ..old });
    assert!(world.begin_upgrade("n", "2", &now));
    assert!(!world.begin_upgrade("n", "2", &now), "a decision is under way");
}
