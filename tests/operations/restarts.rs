//! Parts of the driver and of the node restart under a running workload, whose I/O continues.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use contract::names::DRIVER;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use rustix::process::{Signal, kill_process};
use s3_csi_tests::beat::{BEAT, end_without_errors, serves_another};
use s3_csi_tests::csi::Csi;
use s3_csi_tests::driver_pods::replace;
use s3_csi_tests::processes::processes;
use s3_csi_tests::{Seen, eventually};
use serde_json::json;
use xtask::cluster::{Cluster, Part};
use xtask::command::run;

use crate::changed::{self, Changed};
use crate::story::{LIMIT, Story};
use s3_csi_tests::mount_deaths::pid;

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

/// The cluster without its API server. The other components go on.
fn without_api_server(cluster: &Cluster) -> Changed {
    let own = cluster.clone();
    let start = move || {
        own.start(Part::ApiServer)?;
        until_ready(&own)
    };
    Changed::make("the API server", || cluster.stop(Part::ApiServer), start)
}

fn until_ready(cluster: &Cluster) -> Result<()> {
    /// Each starts a kubectl.
    const POLL_INTERVAL: Duration = Duration::from_millis(200);
    let until = Instant::now() + LIMIT;
    loop {
        match run(cluster.kubectl()?.args(["get", "--raw=/readyz"])) {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > until => return Err(error).context("the API server is not ready"),
            Err(_) => thread::sleep(POLL_INTERVAL),
        }
    }
}

/// On the node, where it is also while there is no API server.
fn log_on_node(pod: &Pod) -> String {
    let (namespace, name, uid) = (pod.namespace().unwrap(), pod.name_any(), pod.uid().unwrap());
    fs::read_to_string(format!("/var/log/pods/{namespace}_{name}_{uid}/main/0.log")).unwrap_or_default()
}

async fn beats_on_node(pod: &Pod) {
    let before = log_on_node(pod).matches("beat").count();
    // The second is one of a round that began after the call.
    eventually("the workload reads and writes", LIMIT, || async {
        let log = log_on_node(pod);
        let goes_on = log.matches("beat").count() > before + 1;
        Seen::some(goes_on.then_some(()), xtask::command::tail(&log))
    })
    .await;
}

fn target(pod: &Pod, volume: &str) -> PathBuf {
    let uid = pod.uid().unwrap();
    PathBuf::from(format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/{volume}/mount"))
}

/// Pods that end are unmounted, the node service starts again, and new pods wait. Then a new one is mounted by that node
/// service, which the kubelet could not register before.
#[tokio::test]
async fn the_api_server() {
    let story = Story::alone("no-api-server").await;
    let workload = story.here.run("workload", story.workload(BEAT)).await;
    let mut ending = story.workload("echo up; until [ -e /pod/end ]; do sleep 0.2; done");
    ending["restartPolicy"] = json!("Never");
    ending["volumes"].as_array_mut().unwrap().push(json!({"name": "pod", "emptyDir": {}}));
    let folder = json!({"name": "pod", "mountPath": "/pod"});
    ending["containers"][0]["volumeMounts"].as_array_mut().unwrap().push(folder);
    let ending = story.here.run("ending", ending).await;
    story.says("workload", "beat").await;
    story.says("ending", "up").await;
    story.mountpoint_pods().await;

    let away = without_api_server(&story.here.cluster);
    beats_on_node(&workload).await;
    let uid = ending.uid().unwrap();
    fs::write(format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/pod/end"), "").unwrap();
    eventually("the pod that has ended is unmounted", LIMIT, || async {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let there = mounts.lines().find(|line| line.contains(target(&ending, story.name).to_str().unwrap()));
        there.map_or(Seen::Yes(()), |mount| Seen::NotYet(mount.to_owned()))
    })
    .await;

    let killed = processes("s3-csi-node", None);
    for process in &killed {
        kill_process(pid(*process), Signal::KILL).unwrap();
    }
    let socket = Path::new("/var/lib/kubelet/plugins").join(DRIVER).join("csi.sock");
    eventually("another node service knows the mount", LIMIT, || async {
        let running = processes("s3-csi-node", None);
        if running.is_empty() || running.iter().any(|process| killed.contains(process)) {
            return Seen::NotYet(format!("{running:?}"));
        }
        let Ok(csi) = Csi::connect(&socket).await else { return Seen::NotYet("it does not listen".into()) };
        let stats = csi.stats(story.name, &target(&workload, story.name)).await;
        let condition = stats.map(|stats| stats.volume_condition);
        let is_well = matches!(&condition, Ok(Some(condition)) if !condition.abnormal);
        Seen::some(is_well.then_some(()), format!("{condition:?}"))
    })
    .await;
    beats_on_node(&workload).await;

    away.undo();
    story.here.phase("ending", "Succeeded").await;
    story.here.delete("ending").await;
    keeps_serving(story).await;
}
