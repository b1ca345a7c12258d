use super::*;
use serde_json::{Value, json};

fn pod(status: &Value) -> MountpointPod {
    let pod: SlimPod = serde_json::from_value(json!({
        "metadata": {
            "name": "mp-1", "uid": "u", "resourceVersion": "7", "labels": {label::DRIVER_VERSION: "1"},
            "annotations": {
                annotation::VOLUME_NAME: "pv", annotation::NEEDS_UNMOUNT: "true",
                annotation::AUTHENTICATION_SOURCE: "secret",
            },
        },
        "spec": {
            "nodeName": "n", "containers": [],
            "volumes": [{"name": "local-cache", "emptyDir": {"sizeLimit": "1Gi"}}],
        },
        "status": status,
    }))
    .unwrap();
    MountpointPod::of(&pod).unwrap()
}

fn waiting(state: &Value, last_state: &Value) -> Option<String> {
    let container = json!({"name": "m", "state": {"waiting": state}, "lastState": last_state});
    let failure = pod(&json!({"phase": "Pending", "containerStatuses": [container]})).start_failure;
    failure.map(|failure| failure.to_string())
}

#[test]
fn its_labels_annotations_and_cache_are_read() {
    let pod = pod(&json!({"phase": "Running"}));
    assert_eq!((pod.node.as_deref(), pod.volume_name.as_deref()), (Some("n"), Some("pv")));
    assert_eq!((pod.resource_version, pod.authentication), (7, Some(AuthenticationSource::Secret)));
    assert!(pod.needs_unmount && pod.started && pod.is_ending() && !pod.has_ended());
    assert_eq!((pod.start_failure, pod.cache_mebibytes), (None, Some(972)));
}

#[test]
fn it_runs_since_its_container_does() {
    let since = |state: &Value| {
        let container = json!({"name": "m", "state": state});
        pod(&json!({"phase": "Running", "containerStatuses": [container]})).running_since
    };
    let time: Time = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(since(&json!({"running": {"startedAt": time}})), Some(time));
    assert_eq!(since(&json!({"running": {}})), None);
    assert_eq!(since(&json!({"waiting": {"reason": "CrashLoopBackOff"}})), None);
}

#[test]
fn a_claimed_pod_is_known_by_what_may_be_mounted_early() {
    let claimed = |annotations: &Value| {
        let labels = json!({label::DRIVER_VERSION: "1"});
        let metadata = json!({"name": "mp-1", "uid": "u", "labels": labels, "annotations": annotations});
        let pod = MountpointPod::of(&serde_json::from_value(json!({"metadata": metadata})).unwrap()).unwrap();
        (pod.claimed, pod.early_mount.is_some())
    };
    let early = EarlyMount { attributes: BTreeMap::new(), mount_options: vec![] };
    assert_eq!(claimed(&json!({annotation::EARLY_MOUNT: json!(early).to_string()})), (true, true));
    assert_eq!(claimed(&json!({annotation::EARLY_MOUNT: "null"})), (true, false));
    assert_eq!(claimed(&json!({})), (false, false));
}

#[test]
fn a_pod_without_our_label_is_not_ours() {
    let pod: SlimPod = serde_json::from_value(json!({"metadata": {"name": "x", "uid": "u"}})).unwrap();
    assert_eq!(MountpointPod::of(&pod), None);
}

#[test]
fn a_waiting_container_fails_unless_it_is_starting() {
    let because = |reason: &str| json!({"reason": reason, "message": "because"});
    assert_eq!(waiting(&because("ContainerCreating"), &json!({})), None);
    assert_eq!(waiting(&json!({}), &json!({})), None, "no reason is no verdict");
    assert_eq!(waiting(&because(""), &json!({})), None);
    let pull = waiting(&because("ImagePullBackOff"), &json!({}));
    assert_eq!(pull.as_deref(), Some("ImagePullBackOff: because"));
    assert_eq!(waiting(&json!({"reason": "NewProblem"}), &json!({})).as_deref(), Some("NewProblem"));
    let ended = json!({"terminated": {"exitCode": 1, "message": "no bucket"}});
    let crash = waiting(&because("CrashLoopBackOff"), &ended);
    assert_eq!(crash.as_deref(), Some("CrashLoopBackOff: no bucket"));
}

#[test]
fn a_failed_or_unscheduled_pod_has_a_reason() {
    let failure = |status: &Value| pod(status).start_failure.map(|failure| failure.to_string());
    assert_eq!(failure(&json!({"phase": "Pending"})), None);
    assert_eq!(failure(&json!({"phase": "Failed", "reason": "Evicted"})).as_deref(), Some("Evicted"));
    assert_eq!(failure(&json!({"phase": "Failed"})).as_deref(), Some("Failed"));
    let condition =
        json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"});
    let unschedulable = failure(&json!({"phase": "Pending", "conditions": [condition]}));
    assert_eq!(unschedulable.as_deref(), Some("Unschedulable: full"));
}

#[test]
fn the_last_end_of_its_container_is_that_of_the_present_one_or_of_the_one_before() {
    let end = |hour: u32, message: &str| {
        let at = format!("2026-01-01T{hour:02}:00:00Z");
        json!({"terminated": {"exitCode": 1, "reason": "Error", "message": message, "finishedAt": at}})
    };
    let last = |state: Value, last_state: Value| {
        let container = json!({"name": "m", "state": state, "lastState": last_state});
        pod(&json!({"phase": "Running", "containerStatuses": [container]})).last_end
    };
    assert_eq!(last(json!({"running": {}}), json!({})), None);
    let before = last(json!({"running": {}}), end(1, "")).unwrap();
    let present = last(end(2, "no\nbucket"), end(1, "")).unwrap();
    assert_eq!([before.to_string(), present.to_string()], ["Error", "Error: no bucket"]);
    assert!(before.at < present.at);
}
