//! The manifests of volumes and pods that use them, as users would write them.

use contract::names::DRIVER;
use serde_json::{Value, json};
use xtask::image::BUSYBOX;

/// A volume for a bucket, reserved for the claim of the same name.
pub fn volume(name: &str, namespace: &str, bucket: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": "",
            "mountOptions": ["allow-delete"], "claimRef": {"namespace": namespace, "name": name},
            "csi": {"driver": DRIVER, "volumeHandle": name, "volumeAttributes": {"bucketName": bucket}},
        },
    })
}

/// The claim for such a volume.
pub fn claim(volume: &Value) -> Value {
    let name = &volume["metadata"]["name"];
    json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": volume["spec"]["accessModes"], "storageClassName": "", "volumeName": name,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

/// The spec of a pod that runs a script and mounts these claims at `/data`, `/data1`, `/data2`, …
pub fn pod(claims: &[&str], script: &str) -> Value {
    let path = |number: usize| if number == 0 { "/data".to_owned() } else { format!("/data{number}") };
    let mounts: Vec<Value> = claims
        .iter()
        .enumerate()
        .map(|(number, claim)| json!({"name": claim, "mountPath": path(number)}))
        .collect();
    let volumes: Vec<Value> = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
        .collect();
    let container = json!({
        "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", script],
        "volumeMounts": mounts,
    });
    json!({"containers": [container], "volumes": volumes})
}
