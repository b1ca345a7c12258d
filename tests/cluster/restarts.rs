//! What the driver stands on is restarted under a running workload: its I/O goes on.

use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use s3_csi_tests::{Seen, eventually};
use serde_json::{Value, json};
use xtask::cluster::Part;
use xtask::driver;

use crate::story::{LIMIT, Story};

/// Writes and reads a file, again and again, and says when that failed.
const BEAT: &str = "i=0; while true; do i=$((i+1)); \
    if echo $i > /data/beat-$i && [ \"$(cat /data/beat-$i)\" = $i ]; then echo beat; else echo FAILED $i; fi; sleep 0.2; done";

async fn begin(name: &'static str) -> Story {
    let story = Story::alone(name).await;
    story.here.run("workload", story.workload(BEAT)).await;
    story.says("workload", "beat").await;
    story.mountpoint_pods().await;
    story
}

/// The old workload was not disturbed, a new one is served, and both leave nothing.
async fn goes_on(story: Story) {
    story.says_again("workload", "beat").await;
    story.here.run("new", story.workload(BEAT)).await;
    story.says("new", "beat").await;
    story.says_again("workload", "beat").await;
    assert!(!story.log("workload").await.contains("FAILED"));
    assert_eq!(story.container("workload").await.restart_count, 0);
    assert_eq!(story.mountpoint_pods().await.len(), 1);
    for pod in ["workload", "new"] {
        story.here.delete(pod).await;
    }
    story.leaves_nothing().await;
}

fn driver_pods(story: &Story) -> Api<Pod> {
    Api::namespaced(story.here.client.clone(), driver::NAMESPACE)
}

async fn ready_pod(story: &Story, app: &str, other_than: &str) -> String {
    let params = ListParams::default().labels(&format!("app={app}"));
    eventually(&format!("a pod of {app} is ready"), LIMIT, || async {
        let pods = driver_pods(story).list(&params).await.unwrap();
        let ready = |pod: &&Pod| {
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let ready = conditions.clone().any(|it| it.type_ == "Ready" && it.status == "True");
            ready && pod.name_any() != other_than && pod.metadata.deletion_timestamp.is_none()
        };
        let found = pods.iter().find(ready).map(ResourceExt::name_any);
        Seen::some(found, format!("{} pods", pods.items.len()))
    })
    .await
}

/// Deletes a pod of the driver and waits for the one that takes its place.
async fn replace(story: &Story, app: &str, delete: DeleteParams) {
    let old = ready_pod(story, app, "").await;
    driver_pods(story).delete(&old, &delete).await.unwrap();
    ready_pod(story, app, &old).await;
}

#[tokio::test]
async fn the_node_pod() {
    let story = begin("node-pod").await;
    replace(&story, "s3-csi-node", DeleteParams::default()).await;
    replace(&story, "s3-csi-node", DeleteParams::default().grace_period(0)).await;
    goes_on(story).await;
}

#[tokio::test]
async fn the_controller() {
    let story = begin("controller-pod").await;
    replace(&story, "s3-csi-controller", DeleteParams::default()).await;
    goes_on(story).await;
}

#[tokio::test]
async fn kubelet_and_containerd() {
    let story = begin("kubelet").await;
    for part in [Part::Kubelet, Part::Containerd] {
        story.here.cluster.restart(part).unwrap();
        story.says_again("workload", "beat").await;
    }
    goes_on(story).await;
}

#[tokio::test]
async fn an_upgrade_of_the_whole_driver() {
    let story = begin("upgrade").await;
    driver::install(&story.here.cluster, &["node.logLevel=debug,controller.logLevel=debug"]).unwrap();
    goes_on(story).await;
}

/// Pods end while the driver is away from their node; when it is back, it finishes what was left to it.
#[tokio::test]
async fn pods_deleted_while_the_node_pod_is_down() {
    let story = begin("node-pod-down").await;
    let daemons = Api::<DaemonSet>::namespaced(story.here.client.clone(), driver::NAMESPACE);
    let selector = |value: Value| {
        let selector = json!({"spec": {"template": {"spec": {"nodeSelector": {"nowhere": value}}}}});
        let (daemons, patch) = (daemons.clone(), Patch::Merge(selector));
        async move { daemons.patch("s3-csi-node", &PatchParams::default(), &patch).await.unwrap() }
    };
    selector(json!("at-all")).await;
    let gone = ListParams::default().labels("app=s3-csi-node");
    eventually("the node pod is gone", LIMIT, || async {
        let left = driver_pods(&story).list(&gone).await.unwrap().items.len();
        Seen::some((left == 0).then_some(()), left)
    })
    .await;
    story.says_again("workload", "beat").await;
    story.here.pods().delete("workload", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    selector(Value::Null).await;
    ready_pod(&story, "s3-csi-node", "").await;
    story.leaves_nothing().await;
}
