//! The mount process or the Mountpoint Pod dies under a running workload.

use std::fs;
use std::path::Path;

use contract::names::DRIVER;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, EvictParams};
use rustix::process::{Pid, Signal, kill_process};
use s3_csi_tests::csi::Csi;
use s3_csi_tests::manifest;
use s3_csi_tests::memory_limit::MemoryLimit;
use s3_csi_tests::node::metrics_of_installed;
use s3_csi_tests::processes::processes;
use s3_csi_tests::{Seen, eventually};
use serde_json::json;

use crate::story::{LIMIT, Story};

/// Exits with the first error, and is then restarted by the kubelet.
const UNTIL_BAD: &str =
    "while cat /data/file >/dev/null 2>&1; do echo good; sleep 0.5; done; echo bad; exit 1";
/// Keeps running and logs what it sees.
pub(crate) const FOREVER: &str =
    "while true; do if cat /data/file >/dev/null 2>&1; then echo good; else echo bad; fi; sleep 0.3; done";

pub(crate) async fn begin(name: &'static str) -> Story {
    let story = Story::begin(name).await;
    story.server.put(name, "file", b"x").unwrap();
    story
}

/// Sends the signal to the process that serves the bucket.
fn signal_mount_process(bucket: &str, signal: Signal) {
    let process = processes("s3-csi-mountpoint", Some(bucket)).pop().expect("a process serves the bucket");
    kill_process(pid(process), signal).unwrap();
}

/// Kills the process that serves the bucket, and waits for its successor. A busy container may not have noticed.
pub(crate) async fn kill_mount_process(bucket: &str) {
    let killed = processes("s3-csi-mountpoint", Some(bucket));
    assert!(!killed.is_empty(), "a process serves the bucket");
    for process in &killed {
        kill_process(pid(*process), Signal::KILL).unwrap();
    }
    eventually("another mount process serves the bucket", LIMIT, || async {
        let serving = processes("s3-csi-mountpoint", Some(bucket));
        let replaced = serving.iter().any(|process| !killed.contains(process));
        Seen::some(replaced.then_some(()), format!("{serving:?}"))
    })
    .await;
}

/// Waits for two more successes: the second is one of a `cat` that began after the call.
pub(crate) async fn reads_again(story: &Story, container: &str) {
    story.says_again(container, "good").await;
    story.says_again(container, "good").await;
}

pub(crate) fn pid(process: u32) -> Pid {
    i32::try_from(process).ok().and_then(Pid::from_raw).unwrap()
}

/// Waits until the container has restarted and can read its bucket.
async fn restarts_and_recovers(story: &Story, pod: &str) {
    eventually("the container has restarted and reads its bucket", LIMIT, || async {
        let container = story.container(pod).await;
        let runs = container.state.as_ref().is_some_and(|it| it.running.is_some());
        let good = container.restart_count > 0 && runs && story.log(pod).await.contains("good");
        Seen::some(good.then_some(()), serde_json::to_string(&container).unwrap())
    })
    .await;
}

pub(crate) async fn ends(story: Story, pods: &[&str]) {
    for pod in pods {
        story.here.delete(pod).await;
    }
    story.leaves_nothing().await;
}

#[tokio::test]
async fn a_killed_process_is_replaced_and_a_restarted_container_has_its_bucket() {
    let story = begin("dies-once").await;
    story.here.run("workload", story.workload(UNTIL_BAD)).await;
    story.says("workload", "good").await;
    let served_by = story.mountpoint_pods().await;
    signal_mount_process(story.name, Signal::KILL);
    restarts_and_recovers(&story, "workload").await;
    assert_eq!(story.mountpoint_pods().await, served_by, "the same pod serves it again");
    story.has_event("the mount process of volume `dies-once` died").await;
    story.has_event("volume `dies-once` is mounted again").await;
    ends(story, &["workload"]).await;
}

#[tokio::test]
async fn a_running_container_that_listens_to_the_node_recovers_by_itself() {
    let story = begin("recovers").await;
    let mut listening = story.workload(FOREVER);
    listening["containers"][0]["volumeMounts"][0]["mountPropagation"] = json!("HostToContainer");
    story.here.run("listening", listening).await;
    story.here.run("deaf", story.workload(FOREVER)).await;
    // Twice, because the second crash hits the mount on top of the first one.
    for _ in 0..2 {
        for pod in ["listening", "deaf"] {
            story.says(pod, "good").await;
        }
        story.mountpoint_pods().await;
        kill_mount_process(story.name).await;
        reads_again(&story, "listening").await;
    }
    assert_eq!(story.container("listening").await.restart_count, 0);
    story.says_again("deaf", "bad").await;
    let deaf = story.log("deaf").await;
    assert!(deaf.trim_end().ends_with("bad"), "a container without propagation keeps its dead mount");
    // Meanwhile, new workloads are served.
    story.here.run("new", story.workload(FOREVER)).await;
    story.says("new", "good").await;
    ends(story, &["listening", "deaf", "new"]).await;
}

/// A stopped mount process neither dies nor serves.
#[tokio::test]
async fn a_mount_process_that_does_not_answer_is_reported_and_replaced() {
    let story = begin("unresponsive").await;
    let mut listening = story.workload(FOREVER);
    listening["containers"][0]["volumeMounts"][0]["mountPropagation"] = json!("HostToContainer");
    let pod = story.here.run("workload", listening).await;
    story.says("workload", "good").await;
    story.mountpoint_pods().await;
    let kubelet = Path::new("/var/lib/kubelet");
    let csi = Csi::connect(&kubelet.join("plugins").join(DRIVER).join("csi.sock")).await.unwrap();
    let uid = pod.uid().unwrap();
    let target = kubelet.join(format!("pods/{uid}/volumes/kubernetes.io~csi/{}/mount", story.name));
    let condition = async || csi.stats(story.name, &target).await.unwrap().volume_condition.unwrap();
    assert!(!condition().await.abnormal);
    signal_mount_process(story.name, Signal::STOP);
    eventually("the condition is abnormal", LIMIT, || async {
        let condition = condition().await;
        let silent = condition.abnormal && condition.message.contains("is not responding");
        Seen::some(silent.then_some(()), condition.message)
    })
    .await;
    story.has_event("volume `unresponsive` is not responding").await;
    let metrics = metrics_of_installed(&story.here.client).await;
    let count = metrics.lines().find_map(|line| line.strip_prefix("s3_csi_node_unresponsive_mounts "));
    assert!(count.is_some_and(|count| count != "0"), "{metrics}");
    // The node service aborts the connection, so that blocked file operations fail. The process stays stopped, so the
    // mounter must kill it before the bucket can be mounted again.
    story.says("workload", "bad").await;
    story.has_event("volume `unresponsive` is mounted again").await;
    story.says_again("workload", "good").await;
    assert_eq!(story.container("workload").await.restart_count, 0);
    assert!(!condition().await.abnormal);
    ends(story, &["workload"]).await;
}

#[tokio::test]
async fn a_deleted_mountpoint_pod_is_replaced() {
    let story = begin("pod-deleted").await;
    story.here.run("workload", story.workload(UNTIL_BAD)).await;
    story.says("workload", "good").await;
    let name = story.mountpoint_pods().await.pop().unwrap();
    let pods = story.mountpoint_pods_api();
    let before = pods.get(&name).await.unwrap().uid();
    pods.delete(&name, &DeleteParams::default().grace_period(0)).await.unwrap();
    restarts_and_recovers(&story, "workload").await;
    // The replacement can have the same name, because the pod of that name is gone.
    eventually("another Mountpoint Pod serves it", LIMIT, || async {
        let names = story.mountpoint_pods().await;
        let [name] = names.as_slice() else { return Seen::NotYet(format!("{names:?}")) };
        let now = pods.get_opt(name).await.unwrap().and_then(|pod| pod.uid());
        Seen::some((now.is_some() && now != before).then_some(()), format!("{names:?}"))
    })
    .await;
    ends(story, &["workload"]).await;
}

/// During the grace period of an evicted pod, running workloads keep their mount and new workloads get a new pod.
#[tokio::test]
async fn an_evicted_mountpoint_pod_serves_on_and_is_replaced_for_others() {
    let story = begin("pod-evicted").await;
    story.here.run("workload", story.workload(FOREVER)).await;
    story.says("workload", "good").await;
    let before = story.mountpoint_pods().await;
    story.mountpoint_pods_api().evict(&before[0], &EvictParams::default()).await.unwrap();
    story.here.run("new", story.workload(FOREVER)).await;
    story.says("new", "good").await;
    story.says_again("workload", "good").await;
    assert!(!story.log("workload").await.contains("bad"));
    assert!(story.mountpoint_pods().await.len() > 1, "the new one has another");
    ends(story, &["workload", "new"]).await;
}

#[tokio::test]
async fn a_mountpoint_pod_that_runs_out_of_memory_heals() {
    let story = begin("out-of-memory").await;
    let small = "out-of-memory-small";
    story
        .volume(small, |volume| {
            let attributes = &mut volume["spec"]["csi"]["volumeAttributes"];
            attributes["mountpointContainerResourcesLimitsMemory"] = json!("64Mi");
            attributes["mountpointContainerResourcesRequestsMemory"] = json!("64Mi");
        })
        .await;
    story.here.run("workload", manifest::pod(&[small], UNTIL_BAD)).await;
    story.says("workload", "good").await;
    let name = story.mountpoint_pods().await.pop().unwrap();
    // Another process uses up the container's memory, and the kernel kills the mount process.
    let process =
        processes("s3-csi-mountpoint", Some(story.name)).pop().expect("a process serves the bucket");
    fs::write(format!("/proc/{process}/oom_score_adj"), "1000").unwrap();
    let memory = MemoryLimit::of(&story.here.cluster, process);
    let mut hungry = memory.command(Path::new("tail")).arg("/dev/zero").spawn().unwrap();
    eventually("the container is OOM-killed", LIMIT, || async {
        let status = story.mountpoint_pods_api().get(&name).await.unwrap().status.unwrap_or_default();
        let ended = status.container_statuses.iter().flatten().find_map(|container| {
            let both = [&container.state, &container.last_state];
            both.into_iter().flatten().find_map(|state| state.terminated.clone()?.reason)
        });
        let seen = serde_json::to_string(&status.container_statuses).unwrap();
        Seen::some((ended.as_deref() == Some("OOMKilled")).then_some(()), seen)
    })
    .await;
    // It ended with the container, unless the kernel killed it before.
    let _ = hungry.kill();
    hungry.wait().unwrap();
    restarts_and_recovers(&story, "workload").await;
    assert_eq!(story.mountpoint_pods().await, [name], "the same pod serves it again");
    ends(story, &["workload"]).await;
}
