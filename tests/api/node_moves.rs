//! The node service moves mounts between Mountpoint Pods, and finishes what an earlier one has begun.

use std::fs;

use kube::ResourceExt as _;
use mounter::handover::MountReply;
use mounter::{JOURNAL, SURVIVAL};
use rustix::process::{Pid, Signal, kill_process};
use s3_csi_tests::mountpoint_pod::bucket;
use s3_csi_tests::node::Kubelet;
use s3_csi_tests::relocation::{Kept, leaves};
use s3_csi_tests::{Seen, eventually, within};
use serde_json::json;
use xtask::s3::ALICE;

use crate::node_published::{LIMIT, Published, programs_that_wait_for, publish, start_programs};
use crate::upgrade::make_outdated;

#[tokio::test]
async fn the_mount_of_a_failed_pod_moves_to_its_replacement() {
    let (mut published, node) = Published::begin("node-moves").await;
    published.mounter.end_container();
    let failed = json!({"phase": "Failed", "reason": "Evicted", "message": "low on disk"});
    published.stage.report_mountpoint(&published.pod.name_any(), failed).await;
    let (pod, _mounter) = published.reassigned().await;
    published.is_mounted_by(&node, &pod, &published.pod).await;
    assert!(node.metrics().contains("s3_csi_node_mount_moves_total 1"), "{}", node.metrics());
    assert_eq!(published.reads_on(), "content");
}

/// The node service was killed while a mount moved: before the next pod had it, and after.
#[tokio::test]
async fn a_move_that_was_interrupted_is_finished_or_undone() {
    let (published, node) = Published::begin("node-interrupted").await;
    drop(node);
    assert_eq!(leaves(&published.mounter), MountReply::Left);
    let node = published.restart().await;
    let path = published.target.join("file");
    assert_eq!(within("reading", LIMIT, move || fs::read_to_string(path)).unwrap(), "content", "undone");
    drop(node);

    make_outdated(&published.stage, &published.pod).await;
    let (pod, mounter) = published.reassigned().await;
    let kept = Kept::of(&published.mounter);
    assert_eq!(leaves(&published.mounter), MountReply::Left);
    published.bind_source_to(&pod);
    let reply = kept.arrives_at(&mounter, published.bucket, &[]);
    assert!(matches!(reply, MountReply::Serving(_)), "{reply:?}");
    drop(kept);
    let node = published.restart().await;
    published.is_mounted_by(&node, &pod, &published.pod).await;
    assert_eq!(published.reads_on(), "content", "finished");
}

/// The old pod has left the mount, and the next one was not asked to serve it yet.
#[tokio::test]
async fn a_move_that_was_interrupted_before_the_next_pod_served_is_repeated() {
    let (published, node) = Published::begin("node-between").await;
    drop(node);
    make_outdated(&published.stage, &published.pod).await;
    let (pod, _mounter) = published.reassigned().await;
    assert_eq!(leaves(&published.mounter), MountReply::Left);
    published.bind_source_to(&pod);
    let node = published.restart().await;
    publish(&node, &published.request()).await;
    published.is_mounted_by(&node, &pod, &published.pod).await;
    assert_eq!(published.reads_on(), "content");
}

/// The next pod has the mount, and the node service was killed before it heard whether it is served there.
#[tokio::test]
async fn a_move_that_was_interrupted_while_the_next_pod_started_to_serve_is_finished() {
    let (published, node) = Published::begin("node-starting").await;
    let programs = programs_that_wait_for("go");
    make_outdated(&published.stage, &published.pod).await;
    let pod = published.next_pod().await;
    let mounter = start_programs(programs.path(), &published.stage, &published.kubelet, &pod).await;
    mounter.logs("mount handed over again");
    drop(node);
    assert!(published.mounter.mount_process().is_none(), "it has left");
    let node = published.restart().await;
    fs::write(programs.path().join("go"), "").unwrap();
    published.is_mounted_by(&node, &pod, &published.pod).await;
    let serve = [&published.mounter, &mounter].map(|mounter| mounter.mount_process().is_some());
    assert_eq!(serve, [false, true], "one process serves the mount\n{}", node.log());
    assert_eq!(published.reads_on(), "content");
}

/// Without a journal, no other mount process can continue.
#[tokio::test]
async fn a_mount_that_cannot_move_is_covered_by_a_new_one() {
    let (mut published, node) = Published::begin("node-covered").await;
    let volume = published.stage.volume_name("data");
    // A check of the mount may take longer than its time on a busy machine.
    let is_said = async |words: &str| {
        eventually(&format!("the condition is `{words}`"), LIMIT, || async {
            let stats = node.csi.stats(&volume, &published.target).await.unwrap();
            let condition = stats.volume_condition.unwrap();
            let is_said = !condition.abnormal && condition.message.contains(words);
            Seen::some(is_said.then_some(()), condition.message)
        })
        .await;
    };
    is_said("the volume is mounted").await;
    fs::remove_file(published.mounter.comm.path().join(SURVIVAL).join(JOURNAL)).unwrap();
    is_said("will not survive its mount process").await;
    published.mounter.end_container();
    let failed = json!({"phase": "Failed", "reason": "Evicted", "message": "low on disk"});
    published.stage.report_mountpoint(&published.pod.name_any(), failed).await;
    let (pod, _mounter) = published.reassigned().await;
    eventually("another mount is upon the old one", LIMIT, || async {
        // As the kubelet does now and then.
        let published_again = node.csi.publish(published.request()).await;
        let mounts =
            (Kubelet::mounts(&published.target), Kubelet::mounts(&published.kubelet.source(&pod.name_any())));
        Seen::some((mounts == (3, 1)).then_some(()), format!("{mounts:?}, {published_again:?}"))
    })
    .await;
    let path = published.target.join("file");
    assert_eq!(within("reading", LIMIT, move || fs::read_to_string(path)).unwrap(), "content");
    assert!(node.metrics().contains("s3_csi_node_mount_moves_total 0"));
    let read = published.reads_on();
    assert!(read.contains("not connected"), "the old one has ended: {read}");
}

/// The other one may never start, and keys and tokens change meanwhile.
#[tokio::test]
async fn a_pod_that_still_serves_gets_credentials_although_another_is_assigned() {
    let (published, node) = Published::begin("node-renews").await;
    make_outdated(&published.stage, &published.pod).await;
    let next = published.next_pod().await;
    let name = published.pod.name_any();
    let credentials = published.mounter.comm.path().join("credentials").join(&name);
    fs::remove_file(&credentials).unwrap();
    eventually("its credentials are written again", LIMIT, || async {
        let published_again = node.csi.publish(published.request()).await;
        assert!(published_again.is_err(), "{} does not run", next.name_any());
        Seen::some(credentials.exists().then_some(()), format!("{published_again:?}"))
    })
    .await;
    assert_eq!(published.reads_on(), "content");
}

/// The next mounter has the mount and does not answer for a while, so that the node service does not know whether it serves.
#[tokio::test]
async fn a_move_whose_outcome_is_unknown_is_settled_when_the_next_pod_answers() {
    let (published, node) = Published::begin("node-unknown").await;
    let programs = programs_that_wait_for("go");
    make_outdated(&published.stage, &published.pod).await;
    let pod = published.next_pod().await;
    let mounter = start_programs(programs.path(), &published.stage, &published.kubelet, &pod).await;
    mounter.logs("mount handed over again");
    let stopped = Pid::from_child(&mounter.process);
    kill_process(stopped, Signal::STOP).unwrap();
    node.says("cannot move the mount, retrying").await;
    kill_process(stopped, Signal::CONT).unwrap();
    mounter.logs("did not report within");
    fs::write(programs.path().join("go"), "").unwrap();
    published.is_mounted_by(&node, &pod, &published.pod).await;
    assert_eq!(published.reads_on(), "content");
}

/// The same, and the node service is restarted meanwhile.
#[tokio::test]
async fn a_move_that_was_interrupted_is_settled_when_the_next_pod_answers() {
    let (published, node) = Published::begin("node-unknown-again").await;
    let programs = programs_that_wait_for("go");
    make_outdated(&published.stage, &published.pod).await;
    let pod = published.next_pod().await;
    let mounter = start_programs(programs.path(), &published.stage, &published.kubelet, &pod).await;
    mounter.logs("mount handed over again");
    // Before the node service ends, which may take as long as the mounter waits for its mount process.
    let stopped = Pid::from_child(&mounter.process);
    kill_process(stopped, Signal::STOP).unwrap();
    drop(node);
    let node = published.restart().await;
    // On a busy machine, the mounter may have given up before it was stopped.
    let is_decided = |log: &str| {
        log.contains("cannot resume a move, retrying")
            || log.contains("the mount did not move and is served again")
    };
    eventually("the node service retries or has gone back", LIMIT, || async {
        let log = node.log();
        Seen::some(is_decided(&log).then_some(()), log)
    })
    .await;
    fs::write(programs.path().join("go"), "").unwrap();
    kill_process(stopped, Signal::CONT).unwrap();
    publish(&node, &published.request()).await;
    published.is_mounted_by(&node, &pod, &published.pod).await;
    assert_eq!(published.reads_on(), "content");
}

#[tokio::test]
async fn a_mount_does_not_move_to_a_pod_that_serves_another() {
    let (published, node) = Published::begin("node-taken").await;
    kill_process(node.pid(), Signal::STOP).unwrap();
    make_outdated(&published.stage, &published.pod).await;
    let (_, mounter) = published.reassigned().await;
    bucket(ALICE, "node-taken-other");
    let _other = mounter.serve(ALICE, "node-taken-other", &[]);
    kill_process(node.pid(), Signal::CONT).unwrap();
    node.says("the mount stays: this Mountpoint Pod cannot take it over").await;
    assert!(node.metrics().contains("s3_csi_node_mount_moves_total 0"), "{}", node.metrics());
    assert_eq!(published.reads_on(), "content");
}
