//! Binding modes, reclaim policies, and what is refused.

use contract::names::DRIVER;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use s3_csi_tests::claims::{LIMIT, Tenant, handle};
use s3_csi_tests::{Seen, controller, eventually};
use serde_json::json;
use xtask::s3::ALICE;

#[tokio::test]
async fn a_claim_gets_a_bucket_and_takes_it_along() {
    let tenant = Tenant::set("claim", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    tenant.class("plain", json!({}), json!({"mountOptions": ["allow-delete"]})).await;
    tenant.claim("data", "plain").await;
    let volume = tenant.bound("data").await;
    let bucket = handle(&volume);
    assert!(tenant.has_bucket(&bucket));
    assert_eq!(volume.spec.as_ref().unwrap().mount_options, Some(vec!["allow-delete".to_owned()]));
    tenant.has_event("data", &["Provisioning:", &bucket]).await;
    tenant.has_event("data", &["ProvisioningSucceeded:", &volume.name_any()]).await;
    tenant.delete("data").await;
    tenant.volume_gone(&volume.name_any()).await;
    assert!(!tenant.has_bucket(&bucket));
}

#[tokio::test]
async fn a_bucket_with_objects_is_kept_and_reported() {
    let tenant = Tenant::set("kept", ALICE).await;
    let controller = controller::shared(&tenant.here.client).await;
    tenant.class("plain", json!({"bucketNamePrefix": "kept"}), json!({})).await;
    tenant.claim("data", "plain").await;
    let volume = tenant.bound("data").await;
    let bucket = handle(&volume);
    assert!(bucket.starts_with("kept-csi-s3-"), "{bucket}");
    tenant.server.put(&bucket, "precious", b"x").unwrap();
    tenant.delete("data").await;
    tenant.volume_gone(&volume.name_any()).await;
    tenant.has_event(&volume.name_any(), &["BucketKept:", &bucket, "is not empty"]).await;
    assert_eq!(tenant.server.get(&bucket, "precious").unwrap(), b"x");
    controller.as_ref().unwrap().counts("s3_csi_controller_buckets_kept_total{reason=\"not_empty\"}").await;
}

#[tokio::test]
async fn a_class_that_waits_for_a_pod_gets_its_bucket_with_the_node() {
    let tenant = Tenant::set("waiting", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    tenant.class("late", json!({}), json!({"volumeBindingMode": "WaitForFirstConsumer"})).await;
    tenant.claim("data", "late").await;
    // The cluster's binder names us only together with a node: even so, it is the node that is waited for.
    let named = json!({"metadata": {"annotations": {"volume.kubernetes.io/storage-provisioner": DRIVER}}});
    tenant.claims().patch("data", &PatchParams::default(), &Patch::Merge(named)).await.unwrap();
    tenant.stays_unbound("data").await;
    let selected = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "node-1"}}});
    tenant.claims().patch("data", &PatchParams::default(), &Patch::Merge(selected)).await.unwrap();
    let volume = tenant.bound("data").await;
    assert!(tenant.has_bucket(&handle(&volume)));
}

#[tokio::test]
async fn a_retained_volume_keeps_its_bucket() {
    let tenant = Tenant::set("retained", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    tenant.class("keep", json!({}), json!({"reclaimPolicy": "Retain"})).await;
    tenant.claim("data", "keep").await;
    let volume = tenant.bound("data").await;
    assert!(!volume.finalizers().iter().any(|finalizer| finalizer.starts_with("external-provisioner")));
    tenant.delete("data").await;
    eventually("the volume is released", LIMIT, || async {
        let volume = tenant.volumes().get(&volume.name_any()).await.unwrap();
        let phase = volume.status.and_then(|status| status.phase).unwrap_or_default();
        Seen::some((phase == "Released").then_some(()), phase)
    })
    .await;
    tenant.volumes().delete(&volume.name_any(), &DeleteParams::default()).await.unwrap();
    tenant.volume_gone(&volume.name_any()).await;
    assert!(tenant.has_bucket(&handle(&volume)));
}

#[tokio::test]
async fn the_policy_that_counts_is_the_volumes_own() {
    let tenant = Tenant::set("changed", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    tenant.class("plain", json!({}), json!({})).await;
    tenant.class("keep", json!({}), json!({"reclaimPolicy": "Retain"})).await;
    for (claim, class, policy) in [("to-retain", "plain", "Retain"), ("to-delete", "keep", "Delete")] {
        tenant.claim(claim, class).await;
        let volume = tenant.bound(claim).await;
        let changed = Patch::Merge(json!({"spec": {"persistentVolumeReclaimPolicy": policy}}));
        tenant.volumes().patch(&volume.name_any(), &PatchParams::default(), &changed).await.unwrap();
        eventually(&format!("the finalizer follows {policy}"), LIMIT, || async {
            let volume = tenant.volumes().get(&volume.name_any()).await.unwrap();
            let kept =
                volume.finalizers().iter().any(|finalizer| finalizer.starts_with("external-provisioner"));
            Seen::some((kept == (policy == "Delete")).then_some(()), format!("{:?}", volume.finalizers()))
        })
        .await;
    }
}

#[tokio::test]
async fn a_volume_deleted_by_hand_does_not_leave_its_bucket() {
    let tenant = Tenant::set("by-hand", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    tenant.class("plain", json!({}), json!({})).await;
    tenant.claim("data", "plain").await;
    let volume = tenant.bound("data").await;
    tenant.volumes().delete(&volume.name_any(), &DeleteParams::default()).await.unwrap();
    tenant.delete("data").await;
    tenant.volume_gone(&volume.name_any()).await;
    assert!(!tenant.has_bucket(&handle(&volume)));
}

#[tokio::test]
async fn what_no_bucket_can_be_is_refused_in_words() {
    let tenant = Tenant::set("refused", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    tenant.class("plain", json!({}), json!({})).await;
    tenant.class("typo", json!({"bucketPrefix": "x"}), json!({})).await;
    tenant.class("elsewhere", json!({"endpoint": "http://other.test"}), json!({})).await;
    tenant.class("named", json!({"bucketName": "My_Bucket"}), json!({})).await;
    let half = json!({
        "csi.storage.k8s.io/provisioner-secret-name": "keys",
        "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
    });
    tenant.class("half", half, json!({})).await;
    let source = json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "other"}});
    tenant.claim_with("copied", "plain", source).await;
    tenant.claim_with("block", "plain", json!({"volumeMode": "Block"})).await;
    tenant.claim_with("selected", "plain", json!({"selector": {"matchLabels": {"a": "b"}}})).await;
    tenant.claim("mistyped", "typo").await;
    tenant.claim("misled", "elsewhere").await;
    tenant.claim("misnamed", "named").await;
    tenant.claim("unmountable", "half").await;
    for (claim, words) in [
        ("copied", "remove the claim's `dataSource`"),
        ("block", "use `volumeMode: Filesystem`"),
        ("selected", "selector"),
        ("mistyped", "unknown parameter `bucketPrefix`; known parameters: bucketName"),
        ("misnamed", "invalid `bucketName` \"My_Bucket\""),
        ("unmountable", "add `csi.storage.k8s.io/node-publish-secret-name`"),
        ("misled", "is not the driver's endpoint `http://s3.test`"),
    ] {
        tenant.has_event(claim, &["ProvisioningFailed:", words]).await;
        let claim = tenant.claims().get(claim).await.unwrap();
        assert_eq!(claim.finalizers(), ["kubernetes.io/pvc-protection"], "nothing was begun");
    }
    assert!(tenant.volumes_here().await.is_empty());
}

#[tokio::test]
async fn what_is_not_ours_is_left_alone() {
    let tenant = Tenant::set("others", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    tenant.class("other", json!({}), json!({"provisioner": "other.csi.test"})).await;
    tenant.claim("theirs", "other").await;
    // A volume populator has to provide this one's volume.
    tenant.class("plain", json!({}), json!({})).await;
    let source = json!({"apiGroup": "example.com", "kind": "Backup", "name": "b"});
    tenant.claim_with("populated", "plain", json!({"dataSourceRef": source})).await;
    // A volume with a bucket that an administrator made, and `Delete`; it was not provisioned.
    tenant.server.create_bucket("precious-bucket").unwrap();
    let volume = json!({
        "metadata": {"name": "precious"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": tenant.here.namespace, "name": "gone", "uid": "gone"},
            "csi": {"driver": DRIVER, "volumeHandle": "precious-bucket", "volumeAttributes": {"bucketName": "precious-bucket"}},
        },
    });
    let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
    tenant.volumes().create(&PostParams::default(), &volume).await.unwrap();
    // Not before it is released does anything threaten it.
    eventually("the volume is released", LIMIT, || async {
        let status = tenant.volumes().get("precious").await.unwrap().status.unwrap_or_default();
        let over = matches!(status.phase.as_deref(), Some("Released" | "Failed"));
        Seen::some(over.then_some(()), format!("{status:?}"))
    })
    .await;
    for claim in ["theirs", "populated"] {
        tenant.stays_unbound(claim).await;
        assert!(tenant.events(claim).await.iter().all(|line| !line.starts_with("Provisioning")));
    }
    assert!(tenant.has_bucket("precious-bucket"));
    assert_eq!(tenant.volumes().get("precious").await.unwrap().finalizers(), ["kubernetes.io/pv-protection"]);
}

#[tokio::test]
async fn a_claim_deleted_before_its_class_works_leaves_nothing() {
    let tenant = Tenant::set("early", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    tenant.class("denied", tenant.provisioner_secret("missing"), json!({})).await;
    tenant.claim("data", "denied").await;
    tenant.has_event("data", &["ProvisioningFailed:", "there is no Secret"]).await;
    tenant.delete("data").await;
    tenant.claim_gone("data").await;
}
