//! The node service moves mounts between Mountpoint Pods, and finishes what an earlier one has begun.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use contract::names::comm_on_node;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use mounter::handover::MountReply;
use mounter::{JOURNAL, SURVIVAL};
use node::kernel;
use node::safe_path::Root;
use rustix::process::{Signal, kill_process};
use s3_csi_tests::controller::{Controller, shared};
use s3_csi_tests::csi::publish_request;
use s3_csi_tests::mountpoint_pod::{MountpointPod, bucket, programs};
use s3_csi_tests::node::{Kubelet, NodeProgram};
use s3_csi_tests::relocation::{Kept, leaves};
use s3_csi_tests::{Seen, Stage, eventually, within};
use serde_json::json;
use service::csi::NodePublishVolumeRequest;
use tempfile::TempDir;
use tokio::sync::RwLockReadGuard;
use xtask::s3::ALICE;

use crate::upgrade::make_outdated;

const LIMIT: Duration = Duration::from_mins(3);

/// A workload whose bucket is published, and what serves it.
struct Published {
    stage: Stage,
    kubelet: Kubelet,
    bucket: &'static str,
    workload: Pod,
    target: PathBuf,
    pod: Pod,
    mounter: MountpointPod,
    reader: Child,
    _controller: RwLockReadGuard<'static, Option<Controller>>,
}

impl Published {
    async fn begin(name: &'static str) -> (Self, NodeProgram) {
        bucket(ALICE, name).put(name, "file", b"content").unwrap();
        let (stage, kubelet) = (Stage::set(name).await, Kubelet::default());
        let controller = shared(&stage.here.client).await;
        stage.volume("data", &[("bucketName", name)], &[]).await;
        let workload = stage.workload("w", &["data"]).await;
        let (_, pod) = stage.attached(&workload).await;
        let mounter = start(&stage, &kubelet, &pod).await;
        let node = NodeProgram::start(&stage.here.client, &stage.node, &kubelet, &[]).await;
        let target = kubelet.target(&workload.uid().unwrap(), &stage.volume_name("data"));
        publish(&node, &publish_request(&stage.volume_name("data"), name, &target)).await;
        stage.report("w", "Running").await;
        let reader = read_later(&target);
        let published = Self {
            stage,
            kubelet,
            bucket: name,
            workload,
            target,
            pod,
            mounter,
            reader,
            _controller: controller,
        };
        (published, node)
    }

    fn request(&self) -> NodePublishVolumeRequest {
        publish_request(&self.stage.volume_name("data"), self.bucket, &self.target)
    }

    /// Waits until the controller has assigned the workload to another pod.
    async fn next_pod(&self) -> Pod {
        eventually("another Mountpoint Pod is created", LIMIT, || async {
            let (_, pod) = self.stage.attached(&self.workload).await;
            Seen::some((pod.uid() != self.pod.uid()).then_some(pod), "still the old one")
        })
        .await
    }

    /// The same, and the pod then runs.
    async fn reassigned(&self) -> (Pod, MountpointPod) {
        let pod = self.next_pod().await;
        let mounter = start(&self.stage, &self.kubelet, &pod).await;
        (pod, mounter)
    }

    /// The file that was opened at first can be read; returns what the program prints.
    fn reads_on(self) -> String {
        let mut reader = self.reader;
        reader.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let output = within("reading", LIMIT, move || reader.wait_with_output().unwrap());
        String::from_utf8(output.stdout).unwrap()
    }

    async fn is_mounted_by(&self, node: &NodeProgram, pod: &Pod, not_by: &Pod) {
        eventually("the mount belongs to one pod", LIMIT, || async {
            let mounts = [pod, not_by].map(|pod| Kubelet::mounts(&self.kubelet.source(&pod.name_any())));
            Seen::some((mounts == [1, 0]).then_some(()), format!("{mounts:?}\n{}", node.log()))
        })
        .await;
        assert_eq!(Kubelet::mounts(&self.target), 2, "the seal and the same mount");
    }

    /// As the node service does before the next pod serves the mount.
    fn bind_source_to(&self, next: &Pod) {
        let root = Root::open(self.kubelet.path()).unwrap();
        let [old, new] = [&self.pod, next].map(|pod| self.kubelet.source(&pod.name_any()));
        kernel::bind(&root.locate(&old).unwrap(), &root.create(&new).unwrap(), false).unwrap();
    }

    async fn restart(&self) -> NodeProgram {
        NodeProgram::start(&self.stage.here.client, &self.stage.node, &self.kubelet, &[]).await
    }
}

/// As the kubelet does again and again.
async fn publish(node: &NodeProgram, request: &NodePublishVolumeRequest) {
    eventually("it is published", LIMIT, || async {
        match node.csi.publish(request.clone()).await {
            Ok(()) => Seen::Yes(()),
            Err(error) => Seen::NotYet(error.to_string()),
        }
    })
    .await;
}

/// A program that has the file open. The test itself must not: each program that it starts while nothing serves the mount would
/// wait for the answer to its close.
fn read_later(target: &Path) -> Child {
    let script = "exec 3<\"$1/file\"; echo ready; read _; cat <&3 2>&1";
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", script, "sh"]).arg(target).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    shell.stdout.as_mut().unwrap().read_exact(&mut [0; "ready\n".len()]).unwrap();
    shell
}

/// Of its mount processes, each waits for a file of this name beside the programs before it begins.
fn programs_that_wait_for(name: &str) -> TempDir {
    let folder = tempfile::tempdir_in("/run").unwrap();
    let [mounter, waiting] =
        ["s3-csi-mounter", "s3-csi-mountpoint"].map(|program| folder.path().join(program));
    fs::copy(programs().join("s3-csi-mounter"), mounter).unwrap();
    let (file, program) = (folder.path().join(name), programs().join("s3-csi-mountpoint"));
    let (file, program) = (file.display(), program.display());
    let script = format!("#!/bin/sh\nuntil [ -e {file} ]; do sleep 0.1; done\nexec {program} \"$@\"\n");
    fs::write(&waiting, script).unwrap();
    for path in [folder.path(), &waiting] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

async fn start(stage: &Stage, kubelet: &Kubelet, pod: &Pod) -> MountpointPod {
    start_programs(programs(), stage, kubelet, pod).await
}

async fn start_programs(programs: &Path, stage: &Stage, kubelet: &Kubelet, pod: &Pod) -> MountpointPod {
    stage.schedule_mountpoint(&pod.name_any()).await;
    let comm = comm_on_node(kubelet.path(), &pod.uid().unwrap());
    let mounter = MountpointPod::start_programs_at(programs, &comm);
    mounter.listening();
    stage.run_mountpoint(&pod.name_any()).await;
    mounter
}

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
