//! The whole driver on a real node: installed with Helm, used by a pod, and gone without a trace.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::DRIVER;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use s3_csi_tests::controller::{MOUNTPOINT_NAMESPACE, RELEASE_NAMESPACE};
use s3_csi_tests::{Inside, Seen, eventually};
use serde_json::json;
use xtask::command::run;
use xtask::image::BUSYBOX;
use xtask::s3::{ALICE, Client, ENDPOINT};

const LIMIT: Duration = Duration::from_mins(2);

fn helm(here: &Inside, arguments: &[&str]) {
    let program = here.cluster.programs().unwrap().tool("helm");
    run(Command::new(program)
        .env("KUBECONFIG", here.cluster.kubeconfig())
        .env("HOME", "/run")
        .args(arguments))
    .unwrap();
}

async fn install(here: &Inside) {
    let secret = json!({
        "metadata": {"name": "s3-secret"},
        "stringData": {"access_key_id": ALICE.access_key, "secret_access_key": ALICE.secret_key},
    });
    let secrets = Api::<Secret>::namespaced(here.client.clone(), RELEASE_NAMESPACE);
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/s3-csi");
    let endpoint = format!("s3.endpointUrl={ENDPOINT}");
    helm(
        here,
        &[
            "install",
            "s3-csi",
            chart.to_str().unwrap(),
            "--namespace",
            RELEASE_NAMESPACE,
            "--set",
            &endpoint,
            "--set",
            "image.repository=s3-csi.test/driver,image.tag=dev,image.pullPolicy=Never",
            "--set",
            "mountpointPod.image.repository=s3-csi.test/mounter",
            "--set",
            "mountpointPod.image.tag=dev,mountpointPod.image.pullPolicy=Never",
            "--wait",
            "--timeout",
            "90s",
        ],
    );
}

#[tokio::test]
async fn a_workload_reads_and_writes_its_bucket_and_leaves_nothing() {
    let here = Inside::join("driver").await;
    install(&here).await;
    let server = Client::new(ENDPOINT, ALICE).unwrap();
    server.create_bucket("first-contact").unwrap();
    server.put("first-contact", "greeting", b"hello from the bucket").unwrap();

    let volume = json!({
        "metadata": {"name": "first-contact"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": "",
            "mountOptions": ["allow-delete"],
            "claimRef": {"namespace": here.namespace, "name": "first-contact"},
            "csi": {"driver": DRIVER, "volumeHandle": "first-contact", "volumeAttributes": {"bucketName": "first-contact"}},
        },
    });
    let claim = json!({
        "metadata": {"name": "first-contact"},
        "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": "first-contact",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let volumes = Api::<PersistentVolume>::all(here.client.clone());
    volumes.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();
    let claims = Api::<PersistentVolumeClaim>::namespaced(here.client.clone(), &here.namespace);
    claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    let script = "cat /data/greeting; echo written > /data/answer; echo; ls /data; sleep 300";
    let container = json!({
        "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", script],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    });
    let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": "first-contact"}});
    here.run("workload", json!({"containers": [container], "volumes": [volume]})).await;
    here.phase("workload", "Running").await;
    eventually("the workload has read and written", LIMIT, || async {
        let log = here.log("workload").await;
        Seen::some((log.contains("hello from the bucket") && log.contains("answer")).then_some(()), log)
    })
    .await;
    assert_eq!(server.get("first-contact", "answer").unwrap(), b"written\n");

    here.delete("workload").await;
    let attachments = Api::<MountpointS3PodAttachment>::all(here.client.clone());
    let pods = Api::<Pod>::namespaced(here.client.clone(), MOUNTPOINT_NAMESPACE);
    eventually("nothing is left", LIMIT, || async {
        let attached = attachments.list(&ListParams::default()).await.unwrap().items.len();
        let serving: Vec<String> = pods
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .iter()
            .map(ResourceExt::name_any)
            .collect();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mounted = mounts.lines().filter(|line| line.contains("mountpoint-s3")).count();
        let folders =
            std::fs::read_dir(format!("/var/lib/kubelet/plugins/{DRIVER}/mnt")).map_or(0, Iterator::count);
        let left = format!("{attached} attachments, {serving:?}, {mounted} mounts, {folders} folders");
        Seen::some((attached == 0 && serving.is_empty() && mounted == 0 && folders == 0).then_some(()), left)
    })
    .await;

    claims.delete("first-contact", &DeleteParams::default()).await.unwrap();
    volumes.delete("first-contact", &DeleteParams::default()).await.unwrap();
    helm(&here, &["uninstall", "s3-csi", "--namespace", RELEASE_NAMESPACE, "--wait"]);
}
