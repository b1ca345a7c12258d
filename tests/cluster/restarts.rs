//! What the driver stands on is restarted under a running workload: its I/O goes on.

use std::fs;

use contract::names::label;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use s3_csi_tests::{Seen, eventually};
use xtask::cluster::Part;
use xtask::driver;
use xtask::image::next;

use crate::changed;
use crate::story::{LIMIT, Story};

/// Writes and reads a file, again and again, and says when that failed.
const BEAT: &str = "i=0; while true; do i=$((i+1)); file=/data/$(hostname)-$i; \
    if echo $i > $file && [ \"$(cat $file)\" = $i ]; then echo beat; else echo FAILED $i; fi; sleep 0.2; done";

async fn begin(name: &'static str) -> Story {
    let story = Story::alone(name).await;
    story.here.run("workload", story.workload(BEAT)).await;
    story.says("workload", "beat").await;
    story.mountpoint_pods().await;
    story
}

/// The old workload was not disturbed, a new one is served by the same Mountpoint Pod, and both leave nothing.
async fn goes_on(story: Story) {
    joins(&story, "new").await;
    assert_eq!(story.mountpoint_pods().await.len(), 1);
    leave(story, &["workload", "new"]).await;
}

/// A new workload is served, and the first one still is.
async fn joins(story: &Story, name: &str) {
    story.says_again("workload", "beat").await;
    story.here.run(name, story.workload(BEAT)).await;
    story.says(name, "beat").await;
    story.says_again("workload", "beat").await;
}

/// None of them was ever disturbed, and they leave nothing.
async fn leave(story: Story, workloads: &[&str]) {
    for workload in workloads {
        story.says_again(workload, "beat").await;
        assert!(!story.log(workload).await.contains("FAILED"), "{workload}");
        assert_eq!(story.container(workload).await.restart_count, 0, "{workload}");
    }
    for workload in workloads {
        story.here.delete(workload).await;
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

/// By version of the driver that made them.
async fn versions(story: &Story) -> Vec<String> {
    let mut versions = Vec::new();
    for pod in story.mountpoint_pods().await {
        let pod = story.mountpoint_pods_api().get(&pod).await.unwrap();
        versions.push(pod.labels()[label::DRIVER_VERSION].clone());
    }
    versions.sort();
    versions
}

/// Another version of every program, and back: what a Mountpoint Pod of either version serves, it goes on serving.
#[tokio::test]
async fn an_upgrade_of_the_whole_driver_and_back() {
    let story = begin("upgrade").await;
    let ours = versions(&story).await;
    assert_ne!(ours, [next::VERSION]);
    for archive in next::archives(story.here.cluster.cache()) {
        story.here.cluster.import_image(&archive).unwrap();
    }
    let tag = format!("image.tag={tag},mountpointPod.image.tag={tag}", tag = next::TAG);
    let upgraded = changed::values(&story.here.cluster, &[&tag]);
    joins(&story, "newer").await;
    let both = [ours.as_slice(), &[next::VERSION.to_owned()]].concat();
    assert_eq!(versions(&story).await, both, "a new workload gets a Mountpoint Pod of the new version");
    upgraded.undo();
    joins(&story, "older").await;
    assert_eq!(versions(&story).await, both, "and after the way back it shares the old one");
    leave(story, &["workload", "newer", "older"]).await;
}

/// Pods end while the driver is away from their node; when it is back, it finishes what was left to it.
#[tokio::test]
async fn pods_deleted_while_the_node_pod_is_down() {
    let story = begin("node-pod-down").await;
    let away = changed::without_node_service(&story.here.cluster);
    story.says_again("workload", "beat").await;
    story.here.pods().delete("workload", &DeleteParams::default()).await.unwrap();
    eventually("kubelet has tried to unmount in vain", LIMIT, || async {
        let log = fs::read_to_string(story.here.cluster.log("kubelet")).unwrap_or_default();
        let tried = log.lines().any(|line| line.contains("TearDown failed") && line.contains(story.name));
        Seen::some(tried.then_some(()), "no word of it in kubelet's log")
    })
    .await;
    away.undo();
    story.leaves_nothing().await;
}
