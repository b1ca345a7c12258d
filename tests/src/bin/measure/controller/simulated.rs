//! Nodes without a kubelet and volumes without a bucket, and how fast the API server takes plain writes.

use std::collections::BTreeMap;
use std::time::Instant;

use clap::Parser as _;
use contract::attachment::MountpointS3PodAttachment;
use contract::authentication::SecretPresence;
use contract::names::{DRIVER, mountpoint_pod};
use contract::sharing::{Identity, SharingKey};
use contract::volume_plan::VolumePlan;
use controller::flags::Flags;
use controller::mountpoint_pod::{Blueprint, Served};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use s3_csi_tests::account::MOUNTPOINT_NAMESPACE;
use serde_json::json;

use super::{AT_ONCE, Bench, NODES, RAW, VOLUMES};

impl Bench {
    /// Attachments and pods as the controller writes them, as fast as the API server takes them.
    pub(super) async fn raw_writes(&self) -> f64 {
        let attachments = Api::<MountpointS3PodAttachment>::all(self.client());
        let pods = Api::<Pod>::namespaced(self.client(), MOUNTPOINT_NAMESPACE);
        let flags = Flags::parse_from(["s3-csi-controller", "--mountpoint-image=s3-csi.test/busybox:dev"]);
        let blueprint = &Blueprint::new(flags, "bench", false);
        let attributes = BTreeMap::from([("bucketName".to_owned(), "bucket".to_owned())]);
        let volume = &VolumePlan::parse(&attributes, SecretPresence::Absent, [""; 0]).unwrap().volume;
        let served = Served { volume, claim: None };
        let began = Instant::now();
        futures::stream::iter(0..RAW)
            .for_each_concurrent(AT_ONCE, |number| {
                let (attachments, pods) = (attachments.clone(), pods.clone());
                async move {
                    let key = SharingKey {
                        node: Self::node(number % NODES),
                        volume_name: format!("raw-{number}"),
                        volume_id: format!("raw-{number}"),
                        mount_options: String::new(),
                        fs_group: String::new(),
                        identity: Identity::Driver,
                    };
                    let (attachment, uid) = (key.attachment_name(), format!("uid-{number}"));
                    let pod = blueprint.build(
                        &mountpoint_pod(&uid, &key.volume_name),
                        &attachment,
                        &uid,
                        &key,
                        served,
                    );
                    let object = MountpointS3PodAttachment::new(&attachment, key.spec());
                    attachments.create(&PostParams::default(), &object).await.unwrap();
                    pods.create(&PostParams::default(), &pod).await.unwrap();
                }
            })
            .await;
        let rate = 2.0 * RAW as f64 / began.elapsed().as_secs_f64();
        let all = kube::api::ListParams::default();
        let gone = DeleteParams::default().grace_period(0);
        attachments.delete_collection(&gone, &all).await.unwrap();
        pods.delete_collection(&gone, &all).await.unwrap();
        rate
    }

    /// Nodes without a kubelet, which leave pods as they are, and volumes, of which those for single workloads are bound.
    pub(super) async fn prepare(&self) {
        let nodes = Api::<Node>::all(self.client());
        futures::stream::iter(0..NODES)
            .for_each_concurrent(AT_ONCE, |number| {
                let nodes = nodes.clone();
                async move {
                    // As the kubelet writes it when the driver has registered.
                    let drivers =
                        json!({"csi.volume.kubernetes.io/nodeid": format!("{{\"{DRIVER}\":\"n\"}}")});
                    let name = Self::node(number);
                    let node = json!({"metadata": {"name": name, "annotations": drivers}});
                    nodes
                        .create(&PostParams::default(), &serde_json::from_value(node).unwrap())
                        .await
                        .unwrap();
                    // Admission taints it as not ready.
                    let ready = Patch::Merge(json!({"spec": {"taints": null}}));
                    nodes.patch(&name, &PatchParams::default(), &ready).await.unwrap();
                }
            })
            .await;
        let account = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
        let accounts = Api::<k8s_openapi::api::core::v1::ServiceAccount>::namespaced(
            self.client(),
            &self.here.namespace,
        );
        accounts.create(&PostParams::default(), &account).await.unwrap();
        let volumes = Api::<PersistentVolume>::all(self.client());
        for name in (0..VOLUMES).flat_map(|number| [format!("single-{number}"), format!("burst-{number}")]) {
            let claim = json!({"namespace": self.here.namespace, "name": name, "uid": "none"});
            let volume = json!({
                "metadata": {"name": name},
                "spec": {
                    "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "claimRef": claim,
                    "csi": {"driver": DRIVER, "volumeHandle": name, "volumeAttributes": {"bucketName": "bucket"}},
                },
            });
            volumes.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();
        }
        self.bind("single").await;
    }

    pub(super) async fn bind(&self, kind: &str) {
        let volumes = Api::<PersistentVolume>::all(self.client());
        let bound = Patch::Merge(json!({"status": {"phase": "Bound"}}));
        for number in 0..VOLUMES {
            volumes.patch_status(&format!("{kind}-{number}"), &PatchParams::default(), &bound).await.unwrap();
        }
    }
}
