//! The node service and mounts that it did not make: of older drivers, or left by an earlier process.

use std::fs;
use std::path::Path;
use std::time::Duration;

use contract::names::comm_on_node;
use kube::ResourceExt as _;
use node::kernel;
use node::safe_path::{Root, SafePath};
use s3_csi_tests::account::API_SERVER;
use s3_csi_tests::controller::shared;
use s3_csi_tests::csi::publish_request;
use s3_csi_tests::mountpoint_pod::{MountpointPod, bucket};
use s3_csi_tests::node::{Kubelet, NodeProgram};
use s3_csi_tests::relay::Relay;
use s3_csi_tests::{Seen, Stage, eventually, within};
use tonic::Code;
use xtask::s3::ALICE;

const LIMIT: Duration = Duration::from_mins(3);

fn place(kubelet: &Kubelet, path: &Path) -> SafePath {
    Root::open(kubelet.path()).unwrap().create(path).unwrap()
}

fn read(path: &Path) -> std::io::Result<String> {
    let path = path.to_owned();
    within("reading", LIMIT, move || fs::read_to_string(path))
}

/// Drivers of the systemd era mounted the bucket right at the target.
#[tokio::test]
async fn a_mount_of_the_first_drivers_stays_usable_and_is_unmounted() {
    bucket(ALICE, "of-the-first").put("of-the-first", "file", b"still here").unwrap();
    let (stage, kubelet, server) = (Stage::set("node-v1").await, Kubelet::default(), MountpointPod::start());
    let target = kubelet.target("uid", "pv");
    server.serve_at(ALICE, "of-the-first", &place(&kubelet, &target));
    let node = NodeProgram::start(&stage.here.client, &stage.node, &kubelet, &[]).await;
    let request = publish_request("handle", "of-the-first", &target);
    node.csi.publish(request).await.unwrap();
    assert_eq!(Kubelet::mounts(&target), 1, "nothing new is mounted");
    assert_eq!(read(&target.join("file")).unwrap(), "still here");
    let stats = node.csi.stats("handle", &target).await.unwrap();
    assert!(!stats.volume_condition.unwrap().abnormal);
    node.csi.unpublish("handle", &target).await.unwrap();
    assert_eq!(Kubelet::mounts(&target), 0);
}

#[tokio::test]
async fn what_a_dead_predecessor_left_is_swept_at_the_start() {
    bucket(ALICE, "swept").put("swept", "file", b"x").unwrap();
    let (stage, kubelet) = (Stage::set("node-sweep").await, Kubelet::default());
    // A source whose Mountpoint Pod is gone, and a workload's mount of it; both are dead.
    let (source, target) = (kubelet.source("mp-gone"), kubelet.target("gone", "pv"));
    drop(kernel::mount_source(&place(&kubelet, &source), false).unwrap());
    kernel::bind(&place(&kubelet, &source), &place(&kubelet, &target), false).unwrap();
    // A workload's mount without any source.
    let stray = kubelet.target("stray", "pv");
    drop(kernel::mount_source(&place(&kubelet, &stray), false).unwrap());
    // One that is served, which a sweep must leave alone.
    let (used, server) = (kubelet.target("used", "pv"), MountpointPod::start());
    server.serve_at(ALICE, "swept", &place(&kubelet, &used));
    let node = NodeProgram::start(&stage.here.client, &stage.node, &kubelet, &[]).await;
    eventually("everything dead is gone", LIMIT, || async {
        let left = [&source, &target, &stray].map(|path| Kubelet::mounts(path));
        Seen::some((left == [0, 0, 0] && !source.exists()).then_some(()), format!("{left:?}"))
    })
    .await;
    assert_eq!(read(&used.join("file")).unwrap(), "x");
    assert!(node.metrics().contains("s3_csi_node_sweeps_total 1"));
}

#[tokio::test]
async fn an_unpublish_needs_neither_api_server_nor_mountpoint_pod() {
    let (stage, kubelet) = (Stage::set("node-unpublish").await, Kubelet::default());
    let relay = Relay::to(Some(API_SERVER));
    let server = relay.url().replace("http://", "");
    let node = NodeProgram::start_on(&server, &stage.here.client, &stage.node, &kubelet, &[]).await;
    relay.cut();
    let unpublish = |name: &'static str| {
        let (csi, target) = (node.csi.clone(), kubelet.target(name, "pv"));
        async move {
            csi.unpublish("handle", &target).await.unwrap();
            assert_eq!(Kubelet::mounts(&target), 0, "{name}");
        }
    };
    unpublish("never-there").await;
    place(&kubelet, &kubelet.target("plain-folder", "pv"));
    unpublish("plain-folder").await;
    let stacked = place(&kubelet, &kubelet.target("stacked", "pv"));
    drop([0; 3].map(|_| kernel::mount_source(&stacked, false).unwrap()));
    unpublish("stacked").await;
    let dead = kubelet.target("dead", "pv");
    drop(kernel::mount_source(&place(&kubelet, &dead), false).unwrap());
    let condition = node.csi.stats("handle", &dead).await.unwrap().volume_condition.unwrap();
    assert!(condition.abnormal && condition.message.contains("mount process died"), "{}", condition.message);
    unpublish("dead").await;
    let unresponsive =
        kernel::mount_source(&place(&kubelet, &kubelet.target("unresponsive", "pv")), false).unwrap();
    unpublish("unresponsive").await;
    drop(unresponsive);
}

/// The API server is unavailable when the node service starts: it unmounts at once, sweeps nothing, and mounts when the API
/// server is back.
#[tokio::test]
async fn a_start_without_the_api_server_unmounts_at_once_and_mounts_later() {
    bucket(ALICE, "node-outage").put("node-outage", "file", b"served").unwrap();
    let (stage, kubelet) = (Stage::set("node-outage").await, Kubelet::default());
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[("bucketName", "node-outage")], &[]).await;
    let workload = stage.workload("w", &["data"]).await;
    let (_, pod) = stage.attached(&workload).await;
    stage.schedule_mountpoint(&pod.name_any()).await;
    let volume = stage.volume_name("data");
    let target = kubelet.target(&workload.uid().unwrap(), &volume);
    let request = publish_request(&volume, "node-outage", &target);
    // One of an attached workload, which only the API server knows, and one of a workload that is being deleted.
    drop(kernel::mount_source(&place(&kubelet, &target), false).unwrap());
    let leaving = kubelet.target("leaving", "pv");
    drop(kernel::mount_source(&place(&kubelet, &leaving), false).unwrap());

    let relay = Relay::to(Some(API_SERVER));
    relay.cut();
    let server = relay.url().replace("http://", "");
    let node = NodeProgram::start_on(&server, &stage.here.client, &stage.node, &kubelet, &[]).await;
    node.csi.unpublish("handle", &leaving).await.unwrap();
    assert_eq!(Kubelet::mounts(&leaving), 0);
    let waits = node.csi.publish(request.clone()).await.unwrap_err();
    assert_eq!(waits.code(), Code::Unavailable);
    assert!(waits.message().contains("waiting for the API server"), "{waits}");
    assert!(node.metrics().contains("s3_csi_node_sweeps_total 0"), "its caches are empty");

    relay.mend();
    let _pod = MountpointPod::start_at(&comm_on_node(kubelet.path(), &pod.uid().unwrap()));
    eventually("it is published", LIMIT, || async {
        match node.csi.publish(request.clone()).await {
            Ok(()) => Seen::Yes(()),
            Err(error) => Seen::NotYet(error.to_string()),
        }
    })
    .await;
    assert_eq!(read(&target.join("file")).unwrap(), "served");
    eventually("a sweep has run", LIMIT, || async {
        let swept = node.metrics().contains("s3_csi_node_sweeps_total 1");
        Seen::some(swept.then_some(()), node.log())
    })
    .await;
    assert_eq!(Kubelet::mounts(&target), 2, "upon the dead one, which was not swept");
}

/// A publish leaves it to healing, which must know of the mount although none has succeeded since the start.
#[tokio::test]
async fn a_mount_that_does_not_answer_the_next_node_service_is_replaced() {
    bucket(ALICE, "node-stuck").put("node-stuck", "file", b"served").unwrap();
    let (stage, kubelet) = (Stage::set("node-stuck").await, Kubelet::default());
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[("bucketName", "node-stuck")], &[]).await;
    let workload = stage.workload("w", &["data"]).await;
    let (_, pod) = stage.attached(&workload).await;
    stage.schedule_mountpoint(&pod.name_any()).await;
    let volume = stage.volume_name("data");
    let target = kubelet.target(&workload.uid().unwrap(), &volume);
    let source = place(&kubelet, &kubelet.source(&pod.name_any()));
    let _unanswered = kernel::mount_source(&source, false).unwrap();
    kernel::bind(&source, &place(&kubelet, &target), false).unwrap();
    let mounter = MountpointPod::start_at(&comm_on_node(kubelet.path(), &pod.uid().unwrap()));
    mounter.listening();

    let node = NodeProgram::start(&stage.here.client, &stage.node, &kubelet, &[]).await;
    let request = publish_request(&volume, "node-stuck", &target);
    let refused = node.csi.publish(request.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("is not responding"), "{refused}");
    eventually("it is published", LIMIT, || async {
        match node.csi.publish(request.clone()).await {
            Ok(()) => Seen::Yes(()),
            Err(error) => Seen::NotYet(format!("{error}\n{}", node.log())),
        }
    })
    .await;
    assert_eq!(read(&target.join("file")).unwrap(), "served");
}

/// A link that a pod made inside its volume's directory must not lead the driver out of the kubelet's.
#[tokio::test]
async fn no_link_leads_out_of_kubelets_folder() {
    let (stage, kubelet) = (Stage::set("node-links").await, Kubelet::default());
    let node = NodeProgram::start(&stage.here.client, &stage.node, &kubelet, &[]).await;
    let outside = tempfile::tempdir_in("/run").unwrap();
    fs::create_dir(outside.path().join("mount")).unwrap();
    let device = kernel::mount_source(
        &Root::open(outside.path()).unwrap().create(&outside.path().join("mount")).unwrap(),
        false,
    );
    let target = kubelet.target("uid", "pv");
    fs::create_dir_all(target.parent().unwrap().parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(outside.path(), target.parent().unwrap()).unwrap();
    assert!(node.csi.unpublish("handle", &target).await.is_err());
    assert_eq!(Kubelet::mounts(&outside.path().join("mount")), 1, "a mount elsewhere is not touched");
    drop(device);
    rustix::mount::unmount(outside.path().join("mount"), rustix::mount::UnmountFlags::DETACH).unwrap();
}
