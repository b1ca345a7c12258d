//! What the controller's rights are needed for, each as short as it can be.

use contract::names::{DRIVER, annotation, label};
use controller::provision::claims::claim::FINALIZER;
use controller::provision::reclaim::volume as released;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::controller::Controller;
use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::json;
use xtask::s3::ALICE;

use super::scene::Scene;
use super::{LIMIT, Story, from};

impl Story {
    /// Returns when it has come to its end.
    pub(super) async fn unfold(self, scene: &Scene, controller: &Controller) {
        let stage = &scene.stage;
        controller.says("became leader").await;
        match self {
            Self::Starts | Self::Leads => {}
            Self::UpdatesItsDefinition => {
                controller.says("definition of attachments is up to date").await;
            }
            Self::Attaches => drop(attach(stage, "w").await),
            Self::Joins => {
                attach(stage, "w").await;
                stage.attached(&stage.workload("w2", &["data"]).await).await;
            }
            Self::Detaches => {
                attach(stage, "w").await;
                stage.remove("w").await;
                stage.nothing_attached().await;
            }
            Self::Unmounts => {
                let pod = attach(stage, "w").await;
                stage.run_mountpoint(&pod).await;
                stage.remove("w").await;
                stage.marked_for_unmount(&pod).await;
            }
            Self::Buries => {
                let pod = attach(stage, "w").await;
                stage.remove("w").await;
                stage.mountpoint_gone(&pod).await;
            }
            Self::FindsAnOrphan => finds_an_orphan(stage).await,
            Self::FindsAForeignAttachment => finds_a_foreign_attachment(stage).await,
            Self::LosesANode => {
                let pod = attach(stage, "w").await;
                stage.run_mountpoint(&pod).await;
                stage.all::<Node>().delete(&stage.node, &DeleteParams::default()).await.unwrap();
                stage.remove("w").await;
                stage.mountpoint_gone(&pod).await;
            }
            Self::Identifies => {
                stage.volume("data", &[("authenticationSource", "pod")], &[]).await;
                stage.attached(&stage.workload("w", &["data"]).await).await;
            }
            Self::Explains => explains(stage).await,
            Self::Tells => {
                stage.volume("data", &[("mountpointContainerResourcesRequestsCpu", "much")], &[]).await;
                stage.workload("w", &["data"]).await;
                stage.event("w", "InvalidVolumeAttributes").await;
                tells_something_else(scene).await;
            }
            Self::Provisions => {
                scene.class(json!({})).await;
                scene.provisioned(&scene.claim().await).await;
            }
            Self::ProvisionsWithASecret => provisions_with_a_secret(scene).await,
            Self::ReleasesAContendedClaim => releases_a_contended_claim(scene).await,
            Self::Reclaims => reclaims(stage).await,
        }
    }
}

/// A workload with a volume; returns its Mountpoint Pod.
async fn attach(stage: &Stage, workload: &str) -> String {
    stage.volume("data", &[], &[]).await;
    let (_, pod) = stage.attached(&stage.workload(workload, &["data"]).await).await;
    pod.name_any()
}

async fn finds_an_orphan(stage: &Stage) {
    let name = format!("mp-{}", stage.here.namespace);
    let pod = json!({
        "metadata": {
            "name": name, "labels": {label::DRIVER_VERSION: "0.1.0"},
            "annotations": {
                annotation::ATTACHMENT: "s3pa-none", annotation::VOLUME_NAME: stage.volume_name("data"),
            },
        },
        "spec": {"automountServiceAccountToken": false, "containers": [{"name": "mountpoint", "image": "i"}]},
    });
    stage.mountpoint_pods().create(&PostParams::default(), &from(pod)).await.unwrap();
    stage.mountpoint_gone(&name).await;
}

async fn finds_a_foreign_attachment(stage: &Stage) {
    let name = stage.volume_name("data");
    let workload = json!({"workloadPodUID": "uid", "attachmentTime": "2026-01-01T00:00:00Z"});
    let attachment = json!({
        "apiVersion": "s3.csi.scality.com/v2", "kind": "MountpointS3PodAttachment",
        "metadata": {"name": name},
        "spec": {
            "nodeName": stage.node, "persistentVolumeName": name, "volumeID": name, "mountOptions": "",
            "workloadFSGroup": "", "mountpointS3PodAttachments": {"mp-none": [workload]},
        },
    });
    stage.attachments().create(&PostParams::default(), &from(attachment)).await.unwrap();
    stage.nothing_attached().await;
}

async fn explains(stage: &Stage) {
    let pod = attach(stage, "w").await;
    let full =
        json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"});
    stage.report_mountpoint(&pod, json!({"conditions": [full]})).await;
    eventually("the attachment has a condition", LIMIT, || async {
        let all = stage.attachments_here().await;
        let reported = all.iter().any(|one| one.status.is_some());
        Seen::some(reported.then_some(()), format!("{all:?}"))
    })
    .await;
}

async fn provisions_with_a_secret(scene: &Scene) {
    let stage = &scene.stage;
    let (namespace, keys) = (&stage.here.namespace, "keys");
    let data = json!({"access_key_id": ALICE.access_key, "secret_access_key": ALICE.secret_key});
    let secrets = Api::<Secret>::namespaced(stage.here.client.clone(), namespace);
    let secret = from(json!({"metadata": {"name": keys}, "stringData": data}));
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    let parameters = json!({
        "csi.storage.k8s.io/provisioner-secret-name": keys,
        "csi.storage.k8s.io/provisioner-secret-namespace": namespace,
        "csi.storage.k8s.io/node-publish-secret-name": keys,
        "csi.storage.k8s.io/node-publish-secret-namespace": namespace,
    });
    scene.class(parameters).await;
    scene.provisioned(&scene.claim().await).await;
}

/// Another failure of the same claim has another Event, although both have the same reason.
async fn tells_something_else(scene: &Scene) {
    const PARAMETER: &str = "no-such-parameter";
    let stage = &scene.stage;
    scene.claim().await;
    stage.event("claim", "ProvisioningFailed").await;
    // There is a class now, and it is wrong.
    scene.class(json!({PARAMETER: "x"})).await;
    let events = Api::<Event>::namespaced(stage.here.client.clone(), &stage.here.namespace);
    eventually("an Event names the parameter", LIMIT, || async {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let named = all.iter().any(|event| event.note.as_ref().is_some_and(|note| note.contains(PARAMETER)));
        Seen::some(named.then_some(()), format!("{all:?}"))
    })
    .await;
}

async fn releases_a_contended_claim(scene: &Scene) {
    scene.class(json!({})).await;
    scene.line.fall_silent();
    scene.claim().await;
    scene.marked(true).await;
    // Somebody else's finalizer comes before ours while the bucket is being made.
    let finalizers = ["tests.example.com/first", "kubernetes.io/pvc-protection", FINALIZER];
    let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    scene.claims().patch("claim", &PatchParams::default(), &patch).await.unwrap();
    scene.line.speak();
    scene.marked(false).await;
}

async fn reclaims(stage: &Stage) {
    let name = stage.volume_name("data");
    let volume = json!({
        "metadata": {
            "name": name, "finalizers": [released::FINALIZER], "annotations": {released::PROVISIONED_BY: DRIVER},
        },
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Delete",
            "csi": {
                "driver": DRIVER, "volumeHandle": "csi-s3-0a8b1c70-4f5e-5d3a-9b0e-2f6d7c8e9a01",
                "volumeAttributes": {"bucketName": "csi-s3-0a8b1c70-4f5e-5d3a-9b0e-2f6d7c8e9a01"},
            },
        },
    });
    let volumes = stage.all::<PersistentVolume>();
    volumes.create(&PostParams::default(), &from(volume)).await.unwrap();
    let released = Patch::Merge(json!({"status": {"phase": "Released"}}));
    volumes.patch_status(&name, &PatchParams::default(), &released).await.unwrap();
    eventually("our finalizer is gone, and only others keep the volume", LIMIT, || async {
        let found = volumes.get_opt(&name).await.unwrap();
        let kept = found.is_some_and(|found| {
            found.metadata.deletion_timestamp.is_none()
                || found.finalizers().iter().any(|finalizer| finalizer == released::FINALIZER)
        });
        Seen::some((!kept).then_some(()), "it is there")
    })
    .await;
}
