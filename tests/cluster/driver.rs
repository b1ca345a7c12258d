//! The whole driver on a real node: installed with Helm, used by pods, broken on purpose, and gone without a trace.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::{DRIVER, annotation, source_on_node};
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use s3_csi_tests::account::{MOUNTPOINT_NAMESPACE, RELEASE_NAMESPACE};
use s3_csi_tests::{Inside, Seen, eventually};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use xtask::command::run;
use xtask::image::BUSYBOX;
use xtask::s3::{ALICE, Client, ENDPOINT};

/// kubelet waits longer and longer before it starts a container again.
const LIMIT: Duration = Duration::from_mins(4);

const KUBELET: &str = "/var/lib/kubelet";

static INSTALLED: OnceCell<()> = OnceCell::const_new();

/// One test's volume and the workloads that use it, on a node with the driver.
struct Story {
    here: Inside,
    name: &'static str,
    server: Client,
}

impl Story {
    /// Installs the driver, once for all, and makes a volume and a claim for the bucket of this name.
    async fn begin(name: &'static str) -> Self {
        let here = Inside::join(name).await;
        INSTALLED.get_or_init(|| install(&here)).await;
        let volume = json!({
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": "",
                "mountOptions": ["allow-delete"],
                "claimRef": {"namespace": here.namespace, "name": name},
                "csi": {"driver": DRIVER, "volumeHandle": name, "volumeAttributes": {"bucketName": name}},
            },
        });
        let claim = json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": name,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        let post = PostParams::default();
        let volumes = Api::<PersistentVolume>::all(here.client.clone());
        volumes.create(&post, &serde_json::from_value(volume).unwrap()).await.unwrap();
        let claims = Api::<PersistentVolumeClaim>::namespaced(here.client.clone(), &here.namespace);
        claims.create(&post, &serde_json::from_value(claim).unwrap()).await.unwrap();
        Self { here, name, server: Client::new(ENDPOINT, ALICE).unwrap() }
    }

    fn workload(&self, script: &str) -> Value {
        let container = json!({
            "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", script],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        });
        let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": self.name}});
        json!({"containers": [container], "volumes": [volume]})
    }

    /// Waits until the workload's log contains this.
    async fn says(&self, pod: &str, words: &str) {
        self.here.phase(pod, "Running").await;
        eventually(&format!("{pod} says `{words}`"), LIMIT, || async {
            let log = self.here.log(pod).await;
            Seen::some(log.contains(words).then_some(()), xtask::command::tail(&log))
        })
        .await;
    }

    async fn mountpoint_pods(&self) -> Vec<String> {
        let pods = Api::<Pod>::namespaced(self.here.client.clone(), MOUNTPOINT_NAMESPACE);
        let mine =
            |pod: &&Pod| pod.annotations().get(annotation::VOLUME_NAME).is_some_and(|name| name == self.name);
        pods.list(&ListParams::default())
            .await
            .unwrap()
            .iter()
            .filter(mine)
            .map(ResourceExt::name_any)
            .collect()
    }

    /// Of this volume: no attachment, Mountpoint Pod, mount or folder. Then claim and volume go, too.
    async fn leaves_nothing(&self, served_by: &[String]) {
        let attachments = Api::<MountpointS3PodAttachment>::all(self.here.client.clone());
        eventually("nothing is left", LIMIT, || async {
            let attached = attachments.list(&ListParams::default()).await.unwrap();
            let attached = attached.iter().filter(|it| it.spec.persistent_volume_name == self.name).count();
            let pods = self.mountpoint_pods().await;
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
            let mounted = mounts.matches(&format!("~csi/{}/mount", self.name)).count();
            let sources =
                served_by.iter().filter(|pod| source_on_node(Path::new(KUBELET), pod).exists()).count();
            let told = format!("{attached} attachments, {pods:?}, {mounted} mounts, {sources} sources");
            Seen::some((attached + pods.len() + mounted + sources == 0).then_some(()), told)
        })
        .await;
        let delete = DeleteParams::default();
        Api::<PersistentVolumeClaim>::namespaced(self.here.client.clone(), &self.here.namespace)
            .delete(self.name, &delete)
            .await
            .unwrap();
        Api::<PersistentVolume>::all(self.here.client.clone()).delete(self.name, &delete).await.unwrap();
    }
}

async fn install(here: &Inside) {
    let secret = json!({
        "metadata": {"name": "s3-secret"},
        "stringData": {"access_key_id": ALICE.access_key, "secret_access_key": ALICE.secret_key},
    });
    let secrets = Api::<Secret>::namespaced(here.client.clone(), RELEASE_NAMESPACE);
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/s3-csi");
    let values = [
        &format!("s3.endpointUrl={ENDPOINT}"),
        "image.repository=s3-csi.test/driver,image.tag=dev,image.pullPolicy=Never",
        "mountpointPod.image.repository=s3-csi.test/mounter",
        "mountpointPod.image.tag=dev,mountpointPod.image.pullPolicy=Never",
    ];
    let helm = here.cluster.programs().unwrap().tool("helm");
    let mut command = Command::new(helm);
    command.env("KUBECONFIG", here.cluster.kubeconfig()).env("HOME", "/run").args(["install", "s3-csi"]);
    command.arg(chart).args(["--namespace", RELEASE_NAMESPACE, "--wait", "--timeout", "90s"]);
    run(command.args(values.iter().flat_map(|value| ["--set", value]))).unwrap();
}

#[tokio::test]
async fn a_workload_reads_and_writes_its_bucket_and_leaves_nothing() {
    let story = Story::begin("first-contact").await;
    story.server.create_bucket("first-contact").unwrap();
    story.server.put("first-contact", "greeting", b"hello from the bucket").unwrap();
    let script = "cat /data/greeting; echo written > /data/answer; echo; ls /data; sleep 300";
    story.here.run("workload", story.workload(script)).await;
    story.says("workload", "hello from the bucket").await;
    story.says("workload", "answer").await;
    assert_eq!(story.server.get("first-contact", "answer").unwrap(), b"written\n");
    let served_by = story.mountpoint_pods().await;
    assert_eq!(served_by.len(), 1);
    story.here.delete("workload").await;
    story.leaves_nothing(&served_by).await;
}

#[tokio::test]
async fn a_bucket_that_is_not_there_is_told_and_its_creation_heals() {
    let story = Story::begin("comes-later").await;
    story.here.run("workload", story.workload("ls /data; echo in; sleep 300")).await;
    let events = Api::<Event>::namespaced(story.here.client.clone(), &story.here.namespace);
    eventually("the workload's owner is told", LIMIT, || async {
        let all = events.list(&ListParams::default()).await.unwrap();
        let told: Vec<String> = all.iter().filter_map(|event| event.message.clone()).collect();
        let reason = told.iter().any(|message| message.contains("there is no bucket `comes-later`"));
        Seen::some(reason.then_some(()), told.join("\n"))
    })
    .await;
    story.server.create_bucket("comes-later").unwrap();
    story.says("workload", "in").await;
    let served_by = story.mountpoint_pods().await;
    story.here.delete("workload").await;
    story.leaves_nothing(&served_by).await;
}

/// A container that runs keeps the mount it was started with, and gets errors from it; started again, it has the bucket.
#[tokio::test]
async fn a_dead_mount_heals_for_a_container_that_is_started_again() {
    let story = Story::begin("dies-once").await;
    story.server.create_bucket("dies-once").unwrap();
    story.server.put("dies-once", "file", b"x").unwrap();
    let script = "while cat /data/file >/dev/null 2>&1; do echo good; sleep 1; done; echo bad; exit 1";
    story.here.run("workload", story.workload(script)).await;
    story.says("workload", "good").await;
    let served_by = story.mountpoint_pods().await;
    kill_mount_process("dies-once");
    eventually("the container is started again and has its bucket", LIMIT, || async {
        let pod = story.here.pods().get("workload").await.unwrap();
        let container = pod.status.and_then(|status| status.container_statuses?.pop()).unwrap();
        let again =
            container.restart_count > 0 && container.state.as_ref().is_some_and(|it| it.running.is_some());
        let good = again && story.here.log("workload").await.contains("good");
        Seen::some(good.then_some(()), serde_json::to_string(&container).unwrap())
    })
    .await;
    assert_eq!(story.mountpoint_pods().await, served_by, "the same pod serves it again");
    story.here.delete("workload").await;
    story.leaves_nothing(&served_by).await;
}

fn kill_mount_process(bucket: &str) {
    let ours = |process: &fs::DirEntry| {
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let mut words = command.split(|byte| *byte == 0);
        words.next().is_some_and(|name| name.ends_with(b"s3-csi-mountpoint"))
            && words.next() == Some(bucket.as_bytes())
    };
    let process = fs::read_dir("/proc").unwrap().flatten().find(ours).expect("a process serves the bucket");
    let pid =
        process.file_name().into_string().unwrap().parse().ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::KILL).unwrap();
}
