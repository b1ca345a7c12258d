//! What the page on provisioning says of class parameters is what becomes of them.

use controller::provision::claims::claim::Claim;
use controller::provision::new_volume::NewVolume;
use controller::provision::s3::endpoint::Endpoint;
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};

use super::{first_cell, rows, spans};

/// The volume of a class with these parameters.
fn volume(parameters: &Value) -> Value {
    let claim = json!({
        "metadata": {
            "namespace": "ns", "name": "data", "uid": "1", "resourceVersion": "7",
            "annotations": {"volume.kubernetes.io/storage-provisioner": "s3.csi.scality.com"},
        },
        "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": "s3",
            "resources": {"requests": {"storage": "5Gi"}},
        },
    });
    let class =
        json!({"metadata": {"name": "s3"}, "provisioner": "s3.csi.scality.com", "parameters": parameters});
    let claim = Claim::of(&serde_json::from_value(claim).unwrap()).unwrap();
    let class: StorageClass = serde_json::from_value(class).unwrap();
    let endpoint = Endpoint::parse("http://s3.test", "").unwrap();
    let new = NewVolume::of_claim(&claim, &class, &endpoint).unwrap();
    serde_json::to_value(new.persistent_volume(&claim, &class, "1-2-us")).unwrap()
}

#[test]
fn parameters_that_are_attributes_reach_the_volume() {
    let in_memory = json!({
        "authenticationSource": "pod", "stsRegion": "eu-west-1",
        "mountpointEnv.HTTPS_PROXY": "http://proxy.test:3128", "mountpointEnv.NO_PROXY": ".internal",
        "cache": "emptyDir", "cacheEmptyDirSizeLimit": "1Gi", "cacheEmptyDirMedium": "Memory",
        "mountpointContainerResourcesRequestsCpu": "100m", "mountpointContainerResourcesLimitsCpu": "1",
        "mountpointContainerResourcesRequestsMemory": "64Mi", "mountpointContainerResourcesLimitsMemory": "2Gi",
        "mountpointPodServiceAccountName": "mounts",
    });
    let on_disk = json!({
        "cache": "ephemeral", "cacheEphemeralStorageClassName": "disk",
        "cacheEphemeralStorageResourceRequest": "10Gi",
    });
    for parameters in [&in_memory, &on_disk] {
        let attributes = volume(parameters)["spec"]["csi"]["volumeAttributes"].clone();
        for (name, value) in parameters.as_object().unwrap() {
            assert_eq!(attributes[name], *value, "{name}: {attributes}");
        }
    }
    let page = include_str!("../../../docs/provisioning.md");
    let mut rows = rows(page).into_iter();
    let row = rows.find(|row| row.contains("the same as the [volume attributes]")).unwrap();
    for name in spans(first_cell(row)) {
        assert!(in_memory.get(name).or(on_disk.get(name)).is_some(), "`{name}` is not tried");
    }
}
