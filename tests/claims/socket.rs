//! The CSI controller service, as a csi-provisioner beside the controller calls it.

use std::path::Path;

use k8s_openapi::api::core::v1::{PersistentVolume, Secret};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::claims::{LIMIT, Tenant};
use s3_csi_tests::controller::{self, Controller};
use s3_csi_tests::csi::{Csi, publish_request};
use s3_csi_tests::{Seen, eventually};
use serde_json::json;
use service::csi::{CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse};
use tonic::{Code, Status};
use xtask::s3::ALICE;

async fn create(csi: &Csi, name: &str, parameters: &[(&str, &str)]) -> Result<String, Status> {
    let request = CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: publish_request("", "", Path::new("/")).volume_capability.into_iter().collect(),
        parameters: parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..CreateVolumeRequest::default()
    };
    let answer: CreateVolumeResponse = csi.call("/csi.v1.Controller/CreateVolume", request).await?;
    Ok(answer.volume.unwrap_or_default().volume_id)
}

async fn delete(csi: &Csi, volume_id: &str) -> Result<(), Status> {
    let request = DeleteVolumeRequest { volume_id: volume_id.to_owned(), ..DeleteVolumeRequest::default() };
    let DeleteVolumeResponse {} = csi.call("/csi.v1.Controller/DeleteVolume", request).await?;
    Ok(())
}

#[tokio::test]
async fn a_bucket_that_is_kept_is_reported_on_its_volume() {
    let _running = controller::none().await;
    let tenant = Tenant::set("socket", ALICE).await;
    let socket = "/run/csi-provisioner.sock";
    let arguments = ["--provisioning=off", &format!("--csi-socket={socket}")];
    let controller = Controller::start(&tenant.here.client, &arguments).await;
    let csi = Csi::connect(Path::new(socket)).await.unwrap();

    let bucket = create(&csi, "pvc-of-a-provisioner", &[]).await.unwrap();
    assert_eq!(create(&csi, "pvc-of-a-provisioner", &[]).await.unwrap(), bucket, "asked again, the same");
    tenant.server.put(&bucket, "file", b"precious").unwrap();
    let name = tenant.class_name("kept");
    let volume = json!({
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"],
            "csi": {"driver": "s3.csi.scality.com", "volumeHandle": bucket, "volumeAttributes": {"bucketName": bucket}},
        },
    });
    let volumes = Api::<PersistentVolume>::all(tenant.here.client.clone());
    volumes.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();
    // Until the controller's watch has reported the volume, there is no object for an Event.
    eventually("the kept bucket is reported", LIMIT, || async {
        delete(&csi, &bucket).await.unwrap();
        let events = tenant.events(&name).await;
        let kept = events.iter().any(|line| line.starts_with("BucketKept: ") && line.contains(&bucket));
        Seen::some(kept.then_some(()), events.join("\n"))
    })
    .await;
    assert_eq!(tenant.server.get(&bucket, "file").unwrap(), b"precious");

    tenant.server.delete(&bucket, "file").unwrap();
    delete(&csi, &bucket).await.unwrap();
    assert!(!tenant.server.buckets().unwrap().contains(&bucket));
    delete(&csi, &bucket).await.unwrap();
    drop(controller);
}

/// As a csi-provisioner with `--extra-create-metadata` calls: it sends no secrets for a Secret without data.
#[tokio::test]
async fn a_call_without_keys_does_not_get_the_drivers_where_a_secret_is_named() {
    let _running = controller::none().await;
    let tenant = Tenant::set("keyless", ALICE).await;
    let socket = "/run/csi-keyless.sock";
    let arguments = ["--provisioning=off", &format!("--csi-socket={socket}")];
    let controller = Controller::start(&tenant.here.client, &arguments).await;
    let csi = Csi::connect(Path::new(socket)).await.unwrap();
    tenant.class("keyed", tenant.provisioner_secret("keys"), json!({})).await;
    tenant.class("plain", json!({}), json!({})).await;
    let mut volumes = Vec::new();
    for class in ["keyed", "plain"] {
        volumes.push(format!("pvc-{}", tenant.claim(class, class).await.uid().unwrap()));
        eventually("the binder waits for a provisioner", LIMIT, || async {
            let claim = tenant.claims().get(class).await.unwrap();
            let named = claim.annotations().contains_key("volume.kubernetes.io/storage-provisioner");
            Seen::some(named.then_some(()), format!("{:?}", claim.annotations()))
        })
        .await;
    }
    let place = |claim| {
        let namespace = tenant.here.namespace.as_str();
        [("csi.storage.k8s.io/pvc/name", claim), ("csi.storage.k8s.io/pvc/namespace", namespace)]
    };
    for (data, code, words) in [
        (None, Code::FailedPrecondition, "there is no Secret"),
        (Some(json!({})), Code::InvalidArgument, "has no key `access_key_id`"),
    ] {
        if let Some(data) = data {
            tenant.secret("keys", data).await;
        }
        let refused = create(&csi, &volumes[0], &place("keyed")).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(words) && refused.message().contains("/keys"), "{refused}");
    }
    assert!(tenant.has_bucket(&create(&csi, &volumes[1], &place("plain")).await.unwrap()));

    // Nor does a deletion: the volume names the Secret.
    tenant.keys("keys", ALICE).await;
    let bucket = create(&csi, &volumes[0], &place("keyed")).await.unwrap();
    let volume = json!({
        "metadata": {"name": volumes[0], "annotations": {
            "volume.kubernetes.io/provisioner-deletion-secret-name": "keys",
            "volume.kubernetes.io/provisioner-deletion-secret-namespace": tenant.here.namespace,
        }},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"],
            "csi": {"driver": "s3.csi.scality.com", "volumeHandle": bucket, "volumeAttributes": {"bucketName": bucket}},
        },
    });
    let post = PostParams::default();
    tenant.volumes().create(&post, &serde_json::from_value(volume).unwrap()).await.unwrap();
    let secrets = Api::<Secret>::namespaced(tenant.here.client.clone(), &tenant.here.namespace);
    secrets.delete("keys", &DeleteParams::default()).await.unwrap();
    tenant.secret("keys", json!({})).await;
    // Until the controller's watch has reported the volume, an object keeps the bucket.
    tenant.server.put(&bucket, "file", b"x").unwrap();
    let refused = eventually("it is refused", LIMIT, || async {
        Seen::some(delete(&csi, &bucket).await.err(), "it is answered with OK")
    })
    .await;
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    tenant.server.delete(&bucket, "file").unwrap();
    delete(&csi, &bucket).await.unwrap_err();
    assert!(tenant.has_bucket(&bucket));
    tenant.keys("keys", ALICE).await;
    delete(&csi, &bucket).await.unwrap();
    assert!(!tenant.has_bucket(&bucket));
    drop(controller);
}
