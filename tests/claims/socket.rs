//! The CSI controller service, as a csi-provisioner beside the controller calls it.

use std::path::Path;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use kube::api::PostParams;
use s3_csi_tests::claims::{LIMIT, Tenant};
use s3_csi_tests::controller::{self, Controller};
use s3_csi_tests::csi::{Csi, publish_request};
use s3_csi_tests::{Seen, eventually};
use serde_json::json;
use service::csi::{CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse};
use tonic::Status;
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
async fn a_bucket_that_is_kept_is_told_on_its_volume() {
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
    // Until the controller's watch has told it of the volume, there is nowhere to tell it.
    eventually("it is told", LIMIT, || async {
        delete(&csi, &bucket).await.unwrap();
        let told = tenant.told(&name).await;
        let kept = told.iter().any(|line| line.starts_with("BucketKept: ") && line.contains(&bucket));
        Seen::some(kept.then_some(()), told.join("\n"))
    })
    .await;
    assert_eq!(tenant.server.get(&bucket, "file").unwrap(), b"precious");

    tenant.server.delete(&bucket, "file").unwrap();
    delete(&csi, &bucket).await.unwrap();
    assert!(!tenant.server.buckets().unwrap().contains(&bucket));
    delete(&csi, &bucket).await.unwrap();
    drop(controller);
}
