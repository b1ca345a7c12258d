//! The CSI controller service, as a csi-provisioner in the controller's pod calls it.

use std::path::Path;

use ::controller::provision::volume_id::VolumeId;
use k8s_openapi::api::core::v1::{PersistentVolume, Secret};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::account::{Account, CONTROLLER};
use s3_csi_tests::claims::{LIMIT, Tenant};
use s3_csi_tests::controller::{self, Controller};
use s3_csi_tests::csi::{Csi, publish_request};
use s3_csi_tests::{Seen, eventually};
use serde_json::json;
use service::csi::{
    CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
};
use tonic::{Code, Status};
use xtask::s3::ALICE;

const KEYS: [(&str, &str); 2] =
    [("access_key_id", ALICE.access_key), ("secret_access_key", ALICE.secret_key)];

async fn create(
    csi: &Csi,
    name: &str,
    parameters: &[(&str, &str)],
    secrets: &[(&str, &str)],
) -> Result<String, Status> {
    let texts = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let request = CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: publish_request("", "", Path::new("/")).volume_capability.into_iter().collect(),
        parameters: texts(parameters),
        secrets: texts(secrets),
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

async fn validate(csi: &Csi, volume_id: &str, source: Option<&str>) -> Result<(), Status> {
    let context = source.map(|source| ("authenticationSource".to_owned(), source.to_owned()));
    let request = ValidateVolumeCapabilitiesRequest {
        volume_id: volume_id.to_owned(),
        volume_capabilities: publish_request("", "", Path::new("/")).volume_capability.into_iter().collect(),
        volume_context: context.into_iter().collect(),
        ..ValidateVolumeCapabilitiesRequest::default()
    };
    let call = csi.call("/csi.v1.Controller/ValidateVolumeCapabilities", request);
    let ValidateVolumeCapabilitiesResponse { .. } = call.await?;
    Ok(())
}

/// An account that has the controller's rights, but not these on volumes.
async fn without(tenant: &Tenant, suffix: &str, verbs: &[&str]) -> Account {
    let mut roles = CONTROLLER.roles(&[]);
    for role in &mut roles {
        role.rights
            .retain(|right| right.resource != "persistentvolumes" || !verbs.contains(&right.verb.as_str()));
    }
    CONTROLLER.variant(&tenant.here.client, suffix, &roles).await
}

#[tokio::test]
async fn a_bucket_that_is_kept_is_reported_on_its_volume() {
    let _running = controller::none().await;
    let tenant = Tenant::set("socket", ALICE).await;
    let socket = "/run/csi-provisioner.sock";
    let arguments = ["--provisioning=off", &format!("--csi-socket={socket}")];
    let controller = Controller::start(&tenant.here.client, &arguments).await;
    let csi = Csi::connect(Path::new(socket)).await.unwrap();

    let bucket = create(&csi, "pvc-of-a-provisioner", &[], &KEYS).await.unwrap();
    assert_eq!(
        create(&csi, "pvc-of-a-provisioner", &[], &KEYS).await.unwrap(),
        bucket,
        "asked again, the same"
    );
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
    delete(&csi, &bucket).await.unwrap();
    tenant.has_event(&name, &["BucketKept: ", &bucket]).await;
    assert_eq!(tenant.server.get(&bucket, "file").unwrap(), b"precious");

    tenant.server.delete(&bucket, "file").unwrap();
    delete(&csi, &bucket).await.unwrap();
    assert!(!tenant.server.buckets().unwrap().contains(&bucket));
    delete(&csi, &bucket).await.unwrap();
    drop(controller);
}

/// A csi-provisioner sends no secrets for a Secret without data. With `--extra-create-metadata` it names the claim. The
/// controller cannot watch volumes, so that it knows only those that it looks up.
#[tokio::test]
async fn a_call_without_keys_does_not_get_the_drivers_where_a_secret_is_named() {
    let _running = controller::none().await;
    let tenant = Tenant::set("keyless", ALICE).await;
    let socket = "/run/csi-keyless.sock";
    let arguments = ["--provisioning=off", &format!("--csi-socket={socket}")];
    let account = without(&tenant, "no-watch", &["watch"]).await;
    let controller = Controller::launch_as(&account, &tenant.here.client, &arguments).await;
    controller.says("caches filled").await;
    let csi = Csi::connect(Path::new(socket)).await.unwrap();
    let refused = create(&csi, "pvc-unnamed", &[], &[]).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("`--extra-create-metadata`"), "{refused}");
    assert!(!tenant.has_bucket(VolumeId::bucket("pvc-unnamed", None).bucket_name()));

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
        let refused = create(&csi, &volumes[0], &place("keyed"), &[]).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(words) && refused.message().contains("/keys"), "{refused}");
    }
    assert!(tenant.has_bucket(&create(&csi, &volumes[1], &place("plain"), &[]).await.unwrap()));

    // Nor does a look at it, or a deletion: the volume names the Secret.
    tenant.keys("keys", ALICE).await;
    let bucket = create(&csi, &volumes[0], &place("keyed"), &[]).await.unwrap();
    validate(&csi, &bucket, None).await.unwrap();
    let refused = validate(&csi, &bucket, Some("secret")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("asks for keys of its own"), "{refused}");
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
    let refused = delete(&csi, &bucket).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(tenant.has_bucket(&bucket));
    let refused = validate(&csi, &bucket, None).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    tenant.keys("keys", ALICE).await;
    validate(&csi, &bucket, Some("secret")).await.unwrap();
    delete(&csi, &bucket).await.unwrap();
    assert!(!tenant.has_bucket(&bucket));
    drop(controller);
}

#[tokio::test]
async fn a_bucket_whose_volume_cannot_be_looked_up_is_not_deleted() {
    let _running = controller::none().await;
    let tenant = Tenant::set("unreadable", ALICE).await;
    let socket = "/run/csi-unreadable.sock";
    let arguments = ["--provisioning=off", &format!("--csi-socket={socket}")];
    let account = without(&tenant, "no-volumes", &["get", "list", "watch"]).await;
    let controller = Controller::launch_as(&account, &tenant.here.client, &arguments).await;
    controller.says("CSI service started").await;
    let csi = Csi::connect(Path::new(socket)).await.unwrap();
    let bucket = create(&csi, "pvc-unreadable", &[], &KEYS).await.unwrap();
    let refused = delete(&csi, &bucket).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains("cannot list the PersistentVolumes"), "{refused}");
    assert!(tenant.has_bucket(&bucket));
    drop(controller);
    tenant.server.delete_bucket(&bucket).unwrap();
}
