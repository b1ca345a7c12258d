//! Buckets that are mounted when a warm pod is claimed.

use std::path::Path;

use contract::names::comm_on_node;
use kube::ResourceExt as _;
use node::mounts::Mounts;
use s3_csi_tests::controller::{self, Controller};
use s3_csi_tests::csi::publish_request;
use s3_csi_tests::mountpoint_pod::{MountpointPod, bucket};
use s3_csi_tests::node::{Kubelet, NodeProgram};
use s3_csi_tests::{Seen, eventually, within};
use xtask::s3::ALICE;

use super::{REACTS_WITHIN, known, ready, stage};

/// No kubelet asks here unless the test does.
#[tokio::test]
async fn a_claimed_pod_has_its_bucket_mounted_before_the_kubelet_asks() {
    bucket(ALICE, "early").put("early", "file", b"served").unwrap();
    let _running = controller::none().await;
    let (stage, kubelet) = (stage("warm-early").await, Kubelet::default());
    let controller = Controller::start(&stage.here.client, &["--warm-mountpoint-pods=1"]).await;
    let node = NodeProgram::start(&stage.here.client, &stage.node, &kubelet, &[]).await;
    let [warm] = Vec::from_iter(ready(&stage, 1).await).try_into().unwrap();
    let uid = stage.mountpoint_pods().get(&warm).await.unwrap().uid().unwrap();
    let mut mounter = MountpointPod::start_at(&comm_on_node(kubelet.path(), &uid));
    known(&controller, 1).await;
    stage.volume("data", &[("bucketName", "early")], &[]).await;
    let workload = stage.workload("w", &["data"]).await;
    assert_eq!(stage.attached(&workload).await.1.name_any(), warm);
    let source = kubelet.source(&warm);
    eventually("the bucket is mounted", REACTS_WITHIN, || async {
        Seen::some((Kubelet::mounts(&source) == 1).then_some(()), node.log())
    })
    .await;

    let counted = "s3_csi_node_early_mounts_total{result=\"mounted\"} 1";
    eventually(counted, REACTS_WITHIN, || async {
        Seen::some(node.metrics().contains(counted).then_some(()), node.metrics())
    })
    .await;

    let volume = stage.volume_name("data");
    let target = kubelet.target(&workload.uid().unwrap(), &volume);
    node.csi.publish(publish_request(&volume, "early", &target)).await.unwrap();
    assert_eq!(Kubelet::mounts(&source), 1, "it is not mounted again");
    assert_eq!(read_ahead(&source), "512", "and not the kernel's default");
    let file = target.join("file");
    assert_eq!(within("reading", REACTS_WITHIN, move || std::fs::read(file)).unwrap(), b"served");

    // And one that the workload did not wait for is unmounted as well.
    node.csi.unpublish(&volume, &target).await.unwrap();
    stage.remove("w").await;
    eventually("it is unmounted", REACTS_WITHIN, || async {
        Seen::some((Kubelet::mounts(&source) == 0).then_some(()), node.log())
    })
    .await;
    assert!(mounter.ended().success());
}

/// How many KiB the kernel reads ahead of a program in what is mounted at this path.
fn read_ahead(point: &Path) -> String {
    let (major, minor) = Mounts::default().table().unwrap().top(point).unwrap().device;
    let kib = std::fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).unwrap();
    kib.trim().to_owned()
}
