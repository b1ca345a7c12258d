use super::*;
use serde_json::{Value, json};

fn pod(value: Value) -> SlimPod {
    serde_json::from_value(value).unwrap()
}

#[test]
fn a_workload_is_scheduled_and_has_claims() {
    let spec = |node: Option<&str>, volumes: Value| {
        Workload::of(&pod(json!({
            "metadata": {"name": "w", "namespace": "ns", "uid": "u"},
            "spec": {"nodeName": node, "volumes": volumes, "securityContext": {"fsGroup": 2000}, "containers": []},
        })))
    };
    let claim = json!([{"name": "a", "persistentVolumeClaim": {"claimName": "c"}}]);
    assert_eq!(spec(None, claim.clone()), None);
    assert_eq!(spec(Some("n"), json!([{"name": "a", "emptyDir": {}}])), None);
    let workload = spec(Some("n"), claim).unwrap();
    assert_eq!((workload.claims, workload.fs_group.as_str()), (vec!["c".to_owned()], "2000"));
    assert_eq!(workload.service_account, "default");
    let ephemeral =
        spec(Some("n"), json!([{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]));
    assert_eq!(ephemeral.unwrap().claims, ["w-scratch"]);
}

#[test]
fn life_ends_when_no_io_is_possible_any_more() {
    let workload = |phase, terminating| {
        let slim = pod(json!({
            "metadata": {"name": "w", "namespace": "ns", "uid": "u"},
            "spec": {"nodeName": "n", "volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "c"}}]},
        }));
        Workload { phase, terminating, ..Workload::of(&slim).unwrap() }
    };
    let preparing = Workload { busy: true, ..workload(Phase::Pending, true) };
    assert!(preparing.is_alive(), "an init container may be at work");
    for (phase, terminating, alive, awaits) in [
        (Phase::Pending, false, true, true),
        (Phase::Pending, true, false, false),
        (Phase::Running, false, true, false),
        (Phase::Running, true, true, false),
        (Phase::Unknown, true, true, false),
        (Phase::Succeeded, false, false, false),
        (Phase::Failed, true, false, false),
    ] {
        let workload = workload(phase, terminating);
        assert_eq!(
            (workload.is_alive(), workload.awaits_volumes()),
            (alive, awaits),
            "{phase:?} {terminating}"
        );
    }
}

#[test]
fn only_bound_volumes_of_our_driver_have_a_claim() {
    let volume = |driver: &str, phase: &str| {
        let slim: SlimVolume = serde_json::from_value(json!({
            "metadata": {"name": "pv"},
            "spec": {
                "csi": {"driver": driver, "volumeHandle": "h", "volumeAttributes": {"bucketName": "b"}},
                "claimRef": {"namespace": "ns", "name": "c", "uid": "x"}, "mountOptions": ["uid=1"],
            },
            "status": {"phase": phase},
        }))
        .unwrap();
        S3Volume::of(&slim)
    };
    assert_eq!(volume("other.csi", "Bound"), None);
    assert_eq!(volume(DRIVER, "Bound").unwrap().claim, Some(("ns".to_owned(), "c".to_owned())));
    assert_eq!(volume(DRIVER, "Released").unwrap().claim, None);
}

#[test]
fn what_only_the_kubelet_knows_is_not_mounted_early() {
    let early = |mode: &str, secret: Value, bucket: &str| {
        let attributes = json!({"bucketName": bucket});
        let csi = json!({"driver": DRIVER, "volumeHandle": "h", "volumeAttributes": attributes,
            "nodePublishSecretRef": secret});
        let spec = json!({"csi": csi, "accessModes": [mode], "mountOptions": ["uid=1"]});
        let slim = json!({"metadata": {"name": "pv"}, "spec": spec});
        S3Volume::of(&serde_json::from_value(slim).unwrap()).unwrap().early_mount()
    };
    let usual = early("ReadWriteMany", json!(null), "b").unwrap();
    assert_eq!(
        (usual.attributes["bucketName"].as_str(), usual.mount_options),
        ("b", vec!["uid=1".to_owned()])
    );
    assert_eq!(early("ReadWriteMany", json!({"namespace": "ns", "name": "keys"}), "b"), None);
    assert_eq!(early("ReadWriteMany", json!(null), &"b".repeat(3000)), None);
    assert_eq!(early("AnotherMode", json!(null), "b"), None);
    let options = |mode: &str| early(mode, json!(null), "b").unwrap().mount_options;
    assert_eq!(options("ReadOnlyMany"), ["uid=1", "read-only"]);
    assert_eq!(options("ReadWriteOncePod"), ["uid=1"]);
}

#[test]
fn a_volume_names_its_secret_or_none() {
    let secret = |reference: Value| {
        let csi = json!({"driver": DRIVER, "volumeHandle": "h", "nodePublishSecretRef": reference});
        let slim = json!({"metadata": {"name": "pv"}, "spec": {"csi": csi}});
        S3Volume::of(&serde_json::from_value(slim).unwrap()).unwrap().secret
    };
    assert_eq!(secret(json!(null)), SecretPresence::Absent);
    assert_eq!(secret(json!({"namespace": "ns", "name": "keys"})), SecretPresence::Present);
}
