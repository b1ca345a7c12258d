//! Every mistake a user can make is explained by an Event on the pod that waits.

use contract::attachment::MountpointS3PodAttachment;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams, PostParams};
use s3_csi_tests::account::MOUNTPOINT_NAMESPACE;
use s3_csi_tests::controller::shared;
use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::json;
use std::time::Duration;

async fn condition(stage: &Stage, attachment: &MountpointS3PodAttachment, status: &str) -> (String, String) {
    eventually(&format!("the condition is {status}"), Duration::from_mins(1), || async {
        let found = stage.attachments().get(&attachment.name_any()).await.unwrap();
        let conditions = found.status.map(|status| status.conditions).unwrap_or_default();
        let found =
            conditions.iter().find(|condition| condition.type_ == "Healthy" && condition.status == status);
        Seen::some(
            found.map(|found| (found.reason.clone(), found.message.clone())),
            format!("{conditions:?}"),
        )
    })
    .await
}

#[tokio::test]
async fn bad_attributes_are_named_and_their_correction_heals() {
    let stage = Stage::set("attributes").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[("mountpointContainerResourcesRequestsCpu", "much")], &[]).await;
    let workload = stage.workload("w", &["data"]).await;
    let note = stage.event("w", "InvalidVolumeAttributes").await;
    assert!(note.contains("\"much\" for \"mountpointContainerResourcesRequestsCpu\""), "{note}");
    assert!(stage.attachments_here().await.is_empty());
    // Attributes cannot be changed in place: the volume is made anew.
    let volumes = stage.all::<PersistentVolume>();
    // What protects a bound volume from deletion is lifted by a controller that does not run here.
    let unprotected = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    volumes.patch(&stage.volume_name("data"), &PatchParams::default(), &unprotected).await.unwrap();
    volumes.delete(&stage.volume_name("data"), &kube::api::DeleteParams::default()).await.unwrap();
    let volume = json!({
        "metadata": {"name": stage.volume_name("data")},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"],
            "csi": {"driver": contract::names::DRIVER, "volumeHandle": "h", "volumeAttributes": {"bucketName": "bucket"}},
        },
    });
    volumes.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();
    stage.bind("data").await;
    stage.attached(&workload).await;
}

#[tokio::test]
async fn keys_of_its_own_without_a_secret_are_refused_before_a_pod_is_made() {
    let stage = Stage::set("unnamed-secret").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[("authenticationSource", "secret")], &[]).await;
    stage.workload("w", &["data"]).await;
    let note = stage.event("w", "InvalidVolumeAttributes").await;
    assert!(note.contains("`authenticationSource: secret` without `nodePublishSecretRef`"), "{note}");
    assert!(stage.attachments_here().await.is_empty());
}

/// No Mountpoint Pod is started to find out what the options alone tell.
#[tokio::test]
async fn bad_options_are_named_before_a_pod_is_made_and_their_correction_heals() {
    let stage = Stage::set("bad-options").await;
    let _controller = shared(&stage.here.client).await;
    for (name, options, words) in [
        ("value", &["uid=abc"][..], "invalid mount option `uid` \"abc\": it must be a number from 1"),
        ("unknown", &["allow-deletes"], "unknown mount option `allow-deletes`"),
        ("exclusive", &["allow-root", "allow-other"], "mutually exclusive"),
    ] {
        stage.volume(name, &[], options).await;
        let workload = stage.workload(name, &[name]).await;
        let note = stage.event(name, "InvalidVolumeAttributes").await;
        assert!(note.contains(words), "{note}");
        assert!(stage.attachments_here().await.is_empty());
        let edit = Patch::Merge(json!({"spec": {"mountOptions": ["uid=1"]}}));
        let volumes = stage.all::<PersistentVolume>();
        volumes.patch(&stage.volume_name(name), &PatchParams::default(), &edit).await.unwrap();
        stage.attached(&workload).await;
        stage.remove(name).await;
        stage.nothing_attached().await;
    }
}

#[tokio::test]
async fn ignored_options_and_handles_used_twice_are_reported() {
    let stage = Stage::set("options").await;
    let _controller = shared(&stage.here.client).await;
    let other = json!({
        "metadata": {"name": stage.volume_name("twin")},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"],
            "csi": {"driver": contract::names::DRIVER, "volumeHandle": stage.volume_name("data"), "volumeAttributes": {"bucketName": "bucket"}},
        },
    });
    stage
        .all::<PersistentVolume>()
        .create(&PostParams::default(), &serde_json::from_value(other).unwrap())
        .await
        .unwrap();
    // After it: one watch tells of both, in their order.
    stage.volume("data", &[], &["Endpoint-URL=http://elsewhere", "uid=1"]).await;
    stage.attached(&stage.workload("w", &["data"]).await).await;
    assert!(stage.event("w", "MountOptionsIgnored").await.contains("endpoint-url"));
    assert!(stage.event("w", "DuplicateVolumeHandle").await.contains(&stage.volume_name("twin")));
}

#[tokio::test]
async fn a_missing_service_account_is_reported_in_the_api_servers_words() {
    let stage = Stage::set("account").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[("mountpointPodServiceAccountName", "nobody")], &[]).await;
    let workload = stage.workload("w", &["data"]).await;
    let note = stage.event("w", "MountpointPodRejected").await;
    assert!(note.contains("nobody"), "{note}");
    // Once it is there, the next try succeeds.
    let accounts = kube::Api::<k8s_openapi::api::core::v1::ServiceAccount>::namespaced(
        stage.here.client.clone(),
        MOUNTPOINT_NAMESPACE,
    );
    let account = serde_json::from_value(json!({"metadata": {"name": "nobody"}})).unwrap();
    accounts.create(&PostParams::default(), &account).await.unwrap();
    stage.attached(&workload).await;
}

#[tokio::test]
async fn a_mountpoint_pod_that_cannot_run_explains_itself() {
    let stage = Stage::set("trouble").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[], &[]).await;
    let (attachment, pod) = stage.attached(&stage.workload("w", &["data"]).await).await;
    let unscheduled = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: too many pods"});
    stage.report_mountpoint(&pod.name_any(), json!({"conditions": [unscheduled]})).await;
    assert!(stage.event("w", "MountpointPodUnschedulable").await.contains("too many pods"));
    let (reason, message) = condition(&stage, &attachment, "False").await;
    assert_eq!(reason, "MountpointPodUnschedulable");
    assert!(message.contains(&pod.name_any()) && message.contains("too many pods"), "{message}");

    let waiting = json!({"name": "mountpoint", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}});
    let scheduled = json!({"type": "PodScheduled", "status": "True"});
    stage
        .report_mountpoint(
            &pod.name_any(),
            json!({"conditions": [scheduled], "containerStatuses": [waiting]}),
        )
        .await;
    assert!(stage.event("w", "MountpointPodImagePullFailed").await.contains("no such image"));

    stage.run_mountpoint(&pod.name_any()).await;
    let (reason, _) = condition(&stage, &attachment, "True").await;
    assert_eq!(reason, "MountpointPodHealthy");
}

#[tokio::test]
async fn an_exhausted_quota_is_reported() {
    let stage = Stage::set("quota").await;
    let _controller = shared(&stage.here.client).await;
    // On this quota's own kind of pods only: other tests share the namespace.
    let quotas = kube::Api::<k8s_openapi::api::core::v1::ResourceQuota>::namespaced(
        stage.here.client.clone(),
        MOUNTPOINT_NAMESPACE,
    );
    let name = stage.volume_name("quota");
    let hard = json!({"requests.cpu": "1m"});
    let quota = json!({"metadata": {"name": name}, "spec": {"hard": hard, "scopes": ["NotBestEffort"]}});
    quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    let status = Patch::Merge(json!({"status": {"hard": hard, "used": {"requests.cpu": "0"}}}));
    quotas.patch_status(&name, &PatchParams::default(), &status).await.unwrap();
    let resources = json!({"requests": {"cpu": "500m"}});
    let spec = json!({"automountServiceAccountToken": false,
        "containers": [{"name": "c", "image": "i", "resources": resources}]});
    let probe = json!({"metadata": {"name": stage.volume_name("probe")}, "spec": spec});
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    eventually("the quota is in force", Duration::from_secs(10), || async {
        let tried =
            stage.mountpoint_pods().create(&dry_run, &serde_json::from_value(probe.clone()).unwrap()).await;
        Seen::some(tried.err().map(drop), "a pod is accepted")
    })
    .await;
    stage.volume("data", &[("mountpointContainerResourcesRequestsCpu", "500m")], &[]).await;
    stage.workload("w", &["data"]).await;
    let note = stage.event("w", "MountpointPodRejected").await;
    assert!(note.contains("exceeded quota"), "{note}");
    quotas.delete(&name, &kube::api::DeleteParams::default()).await.unwrap();
}
