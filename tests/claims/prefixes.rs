//! One bucket, a prefix for each claim.

use kube::ResourceExt as _;
use s3_csi_tests::claims::{Tenant, handle};
use s3_csi_tests::controller;
use serde_json::json;
use xtask::s3::ALICE;

#[tokio::test]
async fn claims_have_prefixes_of_their_own_and_objects_stay() {
    let tenant = Tenant::set("prefix", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    tenant.server.create_bucket("shared-by-claims").unwrap();
    let parameters =
        json!({"bucketName": "shared-by-claims", "prefix": "teams/${pvc.namespace}/${pvc.name}"});
    tenant.class("shared", parameters, json!({"mountOptions": ["allow-delete"]})).await;
    for name in ["one", "two"] {
        tenant.claim(name, "shared").await;
        let volume = tenant.bound(name).await;
        let prefix = format!("teams/{}/{name}/", tenant.here.namespace);
        let spec = volume.spec.as_ref().unwrap();
        assert_eq!(spec.mount_options, Some(vec!["allow-delete".to_owned(), format!("prefix={prefix}")]));
        let attributes = spec.csi.as_ref().unwrap().volume_attributes.as_ref().unwrap();
        assert_eq!(attributes["bucketName"], "shared-by-claims");
        tenant.server.put("shared-by-claims", &format!("{prefix}file"), b"x").unwrap();
        tenant.delete(name).await;
        tenant.volume_gone(&volume.name_any()).await;
    }
    assert_eq!(tenant.server.objects("shared-by-claims", "").unwrap().len(), 2);
}

#[tokio::test]
async fn exactly_the_objects_of_the_prefix_are_deleted() {
    let tenant = Tenant::set("prefixed", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    let bucket = "deleted-by-claims";
    tenant.server.create_bucket(bucket).unwrap();
    let parameters = json!({"bucketName": bucket, "deletionPolicy": "delete-objects"});
    tenant.class("emptied", parameters, json!({})).await;
    tenant.claim("data", "emptied").await;
    let volume = tenant.bound("data").await;
    let name = volume.name_any();
    assert!(handle(&volume).ends_with(&format!("/delete-objects/{bucket}/{name}/")), "{}", handle(&volume));
    // More than one batch, and names that must not be misread.
    for number in 0..1005 {
        tenant.server.put(bucket, &format!("{name}/many/{number:04}"), b"").unwrap();
    }
    for key in ["a b", "a&b", "a+b", "ü", "a<b>", "a\tb", "a\rb", "a\nb"] {
        tenant.server.put(bucket, &format!("{name}/{key}"), b"").unwrap();
    }
    let mut neighbours = [format!("{name}x/file"), format!("x{name}/file"), "file".to_owned()];
    for key in &neighbours {
        tenant.server.put(bucket, key, b"").unwrap();
    }
    tenant.delete("data").await;
    tenant.volume_gone(&name).await;
    let mut left = tenant.server.objects(bucket, "").unwrap();
    left.sort();
    neighbours.sort();
    assert_eq!(left, neighbours);
}

#[tokio::test]
async fn a_shared_bucket_that_is_not_there_is_named() {
    let tenant = Tenant::set("prefixless", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    tenant.class("shared", json!({"bucketName": "not-there-at-all"}), json!({})).await;
    tenant.class("same", json!({"bucketName": "not-there-at-all", "prefix": "data"}), json!({})).await;
    tenant.claim("one", "shared").await;
    tenant.claim("two", "same").await;
    tenant
        .has_event("one", &["ProvisioningFailed:", "there is no bucket `not-there-at-all`", "NoSuchBucket"])
        .await;
    tenant.has_event("two", &["ProvisioningFailed:", "several claims would share it"]).await;
    // The bucket comes, and no more is needed.
    tenant.server.create_bucket("not-there-at-all").unwrap();
    tenant.bound("one").await;
}
