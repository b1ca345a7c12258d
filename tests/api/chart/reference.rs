//! A file of values of the reference's chart works unchanged.

use std::collections::BTreeSet;
use std::path::Path;

use s3_csi_tests::Stage;
use serde_json::{Value, json};
use xtask::driver;

use super::{find, objects_of, pods, variable};

/// Every object that the reference's values install, in a namespace that is there: a server that only looks makes none.
fn objects_of_the_reference(stage: &Stage, values: &[&str]) -> Vec<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("api/reference-values.yaml");
    let namespace = format!("mountpointPod.namespace={}", stage.here.namespace);
    let values: Vec<&str> = values.iter().copied().chain([namespace.as_str()]).collect();
    objects_of(stage, Some(&file), &values)
}

#[tokio::test]
async fn values_of_the_reference_are_taken() {
    let stage = Stage::set("chart-reference").await;
    let objects = objects_of_the_reference(&stage, &[]);
    let [node, controller] = pods(&objects);
    for (pod, selector) in [
        (node, json!({"kubernetes.io/os": "linux", "disk": "fast"})),
        (controller, json!({"kubernetes.io/os": "linux", "pool": "system"})),
    ] {
        let container = &pod["containers"][0];
        assert_eq!(container["image"], "s3-csi.test/mirrored/driver:7");
        assert_eq!(container["imagePullPolicy"], "Always");
        let resources = json!({"requests": {"cpu": "20m", "memory": "50Mi"}, "limits": {"memory": "300Mi"}});
        assert_eq!(container["resources"], resources);
        assert_eq!(pod["imagePullSecrets"], json!([{"name": "mirror"}]));
        assert_eq!(pod["nodeSelector"], selector);
        let dedicated = json!({"key": "example.com/dedicated", "operator": "Equal", "value": "buckets", "effect": "NoSchedule"});
        assert_eq!(pod["tolerations"], json!([dedicated]));
        let required = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(required["nodeSelectorTerms"][0]["matchExpressions"][0]["key"], "example.com/buckets");
        let volumes = pod["volumes"].as_array().unwrap();
        let credentials = volumes.iter().find(|one| one["name"] == "credentials").unwrap();
        assert_eq!(credentials["secret"]["secretName"], "keys");
        assert_eq!(credentials["secret"]["items"][2], json!({"key": "token", "path": "session_token"}));
    }
    assert_eq!(controller["containers"][0]["securityContext"]["seLinuxOptions"], json!({"level": "s2"}));
    assert_eq!(variable(&node["containers"][0], "KUBELET_PATH"), "/data/kubelet");
    assert_eq!(variable(&node["containers"][0], "LOG_LEVEL"), "debug");
    let volumes = node["volumes"].as_array().unwrap();
    assert!(volumes.iter().any(|one| one["name"] == "more"), "{volumes:?}");

    let account = find(&objects, "ServiceAccount", "node-account");
    assert_eq!(account["metadata"]["annotations"]["example.com/role"], "node");
    // The account's token is for the driver alone.
    assert_eq!(account["automountServiceAccountToken"], json!(false));
    assert_eq!(node["automountServiceAccountToken"], json!(true));
    let account = find(&objects, "ServiceAccount", "controller-account");
    assert_eq!(account["metadata"]["annotations"]["example.com/role"], "controller");

    let daemons = find(&objects, "DaemonSet", "s3-csi-node");
    let labels = &daemons["spec"]["template"]["metadata"]["labels"];
    assert_eq!(daemons["spec"]["selector"]["matchLabels"], json!({"app": "s3-csi-node"}));
    assert_eq!(labels["app"], "s3-csi-node");
    assert_eq!(labels["team"], "storage");
    assert_eq!(labels["app.kubernetes.io/name"], "buckets");

    let authorities: Vec<&Value> = objects.iter().filter(|one| one["kind"] == "ConfigMap").collect();
    let places: BTreeSet<_> = authorities.iter().map(|one| one["metadata"]["namespace"].as_str()).collect();
    assert_eq!(places, BTreeSet::from([Some(driver::NAMESPACE), Some(stage.here.namespace.as_str())]));
    for authority in authorities {
        assert_eq!(authority["metadata"]["name"], "authority");
        let certificates = authority["data"]["ca-bundle.crt"].as_str().unwrap();
        assert!(certificates.starts_with("-----BEGIN CERTIFICATE-----\n"), "{certificates}");
    }
}

#[tokio::test]
async fn values_of_the_reference_are_taken_with_ours() {
    let stage = Stage::set("chart-mixture").await;
    let objects = objects_of_the_reference(
        &stage,
        &[
            "sidecars.enabled=true",
            "node.tolerateAllTaints=true",
            "node.serviceAccount.create=false",
            "controller.serviceAccount.create=false",
        ],
    );
    let [node, controller] = pods(&objects);
    assert_eq!(node["tolerations"], json!([{"operator": "Exists"}]));
    assert!(objects.iter().all(|one| one["kind"] != "ServiceAccount"), "{objects:?}");
    for (container, image) in [
        (&node["containers"][1], "s3-csi.test/mirrored/registrar:v1"),
        (&node["containers"][2], "s3-csi.test/mirrored/probe:v1"),
        (&controller["containers"][1], "s3-csi.test/mirrored/provisioner:v1"),
    ] {
        assert_eq!(container["image"], image);
        assert_eq!(container["resources"]["limits"]["memory"], "300Mi");
    }
}
