//! Claims with more written on them than the driver keeps.

use kube::api::PostParams;
use s3_csi_tests::claims::Tenant;
use s3_csi_tests::controller;
use serde_json::json;
use xtask::s3::ALICE;

#[tokio::test]
async fn a_secret_is_named_by_an_annotation_that_is_not_the_drivers() {
    let tenant = Tenant::set("annotated", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    let by_annotation = json!({
        "csi.storage.k8s.io/node-publish-secret-name": "${pvc.annotations['example.com/team']}",
        "csi.storage.k8s.io/node-publish-secret-namespace": "${pvc.namespace}",
    });
    tenant.class("by-annotation", by_annotation, json!({})).await;
    let claim = json!({
        "metadata": {"name": "blue", "annotations": {"example.com/team": "blue-keys", "note": "x".repeat(200_000)}},
        "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": tenant.class_name("by-annotation"),
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let claim = serde_json::from_value(claim).unwrap();
    tenant.claims().create(&PostParams::default(), &claim).await.unwrap();
    let volume = tenant.bound("blue").await;
    let secret = volume.spec.unwrap().csi.unwrap().node_publish_secret_ref.unwrap();
    assert_eq!(secret.name.as_deref(), Some("blue-keys"));
    assert_eq!(secret.namespace.as_ref(), Some(&tenant.here.namespace));
}
