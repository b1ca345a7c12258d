//! Claims and pods of any size do not exhaust the controller's memory.

use contract::names::DRIVER;
use contract::quantity::Quantity;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use s3_csi_tests::controller::{self, Controller};
use s3_csi_tests::memory_limit::MemoryLimit;
use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::{Value, json};

/// 300 MB of annotations: more than the container's limit.
const CLAIMS: usize = 1500;
const ANNOTATION: usize = 200_000;
/// These are for the driver, so that it keeps them.
const OURS: usize = 300;
/// Each as large as etcd takes.
const PODS: usize = 100;
const ENVIRONMENT: usize = 1_000_000;
/// The API server is to be busy, not the suite's machine.
const AT_ONCE: usize = 8;
/// All of it is read through one connection, on a machine that is busy.
const READS_WITHIN: std::time::Duration = std::time::Duration::from_mins(3);

/// What the chart gives the container.
fn container_limit() -> u64 {
    let values: Value = serde_saphyr::from_str(include_str!("../../charts/s3-csi/values.yaml")).unwrap();
    let limit = values["controller"]["resources"]["limits"]["memory"].as_str().unwrap();
    Quantity::parse(limit).unwrap().units().try_into().unwrap()
}

fn claim(number: usize) -> PersistentVolumeClaim {
    let provisioner = if number < OURS { DRIVER } else { "other.csi" };
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("fat-{number}"),
            "annotations": {"note": "x".repeat(ANNOTATION), "volume.kubernetes.io/storage-provisioner": provisioner},
        },
        "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": "none",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }))
    .unwrap()
}

/// Acts on every number below `count`, some at a time.
async fn for_each<F: Future<Output = ()>>(count: usize, act: impl Fn(usize) -> F) {
    stream::iter(0..count).for_each_concurrent(AT_ONCE, act).await;
}

#[tokio::test]
async fn claims_and_pods_of_300_megabytes_do_not_take_the_controllers_memory() {
    let stage = Stage::set("fat").await;
    // Nor do they cost the other tests' controllers time.
    let _alone = controller::none().await;
    let claims = Api::<PersistentVolumeClaim>::namespaced(stage.here.client.clone(), &stage.here.namespace);
    for_each(CLAIMS, |number| {
        let claims = &claims;
        async move { drop(claims.create(&PostParams::default(), &claim(number)).await.unwrap()) }
    })
    .await;
    stage.volume("data", &[], &[]).await;
    for_each(PODS, |number| {
        let (stage, text) = (&stage, "x".repeat(ENVIRONMENT));
        let container = json!({"name": "main", "image": "none", "env": [{"name": "A", "value": text}]});
        async move {
            let more = json!({"containers": [container]});
            stage.workload_with(&format!("fat-{number}"), &["data"], more).await;
        }
    })
    .await;

    let limit = container_limit();
    let memory = MemoryLimit::new(&stage.here.cluster, "fat-claims", limit);
    let controller = Controller::launch_within(&memory, &stage.here.client, &[]).await;
    eventually("the controller acts", READS_WITHIN, || async {
        assert_eq!(memory.kills(), 0, "killed for want of memory with a limit of {limit}");
        let acts = controller.log().contains("\"message\":\"became leader\"");
        Seen::some(acts.then_some(()), xtask::command::tail(&controller.log()))
    })
    .await;
    stage.attached(&stage.workload("first", &["data"]).await).await;
    println!("{} of {limit} bytes after the lists", memory.peak());

    // The same through the watches: what is written now arrives there before the next workload does.
    let params = PatchParams::default();
    for_each(CLAIMS, |number| {
        let (claims, params) = (&claims, &params);
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"note": "y".repeat(ANNOTATION)}}}));
        async move { drop(claims.patch_metadata(&format!("fat-{number}"), params, &patch).await.unwrap()) }
    })
    .await;
    stage.attached(&stage.workload("second", &["data"]).await).await;
    println!("{} of {limit} bytes after the watches", memory.peak());
    assert_eq!(memory.kills(), 0);
    assert!(memory.peak() < limit, "{} of {limit}", memory.peak());
    drop(controller);

    // No controller of the cluster's takes the finalizers away, and other tests list claims, too.
    let plain = Patch::Merge(json!({"metadata": {"finalizers": null, "annotations": null}}));
    for_each(CLAIMS, |number| {
        let (claims, params, plain) = (&claims, &params, &plain);
        async move { drop(claims.patch_metadata(&format!("fat-{number}"), params, plain).await.unwrap()) }
    })
    .await;
    let now = DeleteParams::default().grace_period(0);
    claims.delete_collection(&now, &ListParams::default()).await.unwrap();
    stage.here.pods().delete_collection(&now, &ListParams::default()).await.unwrap();
}
