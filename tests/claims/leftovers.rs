//! What outlives a volume whose policy is Delete, and how that is reported; and a class that leaves nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::controller::provision::reclaim::volume::SECRET_MISSING_SINCE;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::account::{Account, CONTROLLER};
use s3_csi_tests::claims::{LIMIT, Tenant, handle};
use s3_csi_tests::controller::{self, Controller};
use s3_csi_tests::denial::Denial;
use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::right::granted;
use s3_csi_tests::{Seen, eventually};
use serde_json::json;
use xtask::s3::ALICE;

const SERVER: &str = "s3.test:80";

/// A class whose keys, and a claim whose bucket has an object, are the tenant's own; returns the volume and its bucket.
async fn with_own_keys(tenant: &Tenant) -> (String, String) {
    tenant.keys("keys", ALICE).await;
    tenant.class("keyed", tenant.provisioner_secret("keys"), json!({})).await;
    tenant.claim("data", "keyed").await;
    let volume = tenant.bound("data").await;
    tenant.server.put(&handle(&volume), "file", b"x").unwrap();
    (volume.name_any(), handle(&volume))
}

/// Waits until the volume says since when it waits for its Secret.
async fn waits_for_secret(tenant: &Tenant, volume: &str) {
    eventually("the volume waits for its Secret", LIMIT, || async {
        let found = tenant.volumes().get(volume).await.unwrap();
        let since = found.annotations().get(SECRET_MISSING_SINCE).cloned();
        Seen::some(since, format!("{:?} {:?}", found.annotations(), tenant.events(volume).await))
    })
    .await;
}

/// As if the volume had waited since an hour ago.
async fn is_left_after_its_deadline(tenant: &Tenant, volume: &str, bucket: &str) {
    let long_ago = json!({"metadata": {"annotations": {SECRET_MISSING_SINCE: "2026-01-01T00:00:00Z"}}});
    tenant.volumes().patch(volume, &PatchParams::default(), &Patch::Merge(long_ago)).await.unwrap();
    tenant.volume_gone(volume).await;
    tenant.has_event(volume, &["BucketLeft:", bucket, "delete it manually"]).await;
    assert_eq!(tenant.server.get(bucket, "file").unwrap(), b"x", "its objects are not to be deleted");
}

/// A controller that may read the Secrets of this tenant, and of no other namespace.
async fn narrowed(tenant: &Tenant, name: &str) -> Account {
    let value = format!("provisioning.secretNamespaces={{{}}}", tenant.here.namespace);
    CONTROLLER.variant(&tenant.here.client, name, &CONTROLLER.roles(&[&value])).await
}

/// The permission to read the tenant's Secrets goes before them. Returns when the API server refuses to show them.
async fn revoke(tenant: &Tenant, account: &Account) {
    let (client, namespace) = (tenant.here.client.clone(), &tenant.here.namespace);
    let bindings = Api::<RoleBinding>::namespaced(client, namespace);
    bindings.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    eventually("the controller may not read the tenant's Secrets", LIMIT, || async {
        let rights = granted(&account.user(), namespace).await;
        let reads = rights.iter().any(|right| right.resource == "secrets");
        Seen::some((!reads).then_some(()), format!("{rights:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_namespace_deleted_with_the_permission_to_read_its_secret_leaves_a_bucket_that_is_named_and_no_volume()
 {
    let _running = controller::none().await;
    let tenant = Tenant::set("revoked", ALICE).await;
    let account = narrowed(&tenant, "revoked").await;
    let controller = Controller::launch_as(&account, &tenant.here.client, &["--leader-election=false"]).await;
    let (volume, bucket) = with_own_keys(&tenant).await;
    revoke(&tenant, &account).await;
    let namespaces = Api::<Namespace>::all(tenant.here.client.clone());
    namespaces.delete(&tenant.here.namespace, &DeleteParams::default()).await.unwrap();
    waits_for_secret(&tenant, &volume).await;
    tenant.has_event(&volume, &["VolumeFailedDelete:", "`provisioning.secretNamespaces`"]).await;
    is_left_after_its_deadline(&tenant, &volume, &bucket).await;
    drop(controller);
}

#[tokio::test]
async fn a_claim_in_doubt_waits_for_the_permission_to_read_its_secret() {
    let _running = controller::none().await;
    let tenant = Tenant::set("withheld", ALICE).await;
    let account = narrowed(&tenant, "withheld").await;
    let server = Faulty::before(SERVER, |_, _| Fault::DropAnswer);
    let endpoint = format!("--endpoint-url={}", server.url());
    let arguments = [endpoint.as_str(), "--leader-election=false"];
    let controller = Controller::launch_as(&account, &tenant.here.client, &arguments).await;
    tenant.keys("keys", ALICE).await;
    let mut parameters = tenant.provisioner_secret("keys");
    parameters["bucketNamePrefix"] = json!("withheld");
    tenant.class("keyed", parameters, json!({})).await;
    tenant.claim("data", "keyed").await;
    tenant.has_event("data", &["ProvisioningFailed:", "lost the connection"]).await;
    let left = || tenant.buckets().into_iter().filter(|bucket| bucket.starts_with("withheld-")).count();
    assert_eq!(left(), 1, "the server did it all the same");
    server.plan(|_, _| Fault::None);
    revoke(&tenant, &account).await;
    tenant.delete("data").await;
    tenant.has_event("data", &["ProvisioningCleanupFailed:", "may not read Secret"]).await;
    assert_eq!(left(), 1);
    narrowed(&tenant, "withheld").await;
    tenant.claim_gone("data").await;
    assert_eq!(left(), 0);
    drop(controller);
}

#[tokio::test]
async fn a_namespace_deleted_at_once_leaves_a_bucket_that_is_named_and_no_volume() {
    let tenant = Tenant::set("leaving", ALICE).await;
    let controller = controller::shared(&tenant.here.client).await;
    let (volume, bucket) = with_own_keys(&tenant).await;
    // The namespace controller deletes claims and Secrets in any order; this is the one in which the keys are gone first.
    let secrets = Api::<Secret>::namespaced(tenant.here.client.clone(), &tenant.here.namespace);
    secrets.delete("keys", &DeleteParams::default()).await.unwrap();
    let namespaces = Api::<Namespace>::all(tenant.here.client.clone());
    namespaces.delete(&tenant.here.namespace, &DeleteParams::default()).await.unwrap();
    waits_for_secret(&tenant, &volume).await;
    tenant.has_event(&volume, &["VolumeFailedDelete:", "is missing or not readable: create it again"]).await;
    is_left_after_its_deadline(&tenant, &volume, &bucket).await;
    controller.as_ref().unwrap().counts("buckets_kept_total{reason=\"secret_missing\"}").await;
}

#[tokio::test]
async fn a_secret_that_comes_back_in_time_takes_the_bucket_along() {
    let tenant = Tenant::set("returning", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    let (volume, bucket) = with_own_keys(&tenant).await;
    tenant.server.delete(&bucket, "file").unwrap();
    let secrets = Api::<Secret>::namespaced(tenant.here.client.clone(), &tenant.here.namespace);
    secrets.delete("keys", &DeleteParams::default()).await.unwrap();
    tenant.delete("data").await;
    waits_for_secret(&tenant, &volume).await;
    tenant.keys("keys", ALICE).await;
    tenant.volume_gone(&volume).await;
    assert!(!tenant.has_bucket(&bucket));
}

#[tokio::test]
async fn a_class_may_let_whole_buckets_go_with_objects_and_unfinished_uploads() {
    let _running = controller::none().await;
    let tenant = Tenant::set("emptied", ALICE).await;
    // Some servers delete no bucket with an upload in it; this one does, unless it is helped.
    let aborted = Arc::new(AtomicBool::new(false));
    let server = Faulty::before(SERVER, move |_, line| {
        if line.starts_with("DELETE /emptied-") && line.contains("/half?uploadId=") {
            aborted.store(true, Ordering::Relaxed);
        }
        let whole = line.starts_with("DELETE /emptied-") && line.ends_with("/ HTTP/1.1");
        if whole && !aborted.load(Ordering::Relaxed) {
            Fault::Refuse(409, "MPUinProgress")
        } else {
            Fault::None
        }
    });
    let endpoint = format!("--endpoint-url={}", server.url());
    let controller = Controller::start(&tenant.here.client, &[&endpoint, "--leader-election=false"]).await;
    let parameters = json!({"bucketNamePrefix": "emptied", "deletionPolicy": "delete-objects"});
    tenant.class("emptied", parameters, json!({})).await;
    tenant.claim("data", "emptied").await;
    let volume = tenant.bound("data").await;
    let bucket = handle(&volume);
    for key in ["file", "folder/a b", "a\tb"] {
        tenant.server.put(&bucket, key, b"x").unwrap();
    }
    tenant.server.begin_upload(&bucket, "half", "text/plain").unwrap();
    tenant.delete("data").await;
    tenant.volume_gone(&volume.name_any()).await;
    assert!(!tenant.has_bucket(&bucket), "{:?}", tenant.events(&volume.name_any()).await);
    drop(controller);
}

/// From now on, the API server refuses to delete this volume.
async fn refuse_deletion(tenant: &Tenant, volume: &str) -> Denial {
    let rule = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["persistentvolumes"],
        "resourceNames": [volume],
    });
    let tried = DeleteParams { dry_run: true, ..DeleteParams::default() };
    let attempt = async || tenant.volumes().delete(volume, &tried).await;
    Denial::of(&tenant.here.client, format!("keep-{volume}"), rule, attempt).await
}

#[tokio::test]
async fn a_bucket_with_unfinished_uploads_is_kept_once_and_for_all() {
    let _running = controller::none().await;
    let tenant = Tenant::set("uploading", ALICE).await;
    let server = Faulty::before(SERVER, |_, line| {
        if line.starts_with("DELETE /uploading-") { Fault::Refuse(409, "MPUinProgress") } else { Fault::None }
    });
    let endpoint = format!("--endpoint-url={}", server.url());
    let controller = Controller::start(&tenant.here.client, &[&endpoint, "--leader-election=false"]).await;
    tenant.class("plain", json!({"bucketNamePrefix": "uploading"}), json!({})).await;
    tenant.claim("data", "plain").await;
    let volume = tenant.bound("data").await;
    // Each attempt finds the bucket again.
    let denial = refuse_deletion(&tenant, &volume.name_any()).await;
    tenant.delete("data").await;
    eventually("the volume could not be deleted twice", LIMIT, || async {
        let seen = server.seen();
        let tried = seen.iter().filter(|line| line.starts_with("DELETE /uploading-")).count();
        Seen::some((tried > 1).then_some(()), format!("{seen:?}"))
    })
    .await;
    assert!(!controller.metrics().contains("buckets_kept_total{"), "its volume is there");
    denial.lift().await;
    tenant.volume_gone(&volume.name_any()).await;
    let words = ["BucketKept:", &handle(&volume), "has unfinished uploads", "deletionPolicy"];
    tenant.has_event(&volume.name_any(), &words).await;
    assert!(tenant.has_bucket(&handle(&volume)));
    let count = eventually("the bucket is counted", LIMIT, || async {
        let metrics = controller.metrics();
        let line =
            metrics.lines().find(|line| line.contains("buckets_kept_total{reason=\"unfinished_uploads\"}"));
        Seen::some(line.map(str::to_owned), metrics)
    })
    .await;
    assert!(count.ends_with(" 1"), "{count}");
    drop(controller);
}
