//! The mount process or the Mountpoint Pod dies under a running workload.

use std::path::Path;
use std::process::Child;

use contract::names::DRIVER;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, LogParams};
use rustix::process::{Signal, kill_process};
use s3_csi_tests::csi::Csi;
use s3_csi_tests::manifest;
use s3_csi_tests::memory_limit::MemoryLimit;
use s3_csi_tests::mount_deaths::{
    FOREVER, another_serves, end_container, end_containers, end_containers_only, pid, reads_again,
};
use s3_csi_tests::node::metrics_of_installed;
use s3_csi_tests::processes::processes;
use s3_csi_tests::{Seen, eventually};
use serde_json::json;

use crate::story::{LIMIT, Story};
use s3_csi_tests::driver_pods::{driver_pods, replace};

/// Exits with the first error, and is then restarted by the kubelet.
const UNTIL_BAD: &str =
    "while cat /data/file >/dev/null 2>&1; do echo good; sleep 0.5; done; echo bad; exit 1";
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

/// Reads a file that it has open, and another one each time.
pub(crate) const READS_ON: &str = "exec 3< /data/large; while true; do \
    if cat /data/file >/dev/null && dd bs=1000 count=1 <&3 of=/tmp/part 2>/dev/null && [ -s /tmp/part ]; \
    then echo good; else echo bad; fi; sleep 0.3; done";

/// The workload does not need `mountPropagation`: it is the same mount all the time.
#[tokio::test]
async fn a_workload_does_not_notice_that_mount_processes_die() {
    let story = begin("survives").await;
    story.server.put(story.name, "large", &vec![b'x'; 2_000_000]).unwrap();
    story.here.run("workload", story.workload(READS_ON)).await;
    story.says("workload", "good").await;
    let served_by = story.mountpoint_pods().await.pop().unwrap();
    for signal in [Signal::KILL, Signal::SEGV, Signal::ABORT] {
        let killed = processes("s3-csi-mountpoint", Some(story.name));
        eventually("another mount process serves the bucket", LIMIT, || async {
            let serving = processes("s3-csi-mountpoint", Some(story.name));
            for process in serving.iter().filter(|process| killed.contains(process)) {
                // More than once: the standard library handles the first SIGSEGV, in case it was a stack overflow.
                let _ = kill_process(pid(*process), signal);
            }
            let replaced = serving.iter().any(|process| !killed.contains(process));
            Seen::some(replaced.then_some(()), format!("{serving:?}"))
        })
        .await;
        reads_again(&story, "workload").await;
        if signal == Signal::KILL {
            // Before the next one dies: the report is about the last one.
            story.has_event("signal: 9 (SIGKILL)").await;
        }
    }
    assert!(!story.log("workload").await.contains("bad"));
    assert_eq!(story.container("workload").await.restart_count, 0);
    let pod = story.mountpoint_pods_api().get(&served_by).await.unwrap();
    let restarts = pod.status.unwrap().container_statuses.unwrap()[0].restart_count;
    assert_eq!(restarts, 0, "the mounter went on, too");
    story.has_event("the mount process of volume `survives` died and another took over").await;
    eventually("the deaths are counted", LIMIT, || async {
        let metrics = metrics_of_installed(&story.here.client).await;
        let name = "s3_csi_node_mount_process_deaths_total ";
        let count = metrics.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok());
        Seen::some(count.filter(|count| *count >= 3).map(drop), format!("{count:?}"))
    })
    .await;
    ends(story, &["workload"]).await;
}

#[tokio::test]
async fn an_ended_container_is_replaced_and_a_restarted_workload_has_its_bucket() {
    let story = begin("dies-once").await;
    story.here.run("workload", story.workload(UNTIL_BAD)).await;
    story.says("workload", "good").await;
    let served_by = story.mountpoint_pods().await;
    end_containers(&processes("s3-csi-mountpoint", Some(story.name)));
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
        end_container(story.name).await;
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
    // A check of the mount may take longer than its time on a busy machine.
    let is_well = async || {
        eventually("the condition is not abnormal", LIMIT, || async {
            let condition = condition().await;
            Seen::some((!condition.abnormal).then_some(()), condition.message)
        })
        .await;
    };
    is_well().await;
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
    is_well().await;
    ends(story, &["workload"]).await;
}

/// It is the same mount, whichever node service has made it.
#[tokio::test]
async fn a_workload_does_not_notice_that_the_container_of_its_mountpoint_pod_ends() {
    let story = Story::alone("survives-container").await;
    story.server.put(story.name, "file", b"x").unwrap();
    story.server.put(story.name, "large", &vec![b'x'; 2_000_000]).unwrap();
    story.here.run("workload", story.workload(READS_ON)).await;
    story.says("workload", "good").await;
    let served_by = story.mountpoint_pods().await;
    for round in 0..2 {
        if round == 1 {
            let node = replace(&story, "s3-csi-node", DeleteParams::default()).await;
            let fetched = format!("\"mountpoint_pod\":\"{}\"", served_by[0]);
            eventually("the node service has fetched the descriptor", LIMIT, || async {
                let log = driver_pods(&story).logs(&node, &LogParams::default()).await.unwrap_or_default();
                let is_fetched = |line: &&str| line.contains("descriptor fetched") && line.contains(&fetched);
                Seen::some(log.lines().find(is_fetched).map(drop), log.clone())
            })
            .await;
        }
        let killed = processes("s3-csi-mountpoint", Some(story.name));
        end_containers_only(&killed);
        another_serves(story.name, &killed).await;
        reads_again(&story, "workload").await;
    }
    assert!(!story.log("workload").await.contains("bad"));
    assert_eq!(story.container("workload").await.restart_count, 0);
    assert_eq!(story.mountpoint_pods().await, served_by);
    ends(story, &["workload"]).await;
}

#[tokio::test]
async fn a_workload_does_not_notice_that_its_mountpoint_pod_runs_out_of_memory() {
    let story = begin("out-of-memory").await;
    let small = "out-of-memory-small";
    story
        .volume(small, |volume| {
            let attributes = &mut volume["spec"]["csi"]["volumeAttributes"];
            attributes["mountpointContainerResourcesLimitsMemory"] = json!("64Mi");
            attributes["mountpointContainerResourcesRequestsMemory"] = json!("64Mi");
        })
        .await;
    story.server.put(story.name, "large", &vec![b'x'; 2_000_000]).unwrap();
    story.here.run("workload", manifest::pod(&[small], READS_ON)).await;
    story.says("workload", "good").await;
    let name = story.mountpoint_pods().await.pop().unwrap();
    // Other processes use up the container's memory. There are several, because the kernel must not kill one of them, but the
    // mount process, and then the mounter.
    let process =
        processes("s3-csi-mountpoint", Some(story.name)).pop().expect("a process serves the bucket");
    let memory = MemoryLimit::of(&story.here.cluster, process);
    let hungry = || memory.command(Path::new("tail")).arg("/dev/zero").spawn().unwrap();
    let hungry: Vec<Child> = (0..3).map(|_| hungry()).collect();
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
    for mut hungry in hungry {
        // It may have ended with the container.
        let _ = hungry.kill();
        hungry.wait().unwrap();
    }
    another_serves(story.name, &[process]).await;
    reads_again(&story, "workload").await;
    assert_eq!(story.mountpoint_pods().await, [name], "the same pod serves it again");
    assert!(!story.log("workload").await.contains("bad"));
    assert_eq!(story.container("workload").await.restart_count, 0);
    story.has_event("ended: OOMKilled").await;
    ends(story, &["workload"]).await;
}
