//! Containers that mount with `HostToContainer` recover from every crash, no matter when they started and which
//! Mountpoint Pod serves them.

use std::fs;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use s3_csi_tests::manifest;
use s3_csi_tests::processes::processes;
use s3_csi_tests::{Seen, eventually};
use serde_json::{Value, json};

use crate::deaths::{begin, ends};
use crate::evictions::{kubelet_evicts, volume_with_cache};
use crate::story::{LIMIT, Story};
use s3_csi_tests::mount_deaths::{another_serves, end_container, reads_again, remove_journals};

/// Logs what it sees, and restarts when a file of its name appears in a directory of the pod.
const UNTIL_ASKED: &str = "while [ ! -e /pod/$NAME ]; do \
    if cat /data/file >/dev/null 2>&1; then echo good; else echo bad; fi; sleep 0.3; done; rm /pod/$NAME; exit 1";

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The container of the Mountpoint Pod ends.
    Kill,
    /// The container of this name restarts.
    Restart(&'static str),
    /// A second pod starts.
    Join,
}

/// A pod with two containers that mount with `HostToContainer`.
fn two_containers(claim: &str) -> Value {
    let mut pod = manifest::pod(&[claim], UNTIL_ASKED);
    let mut one = pod["containers"][0].clone();
    one["volumeMounts"][0]["mountPropagation"] = json!("HostToContainer");
    let folder = json!({"name": "pod", "mountPath": "/pod"});
    one["volumeMounts"].as_array_mut().unwrap().push(folder);
    let named = |name: &str| {
        let mut container = one.clone();
        container["name"] = json!(name);
        container["env"] = json!([{"name": "NAME", "value": name}]);
        container
    };
    pod["containers"] = json!([named("one"), named("other")]);
    pod["volumes"].as_array_mut().unwrap().push(json!({"name": "pod", "emptyDir": {}}));
    pod
}

async fn restart(story: &Story, pod: &Pod, container: &str) {
    let name = format!("{}/{container}", pod.name_any());
    let before = story.container(&name).await.restart_count;
    let folder = format!("/var/lib/kubelet/pods/{}/volumes/kubernetes.io~empty-dir/pod", pod.uid().unwrap());
    fs::write(format!("{folder}/{container}"), "").unwrap();
    eventually(&format!("{name} has restarted"), LIMIT, || async {
        let now = story.container(&name).await;
        let runs = now.state.as_ref().is_some_and(|state| state.running.is_some());
        let again = runs && now.restart_count > before;
        Seen::some(again.then_some(()), serde_json::to_string(&now).unwrap())
    })
    .await;
}

/// After each event, every container of every pod can read its bucket without a restart.
async fn recover_from(name: &'static str, events: &[Event]) {
    let story = begin(name).await;
    let mut pods = vec![story.here.run("first", two_containers(story.name)).await];
    let containers = |pods: &[Pod]| -> Vec<String> {
        let both = |pod: &Pod| ["one", "other"].map(|name| format!("{}/{name}", pod.name_any()));
        pods.iter().flat_map(both).collect()
    };
    for container in containers(&pods) {
        story.says(&container, "good").await;
    }
    let mut restarts = 0;
    for event in events {
        match event {
            Event::Kill => end_container(story.name).await,
            Event::Restart(container) => {
                restart(&story, &pods[0], container).await;
                restarts += 1;
            }
            Event::Join => pods.push(story.here.run("second", two_containers(story.name)).await),
        }
        for container in containers(&pods) {
            reads_again(&story, &container).await;
        }
        story.mountpoint_pods().await;
    }
    let mut counted = 0;
    for container in containers(&pods) {
        counted += story.container(&container).await.restart_count;
    }
    assert_eq!(counted, restarts, "nothing else was started again");
    let pods: Vec<String> = pods.iter().map(Pod::name_any).collect();
    ends(story, &pods.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn a_container_that_started_on_a_recovered_mount_recovers_again() {
    recover_from("layers-restart", &[Event::Kill, Event::Restart("one"), Event::Kill, Event::Kill]).await;
}

#[tokio::test]
async fn a_container_that_started_after_several_deaths_recovers_again() {
    recover_from("layers-late", &[Event::Kill, Event::Kill, Event::Restart("one"), Event::Kill]).await;
}

#[tokio::test]
async fn containers_that_started_on_different_mounts_all_recover() {
    let events =
        [Event::Kill, Event::Restart("one"), Event::Kill, Event::Join, Event::Restart("other"), Event::Kill];
    recover_from("layers-mixed", &events).await;
}

/// Another Mountpoint Pod cannot continue the mount, so its own covers it.
#[tokio::test]
async fn running_containers_recover_when_an_evicted_mountpoint_pods_mount_cannot_move() {
    let story = begin("layers-evicted").await;
    let cached = "layers-evicted-cached";
    volume_with_cache(&story, cached).await;
    story.here.run("workload", two_containers(cached)).await;
    let containers = ["workload/one", "workload/other"];
    for container in containers {
        story.says(container, "good").await;
    }
    let served_by = story.mountpoint_pods().await.pop().unwrap();
    let process = processes("s3-csi-mountpoint", Some(story.name));
    remove_journals(&process);
    kubelet_evicts(&story, &served_by).await;
    another_serves(story.name, &process).await;
    for container in containers {
        reads_again(&story, container).await;
    }
    story.has_event("volume `layers-evicted-cached` is mounted again").await;
    assert!(!story.mountpoint_pods().await.contains(&served_by), "another pod serves it");
    for container in containers {
        assert_eq!(story.container(container).await.restart_count, 0, "{container}");
    }
    ends(story, &["workload"]).await;
}

/// Logs whether it can read and write its file. First it deletes what an earlier attempt left when its mount
/// ended, because objects cannot be overwritten.
const READS_AND_TRIES: &str = "while true; do \
    if cat /data/file >/dev/null 2>&1; then echo good; else echo bad; fi; rm -f /data/$NAME 2>/dev/null; \
    if echo x > /data/$NAME; then echo written; fi; sleep 0.3; done";

#[tokio::test]
async fn a_read_only_workload_recovers_and_stays_read_only_beside_one_that_writes() {
    let story = begin("layers-read-only").await;
    let with_name = |name: &str| {
        let mut pod = story.workload(READS_AND_TRIES);
        pod["containers"][0]["env"] = json!([{"name": "NAME", "value": name}]);
        pod["containers"][0]["volumeMounts"][0]["mountPropagation"] = json!("HostToContainer");
        pod
    };
    let mut reader = with_name("reader");
    reader["volumes"][0]["persistentVolumeClaim"]["readOnly"] = json!(true);
    story.here.run("reader", reader).await;
    story.says("reader", "good").await;
    story.here.run("writer", with_name("writer")).await;
    story.says("writer", "written").await;
    for _ in 0..2 {
        story.mountpoint_pods().await;
        end_container(story.name).await;
        story.says_again("writer", "written").await;
        reads_again(&story, "reader").await;
        story.says_again("reader", "Read-only file system").await;
    }
    assert!(!story.log("reader").await.contains("written"));
    for pod in ["reader", "writer"] {
        assert_eq!(story.container(pod).await.restart_count, 0);
    }
    ends(story, &["reader", "writer"]).await;
}
