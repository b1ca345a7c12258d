//! The metrics of mounts: whose they are, that a Mountpoint Pod cannot make them say anything else, and that Prometheus
//! understands them.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use contract::names::comm_on_node;
use kube::ResourceExt as _;
use mounter::figures::FILE;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use s3_csi_tests::controller::{Controller, shared};
use s3_csi_tests::csi::publish_request;
use s3_csi_tests::monitoring::queries;
use s3_csi_tests::mountpoint_pod::{MountpointPod, bucket};
use s3_csi_tests::node::{Kubelet, NodeProgram};
use s3_csi_tests::prometheus::Prometheus;
use s3_csi_tests::{Seen, Stage, eventually, within};
use tokio::sync::RwLockReadGuard;
use xtask::s3::ALICE;

const LIMIT: Duration = Duration::from_mins(3);

/// A workload whose bucket is mounted, and a file of it that was read.
struct Scene {
    node: NodeProgram,
    stage: Stage,
    _kubelet: Kubelet,
    mountpoint_pod: String,
    target: PathBuf,
    comm: PathBuf,
    _server: MountpointPod,
    controller: RwLockReadGuard<'static, Option<Controller>>,
}

impl Scene {
    async fn set(name: &'static str) -> Self {
        bucket(ALICE, name).put(name, "file", b"content").unwrap();
        let (stage, kubelet) = (Stage::set(name).await, Kubelet::default());
        let controller = shared(&stage.here.client).await;
        stage.volume("data", &[("bucketName", name)], &[]).await;
        let workload = stage.workload("w", &["data"]).await;
        let (_, pod) = stage.attached(&workload).await;
        stage.schedule_mountpoint(&pod.name_any()).await;
        let node = NodeProgram::start(&stage.here.client, &stage.node, &kubelet, &[]).await;
        let comm = comm_on_node(kubelet.path(), &pod.uid().unwrap());
        let server = MountpointPod::start_at(&comm);
        server.listening();
        stage.run_mountpoint(&pod.name_any()).await;
        let volume = stage.volume_name("data");
        let target = kubelet.target(&workload.uid().unwrap(), &volume);
        let request = publish_request(&volume, name, &target);
        eventually("it is published", LIMIT, || async {
            match node.csi.publish(request.clone()).await {
                Ok(()) => Seen::Yes(()),
                Err(error) => Seen::NotYet(error.to_string()),
            }
        })
        .await;
        let file = target.join("file");
        assert_eq!(within("reading", LIMIT, move || fs::read(file)).unwrap(), b"content");
        let mountpoint_pod = pod.name_any();
        Self { node, stage, _kubelet: kubelet, mountpoint_pod, target, comm, _server: server, controller }
    }

    /// A sample of its metrics.
    fn sample(&self, metric: &str, value: u64) -> String {
        let (volume, Stage { here, node }) = (self.stage.volume_name("data"), &self.stage);
        let (namespace, pod) = (&here.namespace, &self.mountpoint_pod);
        format!(
            "s3_csi_node_mount_{metric}{{volume=\"{volume}\",namespace=\"{namespace}\",persistentvolumeclaim=\"data\",\
             node=\"{node}\",mountpoint_pod=\"{pod}\"}} {value}\n"
        )
    }

    /// Waits until the metrics of mounts are so, and returns them.
    async fn shows(&self, what: &str, so: impl Fn(&str) -> bool) -> String {
        self.shows_after(|| (), what, so).await
    }

    /// The same when this is in the place of the file with the figures, which the mount process may replace at any time.
    async fn shows_instead(
        &self,
        put: impl Fn(&Path) -> io::Result<()>,
        so: impl Fn(&str) -> bool,
    ) -> String {
        let file = self.comm.join(FILE);
        let replace = || {
            let _ = fs::remove_file(&file);
            put(&file).unwrap();
        };
        self.shows_after(replace, "what is in the file", so).await
    }

    async fn shows_after(&self, act: impl Fn(), what: &str, so: impl Fn(&str) -> bool) -> String {
        eventually(what, LIMIT, || async {
            act();
            let metrics = self.node.metrics();
            assert!(
                metrics.contains("s3_csi_node_mounted_buckets 1") && metrics.ends_with("# EOF\n"),
                "{metrics}"
            );
            let lines = metrics.lines().filter(|line| line.contains("mountpoint_pod=\""));
            let mounts = lines.fold(String::new(), |all, line| all + line + "\n");
            Seen::some(so(&mounts).then(|| mounts.clone()), mounts)
        })
        .await
    }
}

#[tokio::test]
async fn metrics_name_the_claim_whatever_the_mountpoint_pod_writes_and_end_with_the_mount() {
    let scene = Scene::set("mount-metrics").await;
    let read = scene.sample("read_bytes_total", 7);
    let seen = scene.shows("what was read", |mounts| mounts.contains(&read)).await;
    for line in [scene.sample("uploads", 0), scene.sample("written_bytes_total", 0)] {
        assert!(seen.contains(&line), "{seen}");
    }
    assert!(seen.contains("operation=\"GetObject\",code=\"206\"} 1\n"), "{seen}");
    assert!(!seen.contains("keys_expire"), "its keys are those of a Secret: {seen}");

    let lie =
        br#"{"read_bytes": 8, "keys_expire": 1900000000, "requests": {"Get\"} 9\ns3_csi_node_dead_mounts 9": {"codes": {"200": 4}}}}"#;
    let number = scene.sample("read_bytes_total", 8);
    let seen = scene.shows_instead(|file| fs::write(file, lie), |mounts| mounts.contains(&number)).await;
    assert!(seen.contains("operation=\"other\",code=\"200\"} 4\n") && !seen.contains("Get"), "{seen}");
    assert!(seen.contains(&scene.sample("keys_expire_timestamp_seconds", 1_900_000_000)), "{seen}");
    assert!(scene.node.metrics().contains("s3_csi_node_dead_mounts 0"));
    for nonsense in [&b"nonsense"[..], br#"{"read_bytes": 18446744073709551615}"#, &vec![b' '; 1 << 20]] {
        scene.shows_instead(|file| fs::write(file, nonsense), str::is_empty).await;
    }
    scene.shows_instead(|file| symlink("/proc/self/environ", file), str::is_empty).await;
    let pipe = |file: &Path| mknodat(CWD, file, FileType::Fifo, Mode::from_raw_mode(0o666), 0);
    scene.shows_instead(|file| Ok(pipe(file)?), str::is_empty).await;

    let path = scene.target.join("file");
    assert_eq!(within("reading", LIMIT, move || fs::read(path)).unwrap(), b"content");
    let read = scene.sample("read_bytes_total", 14);
    scene.shows("the truth again", |mounts| mounts.contains(&read)).await;
    scene.node.csi.unpublish(&scene.stage.volume_name("data"), &scene.target).await.unwrap();
    scene.stage.remove("w").await;
    eventually("the metrics end with the mount", LIMIT, || async {
        let metrics = scene.node.metrics();
        let ended =
            metrics.contains("s3_csi_node_mounted_buckets 0") && !metrics.contains("s3_csi_node_mount_read");
        Seen::some(ended.then_some(()), metrics)
    })
    .await;
}

#[tokio::test]
async fn prometheus_understands_every_query_and_finds_the_mounts() {
    let scene = Scene::set("prometheus").await;
    let prometheus =
        Prometheus::scraping(&[scene.node.address(), scene.controller.as_ref().unwrap().address()]);
    let namespace = &scene.stage.here.namespace;
    for metric in [
        "s3_requests_total",
        "s3_request_seconds_bucket",
        "read_bytes_total",
        "uploads",
        "oldest_request_seconds",
    ] {
        let query = format!(
            "s3_csi_node_mount_{metric}{{namespace=\"{namespace}\",persistentvolumeclaim=\"data\",node=\"{}\"}}",
            scene.stage.node
        );
        eventually(&query, LIMIT, || async {
            let found = prometheus.query(&query);
            let some = found.as_ref().is_ok_and(|samples| !samples.is_empty());
            Seen::some(some.then_some(()), format!("{found:?}\n{}", prometheus.log()))
        })
        .await;
    }
    // Whatever it shows for a rate needs two scrapes; what is compared with a limit is empty while all is well. The mount has
    // neither a cache nor temporary keys.
    let unlimited: Vec<String> = queries().into_iter().filter(|query| !query.contains('>')).collect();
    let is_shown = |query: &&String| {
        query.contains("_node_mount_") && !query.contains("cache") && !query.contains("keys_expire")
    };
    for query in queries() {
        prometheus.query(&query).unwrap_or_else(|error| panic!("{query}: {error}"));
    }
    for query in unlimited.iter().filter(is_shown) {
        eventually(query, LIMIT, || async {
            let found = prometheus.query(query);
            let some = found.as_ref().is_ok_and(|samples| !samples.is_empty());
            Seen::some(some.then_some(()), format!("{found:?}"))
        })
        .await;
    }
}
