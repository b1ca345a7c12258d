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
        detached: vec![],
        gone: BTreeSet::new(),
        pods: [("mp".to_owned(), pod)].into(),
        warm: None,
        early_mount: None,
        node_gone: false,
    }
}

#[test]
fn whoever_lost_its_attachment_gets_one_with_the_pod_it_has() {
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
