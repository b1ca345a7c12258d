//! A workload that can do no more I/O is detached, whichever way it went.

use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use s3_csi_tests::Stage;
use s3_csi_tests::controller::{self, Controller, shared};
use serde_json::json;

#[tokio::test]
async fn a_finished_workload_is_detached_and_its_pod_unmounted_and_removed() {
    let stage = Stage::set("finished").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[], &[]).await;
    for (name, phase) in [("done", "Succeeded"), ("failed", "Failed")] {
        let (_, pod) = stage.attached(&stage.workload(name, &["data"]).await).await;
        stage.run_mountpoint(&pod.name_any()).await;
        stage.report(name, "Running").await;
        stage.report(name, phase).await;
        stage.nothing_attached().await;
        stage.marked_for_unmount(&pod.name_any()).await;
        stage.report_mountpoint(&pod.name_any(), json!({"phase": "Succeeded"})).await;
        stage.mountpoint_gone(&pod.name_any()).await;
    }
}

#[tokio::test]
async fn the_mountpoint_pod_stays_for_those_who_stay() {
    let stage = Stage::set("stays").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[], &[]).await;
    stage.attached(&stage.workload("w1", &["data"]).await).await;
    let second = stage.workload("w2", &["data"]).await;
    let (_, pod) = stage.attached(&second).await;
    stage.run_mountpoint(&pod.name_any()).await;
    stage.remove("w1").await;
    let (attachment, pod) = loop {
        let (attachment, pod) = stage.attached(&second).await;
        if attachment.spec.workload_uids().count() == 1 {
            break (attachment, pod);
        }
    };
    assert_eq!(attachment.spec.mountpoint_pod_of(&second.uid().unwrap()), Some(pod.name_any().as_str()));
    assert!(!pod.annotations().contains_key(contract::names::annotation::NEEDS_UNMOUNT));
    stage.remove("w2").await;
    stage.nothing_attached().await;
    stage.marked_for_unmount(&pod.name_any()).await;
}

#[tokio::test]
async fn a_running_workload_is_attached_until_it_has_ended() {
    let stage = Stage::set("ending").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[], &[]).await;
    let workload = stage.workload("w", &["data"]).await;
    let (_, pod) = stage.attached(&workload).await;
    stage.run_mountpoint(&pod.name_any()).await;
    stage.report("w", "Running").await;
    stage.here.pods().delete("w", &DeleteParams::default()).await.unwrap();
    stage.acted().await;
    assert_eq!(stage.attachments_here().await.len(), 1, "it may still write");
    stage.attached(&workload).await;
    stage.remove("w").await;
    stage.nothing_attached().await;
}

#[tokio::test]
async fn a_mountpoint_pod_that_never_started_is_removed_at_once() {
    let stage = Stage::set("never-started").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[], &[]).await;
    let (_, pod) = stage.attached(&stage.workload("w", &["data"]).await).await;
    stage.here.pods().delete("w", &DeleteParams::default()).await.unwrap();
    stage.nothing_attached().await;
    stage.mountpoint_gone(&pod.name_any()).await;
}

#[tokio::test]
async fn an_edited_volume_and_a_deleted_claim_do_not_keep_a_workload_attached() {
    let stage = Stage::set("edited").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[], &[]).await;
    let (_, pod) = stage.attached(&stage.workload("w", &["data"]).await).await;
    stage.run_mountpoint(&pod.name_any()).await;
    stage.report("w", "Running").await;
    let volumes = stage.all::<k8s_openapi::api::core::v1::PersistentVolume>();
    let edit = Patch::Merge(json!({"spec": {"mountOptions": ["uid=7"]}}));
    volumes.patch(&stage.volume_name("data"), &PatchParams::default(), &edit).await.unwrap();
    volumes.delete(&stage.volume_name("data"), &DeleteParams::default()).await.unwrap();
    stage.remove("w").await;
    stage.nothing_attached().await;
    stage.marked_for_unmount(&pod.name_any()).await;
}

#[tokio::test]
async fn what_left_while_no_controller_ran_is_cleaned_at_its_start() {
    let mut running = controller::none().await;
    let stage = Stage::set("absent").await;
    *running = Some(Controller::start(&stage.here.client, &[]).await);
    stage.volume("data", &[], &[]).await;
    let (_, pod) = stage.attached(&stage.workload("w1", &["data"]).await).await;
    stage.run_mountpoint(&pod.name_any()).await;
    stage.attached(&stage.workload("w2", &["data"]).await).await;
    let status = running.take().unwrap().stop();
    assert!(status.success(), "{status}");
    stage.remove("w1").await;
    stage.remove("w2").await;
    *running = Some(Controller::start(&stage.here.client, &[]).await);
    stage.nothing_attached().await;
    stage.marked_for_unmount(&pod.name_any()).await;
}
