//! A stage with a controller of other rights, and what must not be left of it.

use contract::names::{DRIVER, annotation};
use controller::provision::claims::claim::FINALIZER;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::account::{Account, RELEASE_NAMESPACE};
use s3_csi_tests::controller::{Controller, LEASE};
use s3_csi_tests::relay::Relay;
use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::{Value, json};

use super::LIMIT;

pub(super) struct Scene {
    pub(super) stage: Stage,
    /// To the S3 server.
    pub(super) line: Relay,
}

impl Scene {
    pub(super) async fn set(name: &str) -> Self {
        let name = name.to_lowercase();
        Self { stage: Stage::set(&name).await, line: Relay::to(Some("s3.test:80")) }
    }

    pub(super) async fn start(&self, account: &Account, elects: bool) -> Controller {
        let client = &self.stage.here.client;
        let endpoint = format!("--endpoint-url={}", self.line.url());
        let mut arguments = vec![endpoint.as_str()];
        if elects {
            let leases = Api::<Lease>::namespaced(client.clone(), RELEASE_NAMESPACE);
            let _ = leases.delete(LEASE, &DeleteParams::default()).await;
        } else {
            arguments.push("--leader-election=false");
        }
        Controller::launch_as(account, client, &arguments).await
    }

    /// What is left is not for the controllers of other scenes.
    pub(super) async fn clear(self, controller: Controller) {
        drop(controller);
        let (stage, now) = (&self.stage, DeleteParams::default().grace_period(0));
        stage.here.pods().delete_collection(&now, &ListParams::default()).await.unwrap();
        for attachment in stage.attachments_here().await {
            let _ = stage.attachments().delete(&attachment.name_any(), &now).await;
        }
        let of_stage = |pod: &&Pod| {
            let volume = pod.annotations().get(annotation::VOLUME_NAME);
            volume.is_some_and(|volume| volume.starts_with(&stage.volume_name("")))
        };
        for pod in stage.mountpoint_pods().list(&ListParams::default()).await.unwrap().iter().filter(of_stage)
        {
            let _ = stage.mountpoint_pods().delete(&pod.name_any(), &now).await;
        }
        let unprotected = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let claims = self.claims();
        for claim in claims.list(&ListParams::default()).await.unwrap() {
            let name = claim.name_any();
            claims.patch(&name, &PatchParams::default(), &unprotected).await.unwrap();
            claims.delete(&name, &now).await.unwrap();
            self.remove_volume(&format!("pvc-{}", claim.uid().unwrap())).await;
        }
        self.remove_volume(&stage.volume_name("data")).await;
    }

    async fn remove_volume(&self, name: &str) {
        let volumes = self.stage.all::<PersistentVolume>();
        let unprotected = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let _ = volumes.delete(name, &DeleteParams::default()).await;
        let _ = volumes.patch(name, &PatchParams::default(), &unprotected).await;
    }

    pub(super) fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.stage.here.client.clone(), &self.stage.here.namespace)
    }

    pub(super) async fn class(&self, parameters: Value) {
        let class = json!({
            "metadata": {"name": self.stage.here.namespace}, "provisioner": DRIVER, "parameters": parameters,
        });
        let classes = self.stage.all::<StorageClass>();
        classes.create(&PostParams::default(), &super::from(class)).await.unwrap();
    }

    /// A claim of that class, as the binder leaves it to the provisioner; returns the name of its volume.
    pub(super) async fn claim(&self) -> String {
        let claim = json!({
            "metadata": {
                "name": "claim", "annotations": {"volume.kubernetes.io/storage-provisioner": DRIVER},
            },
            "spec": {
                "accessModes": ["ReadWriteMany"], "storageClassName": self.stage.here.namespace,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        let claim = self.claims().create(&PostParams::default(), &super::from(claim)).await.unwrap();
        format!("pvc-{}", claim.uid().unwrap())
    }

    pub(super) async fn provisioned(&self, volume: &str) {
        eventually(&format!("{volume} is there"), LIMIT, || async {
            Seen::some(self.stage.all::<PersistentVolume>().get_opt(volume).await.unwrap(), "no volume")
        })
        .await;
    }

    /// Waits until the claim has our finalizer, or has it no more.
    pub(super) async fn marked(&self, is: bool) {
        eventually(&format!("that the claim is marked is {is}"), LIMIT, || async {
            let claim = self.claims().get("claim").await.unwrap();
            let marked = claim.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
            Seen::some((marked == is).then_some(()), format!("{:?}", claim.finalizers()))
        })
        .await;
    }
}
