//! A workload whose bucket is published by the node service, and the Mountpoint Pods that can serve it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use contract::names::comm_on_node;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use node::kernel;
use node::safe_path::Root;
use s3_csi_tests::controller::{Controller, shared};
use s3_csi_tests::csi::publish_request;
use s3_csi_tests::mountpoint_pod::{MountpointPod, bucket, programs};
use s3_csi_tests::node::{Kubelet, NodeProgram};
use s3_csi_tests::{Seen, Stage, eventually, within};
use service::csi::NodePublishVolumeRequest;
use tempfile::TempDir;
use tokio::sync::RwLockReadGuard;
use xtask::s3::ALICE;

pub(crate) const LIMIT: Duration = Duration::from_mins(3);

/// A workload whose bucket is published, and what serves it.
pub(crate) struct Published {
    pub(crate) stage: Stage,
    pub(crate) kubelet: Kubelet,
    pub(crate) bucket: &'static str,
    workload: Pod,
    pub(crate) target: PathBuf,
    pub(crate) pod: Pod,
    pub(crate) mounter: MountpointPod,
    reader: Child,
    _controller: RwLockReadGuard<'static, Option<Controller>>,
}

impl Published {
    pub(crate) async fn begin(name: &'static str) -> (Self, NodeProgram) {
        bucket(ALICE, name).put(name, "file", b"content").unwrap();
        let (stage, kubelet) = (Stage::set(name).await, Kubelet::default());
        let controller = shared(&stage.here.client).await;
        stage.volume("data", &[("bucketName", name)], &[]).await;
        let workload = stage.workload("w", &["data"]).await;
        let (_, pod) = stage.attached(&workload).await;
        let mounter = start(&stage, &kubelet, &pod).await;
        let node = NodeProgram::start(&stage.here.client, &stage.node, &kubelet, &[]).await;
        let target = kubelet.target(&workload.uid().unwrap(), &stage.volume_name("data"));
        publish(&node, &request(&stage, name, &target)).await;
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

    pub(crate) fn request(&self) -> NodePublishVolumeRequest {
        request(&self.stage, self.bucket, &self.target)
    }

    /// Waits until the controller has assigned the workload to another pod.
    pub(crate) async fn next_pod(&self) -> Pod {
        eventually("another Mountpoint Pod is created", LIMIT, || async {
            let (_, pod) = self.stage.attached(&self.workload).await;
            Seen::some((pod.uid() != self.pod.uid()).then_some(pod), "still the old one")
        })
        .await
    }

    /// The same, and the pod then runs.
    pub(crate) async fn reassigned(&self) -> (Pod, MountpointPod) {
        let pod = self.next_pod().await;
        let mounter = start(&self.stage, &self.kubelet, &pod).await;
        (pod, mounter)
    }

    /// The file that was opened at first can be read; returns what the program prints.
    pub(crate) fn reads_on(self) -> String {
        let mut reader = self.reader;
        reader.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let output = within("reading", LIMIT, move || reader.wait_with_output().unwrap());
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) async fn is_mounted_by(&self, node: &NodeProgram, pod: &Pod, not_by: &Pod) {
        eventually("the mount belongs to one pod", LIMIT, || async {
            let mounts = [pod, not_by].map(|pod| Kubelet::mounts(&self.kubelet.source(&pod.name_any())));
            Seen::some((mounts == [1, 0]).then_some(()), format!("{mounts:?}\n{}", node.log()))
        })
        .await;
        assert_eq!(Kubelet::mounts(&self.target), 2, "the seal and the same mount");
    }

    /// As the node service does before the next pod serves the mount.
    pub(crate) fn bind_source_to(&self, next: &Pod) {
        let root = Root::open(self.kubelet.path()).unwrap();
        let [old, new] = [&self.pod, next].map(|pod| self.kubelet.source(&pod.name_any()));
        kernel::bind(&root.locate(&old).unwrap(), &root.create(&new).unwrap(), false).unwrap();
    }

    pub(crate) async fn restart(&self) -> NodeProgram {
        NodeProgram::start(&self.stage.here.client, &self.stage.node, &self.kubelet, &[]).await
    }
}

/// Also says which pod it is for, on which Events are recorded.
fn request(stage: &Stage, bucket: &str, target: &Path) -> NodePublishVolumeRequest {
    let mut request = publish_request(&stage.volume_name("data"), bucket, target);
    let pod = [
        ("csi.storage.k8s.io/pod.name", "w"),
        ("csi.storage.k8s.io/pod.namespace", stage.here.namespace.as_str()),
    ];
    request.volume_context.extend(pod.map(|(key, value)| (key.to_owned(), value.to_owned())));
    request
}

/// As the kubelet does again and again.
pub(crate) async fn publish(node: &NodeProgram, request: &NodePublishVolumeRequest) {
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
pub(crate) fn programs_that_wait_for(name: &str) -> TempDir {
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

pub(crate) async fn start(stage: &Stage, kubelet: &Kubelet, pod: &Pod) -> MountpointPod {
    start_programs(programs(), stage, kubelet, pod).await
}

pub(crate) async fn start_programs(
    programs: &Path,
    stage: &Stage,
    kubelet: &Kubelet,
    pod: &Pod,
) -> MountpointPod {
    stage.schedule_mountpoint(&pod.name_any()).await;
    let comm = comm_on_node(kubelet.path(), &pod.uid().unwrap());
    let mounter = MountpointPod::start_programs_at(programs, &comm);
    mounter.listening();
    stage.run_mountpoint(&pod.name_any()).await;
    mounter
}
