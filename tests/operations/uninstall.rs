//! After an uninstallation, everything that the driver created can be deleted.

use controller::provision::claims::claim::FINALIZER;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::account::MOUNTPOINT_NAMESPACE;
use s3_csi_tests::paste::{self, AFTER_UNINSTALLING};
use s3_csi_tests::{Seen, eventually};
use serde_json::{Value, json};
use xtask::driver;

use crate::changed::{self, Changed};
use crate::story::{LIMIT, Story};

struct Made {
    claims: Api<PersistentVolumeClaim>,
    volumes: Api<PersistentVolume>,
}

impl Made {
    async fn claim(&self, name: &str, class: &str) {
        let claim = json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteMany"], "storageClassName": class,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        let claim = serde_json::from_value(claim).unwrap();
        self.claims.create(&PostParams::default(), &claim).await.unwrap();
    }

    async fn bound(&self, name: &str) -> PersistentVolume {
        let name = eventually(&format!("claim {name} is bound"), LIMIT, || async {
            let claim = self.claims.get(name).await.unwrap();
            let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
            let seen = format!("{:?}", claim.status);
            Seen::some(claim.spec.and_then(|spec| spec.volume_name).filter(|_| bound), seen)
        })
        .await;
        self.volumes.get(&name).await.unwrap()
    }

    async fn gone(&self, claims: &[&str], volumes: &[&str]) {
        eventually("claims and volumes are gone", LIMIT, || async {
            let mut left: Vec<Value> = Vec::new();
            for name in claims {
                left.extend(self.claims.get_opt(name).await.unwrap().map(|found| json!(found.metadata)));
            }
            for name in volumes {
                left.extend(self.volumes.get_opt(name).await.unwrap().map(|found| json!(found.metadata)));
            }
            Seen::some(left.is_empty().then_some(()), json!(left))
        })
        .await;
    }
}

#[tokio::test]
async fn what_the_driver_leaves_can_be_deleted_after_the_documented_command() {
    let story = Story::alone("uninstalled").await;
    let client = &story.here.client;
    let made = Made {
        claims: Api::namespaced(client.clone(), &story.here.namespace),
        volumes: Api::all(client.clone()),
    };
    let class = json!({"metadata": {"name": "uninstalled"}, "provisioner": contract::names::DRIVER});
    let classes = Api::<k8s_openapi::api::storage::v1::StorageClass>::all(client.clone());
    classes.create(&PostParams::default(), &serde_json::from_value(class).unwrap()).await.unwrap();

    made.claim("bound", "uninstalled").await;
    made.claim("released", "uninstalled").await;
    let (bound, released) = (made.bound("bound").await, made.bound("released").await);
    let away = changed::without_controller(&story.here.cluster);
    let delete = DeleteParams::default();
    made.claims.delete("released", &delete).await.unwrap();
    // The state that a controller leaves when it is killed while it creates the bucket.
    made.claim("begun", "uninstalled").await;
    eventually("the binder requests a volume", LIMIT, || async {
        let claim = made.claims.get("begun").await.unwrap();
        let asked = claim.annotations().contains_key("volume.kubernetes.io/storage-provisioner");
        Seen::some(asked.then_some(()), format!("{:?}", claim.annotations()))
    })
    .await;
    let mark = json!([{"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER}]);
    let mark = Patch::<()>::Json(serde_json::from_value(mark).unwrap());
    made.claims.patch("begun", &PatchParams::default(), &mark).await.unwrap();

    let (here, own) = (&story.here.cluster, story.here.cluster.clone());
    let uninstalled =
        Changed::make("the driver", || driver::uninstall(here), move || driver::install(&own, &[]));
    let namespaces = Api::<Namespace>::all(client.clone());
    assert!(namespaces.get_opt(MOUNTPOINT_NAMESPACE).await.unwrap().is_none(), "it goes with the chart");
    made.claims.delete("begun", &delete).await.unwrap();
    made.volumes.delete(&released.name_any(), &delete).await.unwrap();
    for kept in [
        made.claims.get("begun").await.unwrap().metadata,
        made.volumes.get(&released.name_any()).await.unwrap().metadata,
    ] {
        assert!(kept.deletion_timestamp.is_some(), "a finalizer keeps it: {kept:?}");
    }

    paste::below(here, AFTER_UNINSTALLING).unwrap();
    made.claims.delete("bound", &delete).await.unwrap();
    made.gone(&["bound", "begun"], &[&released.name_any()]).await;
    made.volumes.delete(&bound.name_any(), &delete).await.unwrap();
    made.gone(&[], &[&bound.name_any()]).await;
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let definition = "mountpoints3podattachments.s3.csi.scality.com";
    definitions.delete(definition, &delete).await.unwrap();
    eventually("the CRD is deleted", LIMIT, || async {
        match definitions.get_opt(definition).await.unwrap() {
            None => Seen::Yes(()),
            Some(left) => Seen::NotYet(format!("{:?}", left.status)),
        }
    })
    .await;
    // Without the driver, the buckets stay.
    for volume in [bound, released] {
        let bucket = volume.spec.unwrap().csi.unwrap().volume_handle;
        story.server.delete_bucket(&bucket).unwrap();
    }

    // The driver can be installed again.
    uninstalled.undo();
    away.undo();
    story.here.run("workload", story.workload("ls /data && echo in; sleep 3600")).await;
    story.says("workload", "in").await;
    story.mountpoint_pods().await;
    story.here.delete("workload").await;
    classes.delete("uninstalled", &delete).await.unwrap();
    story.leaves_nothing().await;
}
