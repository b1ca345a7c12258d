use super::*;
use crate::observed::created;
use contract::sharing::Identity;
use jiff::Timestamp;

const VERSION: &str = "1";

/// A workload on a node, listed with a pod that failed; another one wants the same.
fn group(age: i64, started: bool) -> Group {
    let key = SharingKey {
        node: "node".into(),
        volume_name: "pv".into(),
        volume_id: "bucket".into(),
        mount_options: String::new(),
        fs_group: String::new(),
        identity: Identity::Driver,
    };
    let at = |second| Time(Timestamp::from_second(second).unwrap());
    let pod = MountpointPod {
        node: Some("node".into()),
        phase: Phase::Failed,
        created: Some(at(1000)),
        started,
        driver_version: VERSION.into(),
        authentication: Some(AuthenticationSource::Driver),
        ..created("mp")
    };
    let listed = vec![WorkloadAttachment::new("one", at(1000))];
    let spec = AttachmentSpec { mountpoint_pods: [("mp".to_owned(), listed)].into(), ..key.spec() };
    let attachment = Attachment {
        name: key.attachment_name(),
        uid: "a".into(),
        resource_version: 1,
        spec,
        conditions: Vec::new(),
        terminating: false,
    };
    Group {
        key,
        now: at(1000 + age),
        driver_version: VERSION.into(),
        attachments: vec![attachment],
        waiting: vec!["two".into()],
        with_headroom: BTreeSet::new(),
        detached: vec![],
        gone: BTreeSet::new(),
        ending: BTreeSet::new(),
        pods: [("mp".to_owned(), pod)].into(),
        warm: None,
        early_mount: None,
        authentication: Some(AuthenticationSource::Driver),
        node_gone: false,
        upgrades: false,
    }
}

#[test]
fn a_workload_without_its_attachment_gets_one_with_the_pod_it_has() {
    let mut group = group(0, true);
    group.attachments.clear();
    group.detached = vec![("one".into(), "mp".into())];
    group.pods.get_mut("mp").unwrap().phase = Phase::Running;
    let steps = group.decide();
    let [Step::CreateAttachment { spec, .. }] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!(spec.mountpoint_pod_of("one"), Some("mp"));
    assert_eq!(spec.mountpoint_pod_of("two"), Some("mp"), "and new ones join it");
}

/// How many workloads each pod has, and which are made.
fn outcome(group: &Group) -> (BTreeMap<String, usize>, Vec<String>) {
    let (mut entries, mut made) = (BTreeMap::new(), Vec::new());
    for step in group.decide() {
        match step {
            Step::UpdateAttachment { entries: changed, .. } => {
                entries =
                    changed.into_iter().map(|(pod, all)| (pod, all.map_or(0, |all| all.len()))).collect();
            }
            Step::CreatePod { name, .. } => made.push(name),
            _ => {}
        }
    }
    (entries, made)
}

#[test]
fn a_pod_that_was_turned_away_is_not_replaced_before_its_time() {
    let early = group(5, false);
    assert_eq!(outcome(&early), ([("mp".to_owned(), 2)].into(), vec![]), "the new one waits with it");
    assert_eq!(early.look_again(), Some(Duration::from_secs(10)));
    for group in [group(15, false), group(5, true)] {
        let (entries, made) = outcome(&group);
        assert_eq!(entries, [("mp".to_owned(), 0), ("mp-2".to_owned(), 2)].into());
        assert_eq!(made, ["mp-2"]);
        assert_eq!(group.look_again(), None);
    }
}

/// Deleted `age` seconds ago, with its grace period, while it serves.
fn evicted(age: i64) -> Group {
    let mut group = group(age, true);
    group.waiting.clear();
    let pod = group.pods.get_mut("mp").unwrap();
    pod.phase = Phase::Running;
    pod.terminating = true;
    pod.deleted = pod.created.clone();
    group
}

#[test]
fn an_evicted_pod_is_not_replaced_for_a_workload_that_is_ending() {
    let mut group = evicted(60);
    group.ending.insert("one".into());
    assert_eq!(outcome(&group), (BTreeMap::new(), vec![]));
    assert_eq!(group.look_again(), None);
    group.waiting.push("two".into());
    let (entries, made) = outcome(&group);
    assert_eq!(
        entries.into_iter().collect::<Vec<_>>(),
        [(made[0].clone(), 1)],
        "a new workload gets another"
    );
    group.pods.get_mut("mp").unwrap().phase = Phase::Failed;
    let (entries, _) = outcome(&group);
    assert_eq!(entries, [("mp".to_owned(), 0), ("mp-2".to_owned(), 2)].into(), "it serves no more");
}

/// The eviction of the workload may be seen after that of the pod.
#[test]
fn an_evicted_pod_keeps_its_workloads_for_some_seconds() {
    let early = evicted(4);
    assert_eq!(outcome(&early), (BTreeMap::new(), vec![]));
    assert_eq!(early.look_again(), Some(Duration::from_secs(6)));
    let late = evicted(10);
    assert_eq!(outcome(&late).0, [("mp".to_owned(), 0), ("mp-2".to_owned(), 1)].into());
    assert_eq!(late.look_again(), None);
}

#[test]
fn after_an_upgrade_workloads_move_unless_they_are_ending() {
    let mut group = group(60, true);
    group.waiting.clear();
    group.upgrades = true;
    let pod = group.pods.get_mut("mp").unwrap();
    (pod.phase, pod.movable) = (Phase::Running, true);
    assert_eq!(outcome(&group), (BTreeMap::new(), vec![]), "it is of this version");
    group.pods.get_mut("mp").unwrap().driver_version = "0".into();
    assert_eq!(outcome(&group).1, ["mp-2"]);
    let steps = group.decide();
    assert!(matches!(steps.last(), Some(Step::MarkUnmount { name, .. }) if name == "mp"), "{steps:?}");
    let mut other = group.clone();
    other.ending.insert("one".into());
    assert_eq!(other.decide(), [], "it goes with its workload");
    other = group.clone();
    other.upgrades = false;
    assert_eq!(other.decide(), [], "it is not its turn");
    group.pods.get_mut("mp").unwrap().movable = false;
    assert_eq!(group.decide(), [], "its programs would lose their files");
}

/// Adds a workload to one of the pods of the first attachment.
fn add(group: &mut Group, uid: &str, pod: &str) {
    let workload = WorkloadAttachment::new(uid, group.now.clone());
    group.attachments[0].spec.mountpoint_pods.entry(pod.into()).or_default().push(workload);
}

#[test]
fn workloads_that_share_a_mount_move_together() {
    let mut group = evicted(60);
    add(&mut group, "two", "mp");
    group.ending.insert("two".into());
    assert_eq!(outcome(&group).0, [("mp".to_owned(), 0), ("mp-2".to_owned(), 2)].into());
}

#[test]
fn a_mount_does_not_move_to_a_pod_that_has_another() {
    let mut group = evicted(60);
    group.pods.get_mut("mp").unwrap().movable = true;
    let other =
        MountpointPod { name: "other".into(), terminating: false, deleted: None, ..group.pods["mp"].clone() };
    group.pods.insert("other".into(), other);
    add(&mut group, "two", "other");
    assert_eq!(outcome(&group).0, [("mp".to_owned(), 0), ("mp-2".to_owned(), 1)].into());
    group.pods.get_mut("mp").unwrap().movable = false;
    assert_eq!(outcome(&group).0, [("mp".to_owned(), 0), ("other".to_owned(), 2)].into());
}

/// As a rollback finds it.
#[test]
fn a_pod_of_another_version_that_does_not_start_is_replaced() {
    let mut group = group(60, false);
    group.waiting.clear();
    group.upgrades = true;
    let pod = group.pods.get_mut("mp").unwrap();
    (pod.phase, pod.movable, pod.driver_version) = (Phase::Pending, true, "2".into());
    assert_eq!(outcome(&group).1, ["mp-2"]);
}

/// One of the reference driver or of an older version.
#[test]
fn an_adopted_pod_gets_a_record_of_what_its_volume_asks_for() {
    use AuthenticationSource::{Driver, Secret};
    let records = |recorded, asked| {
        let mut group = group(60, true);
        group.waiting.clear();
        group.authentication = asked;
        let pod = group.pods.get_mut("mp").unwrap();
        (pod.phase, pod.authentication) = (Phase::Running, recorded);
        group.decide()
    };
    let record = |source| vec![Step::RecordAuthentication { name: "mp".into(), uid: "mp".into(), source }];
    assert_eq!(records(None, Some(Driver)), record(Driver));
    assert_eq!(records(None, Some(Secret)), record(Secret));
    assert_eq!(records(Some(Driver), Some(Secret)), record(Secret), "as the volume says, not the attachment");
    assert_eq!(records(Some(Secret), Some(Secret)), []);
    assert_eq!(records(None, None), [], "without the volume, there is nothing to record");
}

#[test]
fn a_warm_pod_is_claimed_before_an_attachment_names_it_and_shared() {
    let mut group = Group { attachments: vec![], pods: BTreeMap::new(), ..group(0, false) };
    group.waiting = vec!["one".into(), "two".into()];
    group.warm = Some(MountpointPod { resource_version: 7, ..created("mp-warm") });
    let steps = group.decide();
    let [Step::ClaimPod { name, resource_version: 7, .. }, Step::CreateAttachment { spec, .. }] =
        steps.as_slice()
    else {
        panic!("{steps:?}");
    };
    let pods = ["one", "two"].map(|uid| spec.mountpoint_pod_of(uid));
    assert_eq!((name.as_str(), pods), ("mp-warm", [Some("mp-warm"); 2]));
    group.warm = None;
    let names: Vec<&str> = group.decide().iter().map(Step::name).collect();
    assert_eq!(names, ["create_attachment", "create_pod"], "the usual way");
}
