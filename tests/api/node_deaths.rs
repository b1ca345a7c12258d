//! Mount processes and the containers of Mountpoint Pods die, and the node service continues their mounts or says why not.

use std::fs;

use mounter::handover::MountReply;
use mounter::{JOURNAL, SURVIVAL};
use rustix::process::{Signal, kill_process};
use s3_csi_tests::relocation::Kept;
use s3_csi_tests::{Seen, eventually};

use crate::node_published::{LIMIT, Published};

/// The container has started again and has the mount, but the node service did not hear that.
#[tokio::test]
async fn a_mounter_whose_reply_was_lost_is_known_to_serve() {
    let (mut published, node) = Published::begin("node-reply-lost").await;
    let kept = Kept::of(&published.mounter);
    kill_process(node.pid(), Signal::STOP).unwrap();
    published.mounter.end_container();
    published.mounter = published.mounter.restart();
    published.mounter.listening();
    let reply = kept.continues_at(&published.mounter);
    assert!(matches!(reply, MountReply::Serving(_)), "{reply:?}");
    drop(kept);
    kill_process(node.pid(), Signal::CONT).unwrap();
    eventually("the death is counted", LIMIT, || async {
        let counted = node.metrics().contains("s3_csi_node_mount_process_deaths_total 1");
        Seen::some(counted.then_some(()), node.log())
    })
    .await;
    assert_eq!(published.reads_on(), "content");
}

/// Neither its container nor another pod ever starts. How soon the node service gives up is proved beside the figure, in
/// `heal/plan.rs`, because a busy machine may take longer here.
#[tokio::test]
async fn a_mount_that_no_pod_serves_any_more_ends() {
    let (mut published, node) = Published::begin("node-nothing-left").await;
    published.mounter.end_container();
    let read = published.reads_on();
    assert!(read.contains("not connected") || read.contains("aborted"), "{read}");
    eventually("the node service has given up", LIMIT, || async {
        let gave_up = node.log().contains("aborted an unresponsive mount");
        Seen::some(gave_up.then_some(()), node.log())
    })
    .await;
}

/// As before Linux 6.9, no other mount process can continue.
#[tokio::test]
async fn the_end_of_a_mount_is_counted_and_reported_with_its_reason() {
    let (published, node) = Published::begin("node-last-words").await;
    fs::remove_file(published.mounter.comm.path().join(SURVIVAL).join(JOURNAL)).unwrap();
    kill_process(published.mounter.mount_process().unwrap(), Signal::KILL).unwrap();
    let event = published.stage.event("w", "BucketMountLost").await;
    assert!(event.contains("the mount process ended with signal: 9 (SIGKILL)"), "{event}");
    eventually("the death is counted", LIMIT, || async {
        let counted = node.metrics().contains("s3_csi_node_mount_process_deaths_total 1");
        Seen::some(counted.then_some(()), node.log())
    })
    .await;
}

/// As in a rollout of the `DaemonSet`. The descriptor of the mount is nowhere else at that moment.
#[tokio::test]
async fn a_node_service_that_is_stopped_waits_until_its_mounts_are_served() {
    let (mut published, node) = Published::begin("node-stops-last").await;
    published.mounter.end_container();
    node.terminate();
    node.says("waiting for mounts to be served again").await;
    published.mounter = published.mounter.restart();
    published.mounter.listening();
    assert!(node.ended().success());
    assert_eq!(published.reads_on(), "content");
}
