//! What is written is what csi-provisioner writes, and what it wrote is understood.

use contract::names::DRIVER;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams, PostParams};
use s3_csi_tests::claims::Tenant;
use s3_csi_tests::controller;
use serde_json::{Value, json};
use xtask::s3::{ALICE, BOB, Client, ENDPOINT};

/// Every field of a volume that csi-provisioner writes for this claim and class; `*` is any text.
#[tokio::test]
async fn a_volume_is_what_csi_provisioner_would_write() {
    let tenant = Tenant::set("objects", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    tenant.keys("make", ALICE).await;
    let mut parameters = tenant.provisioner_secret("make");
    parameters["csi.storage.k8s.io/node-publish-secret-name"] = json!("use-${pvc.name}");
    parameters["csi.storage.k8s.io/node-publish-secret-namespace"] = json!("${pvc.namespace}");
    tenant.class("full", parameters, json!({"mountOptions": ["allow-delete", "uid=1000"]})).await;
    let claim = tenant.claim("data", "full").await;
    let volume = serde_json::to_value(tenant.bound("data").await).unwrap();
    let namespace = &tenant.here.namespace;
    let uid = claim.uid().unwrap();
    let handle = volume["spec"]["csi"]["volumeHandle"].clone();
    let table = [
        ("/metadata/name", json!(format!("pvc-{uid}"))),
        (
            "/metadata/annotations",
            json!({
                "pv.kubernetes.io/provisioned-by": DRIVER,
                "volume.kubernetes.io/provisioner-deletion-secret-name": "make",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": namespace,
            }),
        ),
        (
            "/metadata/finalizers",
            json!(["external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-protection"]),
        ),
        ("/metadata/labels", Value::Null),
        ("/spec/accessModes", json!(["ReadWriteMany"])),
        ("/spec/capacity", json!({"storage": "5Gi"})),
        ("/spec/claimRef/apiVersion", json!("v1")),
        ("/spec/claimRef/kind", json!("PersistentVolumeClaim")),
        ("/spec/claimRef/namespace", json!(namespace)),
        ("/spec/claimRef/name", json!("data")),
        ("/spec/claimRef/uid", json!(uid)),
        ("/spec/claimRef/resourceVersion", json!("*")),
        ("/spec/csi/driver", json!(DRIVER)),
        ("/spec/csi/fsType", Value::Null),
        ("/spec/csi/readOnly", Value::Null),
        ("/spec/csi/nodePublishSecretRef", json!({"name": "use-data", "namespace": namespace})),
        ("/spec/csi/controllerPublishSecretRef", Value::Null),
        (
            "/spec/csi/volumeAttributes",
            json!({
                "authenticationSource": "secret", "bucketName": handle, "dynamicProvisioning": "true",
                "storage.kubernetes.io/csiProvisionerIdentity": "*",
            }),
        ),
        ("/spec/mountOptions", json!(["allow-delete", "uid=1000"])),
        ("/spec/nodeAffinity", Value::Null),
        ("/spec/persistentVolumeReclaimPolicy", json!("Delete")),
        ("/spec/storageClassName", json!(tenant.class_name("full"))),
        ("/spec/volumeMode", json!("Filesystem")),
    ];
    for (field, expected) in table {
        let found = volume.pointer(field).cloned().unwrap_or(Value::Null);
        assert!(matches(&found, &expected), "{field} is {found}, expected {expected}");
    }
    let claim = tenant.claims().get("data").await.unwrap();
    assert_eq!(claim.finalizers(), ["kubernetes.io/pvc-protection"], "nothing of ours is left on the claim");
    assert!(claim.annotations().keys().all(|key| !key.starts_with(DRIVER)), "{:?}", claim.annotations());
}

fn matches(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::String(found), Value::String(expected)) if expected == "*" => !found.is_empty(),
        (Value::Object(found), Value::Object(expected)) => {
            found.len() == expected.len()
                && expected
                    .iter()
                    .all(|(key, value)| found.get(key).is_some_and(|found| matches(found, value)))
        }
        _ => found == expected,
    }
}

/// A volume as csi-provisioner v5.3 leaves it in a cluster of the reference driver, whose bucket belongs to the account
/// of the Secret that its annotations name.
#[tokio::test]
async fn a_volume_of_csi_provisioner_is_deleted_with_its_bucket() {
    let tenant = Tenant::set("adopted", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    tenant.keys("bobs-keys", BOB).await;
    let bob = Client::new(ENDPOINT, BOB).unwrap();
    let bucket = "csi-s3-7d0f3f5e-52a5-4a0a-9df0-6b6f0f9a4c11";
    bob.create_bucket(bucket).unwrap();
    let name = "pvc-0b8de1f7-5d0e-4b43-8f4c-3b1c2f0d9a77";
    let volume = json!({
        "metadata": {
            "name": name,
            "annotations": {
                "pv.kubernetes.io/provisioned-by": DRIVER,
                "volume.kubernetes.io/provisioner-deletion-secret-name": "bobs-keys",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": tenant.here.namespace,
            },
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
        },
        "spec": {
            "accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "s3", "volumeMode": "Filesystem",
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": tenant.here.namespace, "name": "old",
                "uid": "0b8de1f7-5d0e-4b43-8f4c-3b1c2f0d9a77", "resourceVersion": "512",
            },
            "csi": {
                "driver": DRIVER, "volumeHandle": bucket,
                "volumeAttributes": {
                    "authenticationSource": "secret", "bucketName": bucket, "dynamicProvisioning": "true",
                    "storage.kubernetes.io/csiProvisionerIdentity": "1752000000000-4711-s3.csi.scality.com",
                },
            },
        },
    });
    let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
    tenant.volumes().create(&PostParams::default(), &volume).await.unwrap();
    // Its claim is gone, and the binder has found that out.
    let released = Patch::Merge(json!({"status": {"phase": "Released"}}));
    let _ = tenant.volumes().patch_status(name, &PatchParams::default(), &released).await;
    tenant.volume_gone(name).await;
    assert!(!bob.buckets().unwrap().contains(&bucket.to_owned()));
}
