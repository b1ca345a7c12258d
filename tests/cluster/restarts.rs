//! Parts of the driver and of the node restart under a running workload, whose I/O continues.

use std::fs;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use s3_csi_tests::{Seen, eventually};
use xtask::cluster::Part;
use xtask::driver;

use crate::changed;
use crate::story::{LIMIT, Story};

/// Writes and reads a file in a loop, and logs every failure.
pub(crate) const BEAT: &str = "i=0; while true; do i=$((i+1)); file=/data/$(hostname)-$i; \
    if echo $i > $file && [ \"$(cat $file)\" = $i ]; then echo beat; else echo FAILED $i; fi; sleep 0.2; done";

async fn begin(name: &'static str) -> Story {
    let story = Story::alone(name).await;
    story.here.run("workload", story.workload(BEAT)).await;
    story.says("workload", "beat").await;
    story.mountpoint_pods().await;
    story
}

/// The first workload saw no error, the same Mountpoint Pod serves a new one, and both leave nothing behind.
async fn keeps_serving(story: Story) {
    serves_another(&story, "new").await;
    assert_eq!(story.mountpoint_pods().await.len(), 1);
    end_without_errors(story, &["workload", "new"]).await;
}

/// A new workload is served, and the first one still is.
pub(crate) async fn serves_another(story: &Story, name: &str) {
    story.says_again("workload", "beat").await;
    story.here.run(name, story.workload(BEAT)).await;
    story.says(name, "beat").await;
    story.says_again("workload", "beat").await;
}

/// None of the workloads saw an error, and they leave nothing behind.
pub(crate) async fn end_without_errors(story: Story, workloads: &[&str]) {
    delete_without_errors(&story, workloads).await;
    story.leaves_nothing().await;
}

pub(crate) async fn delete_without_errors(story: &Story, workloads: &[&str]) {
    for workload in workloads {
        story.says_again(workload, "beat").await;
        assert!(!story.log(workload).await.contains("FAILED"), "{workload}");
        assert_eq!(story.container(workload).await.restart_count, 0, "{workload}");
    }
    for workload in workloads {
        story.here.delete(workload).await;
    }
}

pub(crate) fn driver_pods(story: &Story) -> Api<Pod> {
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

/// Deletes a pod of the driver and waits for its replacement.
pub(crate) async fn replace(story: &Story, app: &str, delete: DeleteParams) -> String {
    let old = ready_pod(story, app, "").await;
    driver_pods(story).delete(&old, &delete).await.unwrap();
    ready_pod(story, app, &old).await
}

#[tokio::test]
async fn the_node_pod() {
    let story = begin("node-pod").await;
    replace(&story, "s3-csi-node", DeleteParams::default()).await;
    replace(&story, "s3-csi-node", DeleteParams::default().grace_period(0)).await;
    keeps_serving(story).await;
}

#[tokio::test]
async fn the_controller() {
    let story = begin("controller-pod").await;
    replace(&story, "s3-csi-controller", DeleteParams::default()).await;
    keeps_serving(story).await;
}

#[tokio::test]
async fn kubelet_and_containerd() {
    let story = begin("kubelet").await;
    for part in [Part::Kubelet, Part::Containerd] {
        story.here.cluster.restart(part).unwrap();
        story.says_again("workload", "beat").await;
    }
    keeps_serving(story).await;
}

/// Pods end while the node service is down. When it returns, it finishes their unmounting.
#[tokio::test]
async fn pods_deleted_while_the_node_pod_is_down() {
    let story = begin("node-pod-down").await;
    let away = changed::without_node_service(&story.here.cluster);
    story.says_again("workload", "beat").await;
    story.here.pods().delete("workload", &DeleteParams::default()).await.unwrap();
    eventually("the kubelet has failed to unmount", LIMIT, || async {
        let log = fs::read_to_string(story.here.cluster.log("kubelet")).unwrap_or_default();
        let tried = log.lines().any(|line| line.contains("TearDown failed") && line.contains(story.name));
        Seen::some(tried.then_some(()), "no word of it in kubelet's log")
    })
    .await;
    away.undo();
    story.leaves_nothing().await;
}
