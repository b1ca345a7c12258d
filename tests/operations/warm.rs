//! Mountpoint Pods that are kept ready for volumes to come.

use contract::names::{annotation, label};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::ListParams;
use s3_csi_tests::{Seen, changed, eventually, manifest};
use serde_json::json;
use xtask::command::{capture, run};

use crate::story::{LIMIT, Story};

const READ: &str = "ls /data && echo in; sleep 3600";

/// The names of those that wait for a volume and run.
async fn warm_pods(story: &Story) -> Vec<String> {
    let pods = story.mountpoint_pods_api().list(&ListParams::default()).await.unwrap();
    let is_warm = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        pod.annotations().contains_key(annotation::WARM_ON)
            && phase == Some("Running")
            && pod.metadata.deletion_timestamp.is_none()
    };
    pods.iter().filter(is_warm).map(Pod::name_any).collect()
}

async fn one_is_warm(story: &Story) -> String {
    eventually("one warm pod runs", LIMIT, || async {
        let found = warm_pods(story).await;
        Seen::some(found.first().filter(|_| found.len() == 1).cloned(), format!("{found:?}"))
    })
    .await
}

async fn none_is_warm(story: &Story) {
    eventually("no warm pod is left", LIMIT, || async {
        let pods = story.mountpoint_pods_api().list(&ListParams::default()).await.unwrap();
        let left = pods.iter().filter(|pod| pod.annotations().contains_key(annotation::WARM_ON)).count();
        Seen::some((left == 0).then_some(()), format!("{left} are left"))
    })
    .await;
}

#[tokio::test]
async fn a_new_volume_is_served_by_a_pod_that_already_runs() {
    let story = Story::alone("warm").await;
    let changed = changed::values(&story.here.cluster, &["mountpointPod.warm.perNode=auto"]);
    story.here.run("first", story.workload(READ)).await;
    story.says("first", "in").await;
    let [first] = story.mountpoint_pods().await.try_into().unwrap();
    let warm = one_is_warm(&story).await;

    story.volume("warm-second", |_| {}).await;
    story.here.run("second", manifest::pod(&["warm-second"], READ)).await;
    story.says("second", "in").await;
    let mut serving = story.mountpoint_pods().await;
    serving.retain(|name| *name != first);
    assert_eq!(serving, std::slice::from_ref(&warm), "the warm pod serves it");
    let names = |pod: &Pod| -> (Vec<String>, Vec<String>) {
        (pod.labels().keys().cloned().collect(), pod.annotations().keys().cloned().collect())
    };
    let api = story.mountpoint_pods_api();
    let (usual, claimed) = (api.get(&first).await.unwrap(), api.get(&warm).await.unwrap());
    let (labels, mut annotations) = names(&claimed);
    annotations.retain(|name| name != annotation::EARLY_MOUNT);
    assert_eq!((labels, annotations), names(&usual), "it looks like any other");

    // Another shape goes the usual way, and the warm pod stays.
    let next = one_is_warm(&story).await;
    assert_ne!(next, warm);
    story
        .volume("warm-cached", |volume| {
            volume["spec"]["csi"]["volumeAttributes"]["cache"] = json!("emptyDir");
        })
        .await;
    story.here.run("cached", manifest::pod(&["warm-cached"], READ)).await;
    story.says("cached", "in").await;
    assert!(!story.mountpoint_pods().await.contains(&next));
    assert_eq!(one_is_warm(&story).await, next);

    let node = story.here.cluster.nodes().unwrap()[0].name();
    let drain = |more: &[&str]| {
        // Not the workloads and the pods that serve them, which no controller would start elsewhere.
        let warm = format!("--pod-selector={},!{}", label::DRIVER_VERSION, label::WORKLOAD_UID);
        let mut kubectl = story.here.cluster.kubectl().unwrap();
        capture(kubectl.args(["drain", &node, &warm, "--delete-emptydir-data", "--timeout=300s"]).args(more))
    };
    let evicted = drain(&["--dry-run=client"]).expect("it needs no --force");
    assert!(evicted.contains(&next), "{evicted}");
    drain(&[]).unwrap();
    none_is_warm(&story).await;
    run(story.here.cluster.kubectl().unwrap().args(["uncordon", &node])).unwrap();
    one_is_warm(&story).await;
    changed.undo();
    none_is_warm(&story).await;
    for pod in ["first", "second", "cached"] {
        story.here.delete(pod).await;
    }
    story.leaves_nothing().await;
}
