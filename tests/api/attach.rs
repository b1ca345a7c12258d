//! A workload that needs an S3 volume gets its attachment and its Mountpoint Pod.

use contract::names::{annotation, label, mountpoint_pod};
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams, PostParams};
use s3_csi_tests::controller::shared;
use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[tokio::test]
async fn a_scheduled_workload_with_a_bound_volume_is_attached() {
    let stage = Stage::set("attach").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[("mountpointPodServiceAccountName", "default")], &["allow-delete", "uid=1"]).await;
    let workload = stage.workload_with("w", &["data"], json!({"securityContext": {"fsGroup": 2000}})).await;
    let (attachment, pod) = stage.attached(&workload).await;

    let spec = &attachment.spec;
    let volume = stage.volume_name("data");
    assert_eq!(
        (&spec.node_name, &spec.persistent_volume_name, &spec.volume_id),
        (&stage.node, &volume, &volume)
    );
    assert_eq!(
        (spec.mount_options.as_str(), spec.workload_fs_group.as_str()),
        ("allow-delete,uid=1", "2000")
    );
    assert!(attachment.name_any().starts_with(&format!("s3pa-{}-{volume}-", stage.node)));

    assert_eq!(pod.name_any(), mountpoint_pod(&workload.uid().unwrap(), &volume));
    assert_eq!(pod.labels()[label::WORKLOAD_UID], workload.uid().unwrap());
    assert_eq!(pod.annotations()[annotation::VOLUME_NAME], volume);
    assert_eq!(pod.annotations()[annotation::ATTACHMENT], attachment.name_any());
    let spec = serde_json::to_value(pod.spec.unwrap()).unwrap();
    let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    assert_eq!(
        terms,
        &json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [stage.node]}]}])
    );
    assert_eq!(spec["serviceAccountName"], "default");
    assert_eq!(spec["restartPolicy"], "OnFailure");
}

/// What the node cannot tell from the request: whether there is a Secret, be it without data.
#[tokio::test]
async fn a_mountpoint_pod_says_whose_keys_its_volume_asks_for() {
    let stage = Stage::set("whose-keys").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("nothing", &[], &[]).await;
    stage.volume_with_secret("named", &[], &[]).await;
    stage.volume_with_secret("said", &[("authenticationSource", "secret")], &[]).await;
    stage.volume_with_secret("drivers", &[("authenticationSource", "driver")], &[]).await;
    for (name, source) in
        [("nothing", "driver"), ("named", "secret"), ("said", "secret"), ("drivers", "driver")]
    {
        let (attachment, pod) = stage.attached(&stage.workload(name, &[name]).await).await;
        assert_eq!(pod.annotations()[annotation::AUTHENTICATION_SOURCE], source, "{name}");
        assert_eq!(attachment.spec.authentication_source, source, "{name}");
    }
}

/// Scheduling and binding may each come before or after the pod: in the end it is attached.
#[tokio::test]
async fn late_scheduling_and_late_binding_are_waited_for() {
    let stage = Stage::set("late").await;
    let _controller = shared(&stage.here.client).await;
    for (name, schedule_first) in [("one", true), ("two", false)] {
        stage.unbound_volume(name, contract::names::DRIVER, &[], &[]).await;
        let workload = stage.workload_with(name, &[name], json!({"nodeName": null})).await;
        stage.stays_unattached().await;
        if schedule_first {
            stage.schedule(name).await;
        } else {
            stage.bind(name).await;
        }
        stage.stays_unattached().await;
        if schedule_first {
            stage.bind(name).await;
        } else {
            stage.schedule(name).await;
        }
        stage.attached(&workload).await;
        stage.remove(name).await;
        stage.nothing_attached().await;
    }
}

#[tokio::test]
async fn a_volume_that_appears_after_its_workload_is_attached() {
    let stage = Stage::set("appears").await;
    let _controller = shared(&stage.here.client).await;
    let workload = stage.workload("w", &["data"]).await;
    stage.stays_unattached().await;
    stage.volume("data", &[], &[]).await;
    stage.attached(&workload).await;
}

#[tokio::test]
async fn other_volumes_are_left_alone() {
    let stage = Stage::set("other").await;
    let _controller = shared(&stage.here.client).await;
    stage.unbound_volume("theirs", "other.csi.example", &[], &[]).await;
    stage.bind("theirs").await;
    stage.workload("w1", &["theirs"]).await;
    stage
        .workload_with(
            "w2",
            &[],
            json!({"volumes": [{"name": "e", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/x"}}]}),
        )
        .await;
    stage.stays_unattached().await;

    // Beside one of ours, and beside a claim that will never be bound.
    stage.volume("ours", &[], &[]).await;
    stage.claim("never").await;
    let mixed = stage.workload("w3", &["theirs", "ours", "never"]).await;
    let (attachment, _) = stage.attached(&mixed).await;
    assert_eq!(attachment.spec.persistent_volume_name, stage.volume_name("ours"));
    assert_eq!(stage.attachments_here().await.len(), 1);
}

#[tokio::test]
async fn each_volume_of_a_pod_has_its_own_mountpoint_pod() {
    let stage = Stage::set("several").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("a", &[], &[]).await;
    stage.volume("b", &[], &[]).await;
    let workload = stage.workload("w", &["a", "b"]).await;
    let (_, one) = stage.attached_volume(&workload, Some(&stage.volume_name("a"))).await;
    let (_, other) = stage.attached_volume(&workload, Some(&stage.volume_name("b"))).await;
    assert_ne!(one.name_any(), other.name_any());
}

#[tokio::test]
async fn generic_ephemeral_volumes_are_volumes_like_others() {
    let stage = Stage::set("ephemeral").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("w-scratch", &[], &[]).await;
    let template =
        json!({"spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}});
    let volumes = json!([{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]);
    let workload = stage.workload_with("w", &[], json!({"volumes": volumes})).await;
    stage.attached(&workload).await;
}

#[tokio::test]
async fn equal_workloads_share_and_different_ones_do_not() {
    let stage = Stage::set("sharing").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[], &[]).await;
    let (first_attachment, first_pod) = stage.attached(&stage.workload("w1", &["data"]).await).await;
    let (second_attachment, second_pod) = stage.attached(&stage.workload("w2", &["data"]).await).await;
    assert_eq!(first_attachment.name_any(), second_attachment.name_any());
    assert_eq!(first_pod.name_any(), second_pod.name_any());
    assert_eq!(second_attachment.spec.workload_uids().count(), 2);

    let other_group = stage.workload_with("w3", &["data"], json!({"securityContext": {"fsGroup": 3}})).await;
    let (third, third_pod) = stage.attached(&other_group).await;
    assert_ne!((third.name_any(), third_pod.name_any()), (first_attachment.name_any(), first_pod.name_any()));

    let elsewhere = format!("{}-b", stage.node);
    stage.add_node(&elsewhere).await;
    let other_node = stage.workload_with("w4", &["data"], json!({"nodeName": elsewhere})).await;
    let (fourth, _) = stage.attached(&other_node).await;
    assert_eq!(fourth.spec.node_name, elsewhere);

    // Edited options make a key of their own, and workloads that are attached already stay where they are.
    let volumes = stage.all::<k8s_openapi::api::core::v1::PersistentVolume>();
    let edit = Patch::Merge(json!({"spec": {"mountOptions": ["uid=7"]}}));
    volumes.patch(&stage.volume_name("data"), &PatchParams::default(), &edit).await.unwrap();
    let (fifth, _) = stage.attached(&stage.workload("w5", &["data"]).await).await;
    assert_eq!(fifth.spec.mount_options, "uid=7");
    let still = stage.attachments().get(&first_attachment.name_any()).await.unwrap();
    assert_eq!(still.spec.workload_uids().count(), 2);
}

#[tokio::test]
async fn pods_that_take_no_new_workloads_are_passed_over() {
    let stage = Stage::set("unsuitable").await;
    let _controller = shared(&stage.here.client).await;
    for (name, change) in [
        ("closed", json!({"metadata": {"annotations": {annotation::NO_NEW_WORKLOAD: "true"}}})),
        ("older", json!({"metadata": {"labels": {label::DRIVER_VERSION: "0.0.1"}}})),
    ] {
        stage.volume(name, &[], &[]).await;
        let (_, pod) = stage.attached(&stage.workload(&format!("{name}-1"), &[name]).await).await;
        stage
            .mountpoint_pods()
            .patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(change))
            .await
            .unwrap();
        // Until the controller has seen it, workloads still join.
        let number = AtomicUsize::new(2);
        let attachment = eventually("a new workload gets another one", Duration::from_mins(1), || async {
            let next = format!("{name}-{}", number.fetch_add(1, Ordering::Relaxed));
            let (attachment, other) = stage.attached(&stage.workload(&next, &[name]).await).await;
            Seen::some((other.name_any() != pod.name_any()).then_some(attachment), "the same")
        })
        .await;
        assert_eq!(attachment.spec.mountpoint_pods.len(), 2, "both entries are in one attachment");
    }
}

#[tokio::test]
async fn a_running_workload_without_attachment_is_left_alone() {
    let stage = Stage::set("first-version").await;
    let _controller = shared(&stage.here.client).await;
    stage.unbound_volume("data", contract::names::DRIVER, &[], &[]).await;
    stage.workload("w", &["data"]).await;
    stage.report("w", "Running").await;
    stage.bind("data").await;
    stage.stays_unattached().await;
}

#[tokio::test]
async fn a_workload_that_is_being_deleted_before_it_starts_gets_nothing() {
    let stage = Stage::set("terminating").await;
    let _controller = shared(&stage.here.client).await;
    stage.unbound_volume("data", contract::names::DRIVER, &[], &[]).await;
    stage.workload("w", &["data"]).await;
    stage.here.pods().delete("w", &kube::api::DeleteParams::default()).await.unwrap();
    stage.bind("data").await;
    stage.stays_unattached().await;
}

/// An attachment that another driver wrote, under a name of its own and without the newer fields.
#[tokio::test]
async fn an_attachment_of_the_reference_is_adopted() {
    let stage = Stage::set("adopt").await;
    let _controller = shared(&stage.here.client).await;
    for name in ["plain", "secret"] {
        match name {
            "plain" => stage.volume(name, &[], &["uid=1"]).await,
            _ => stage.volume_with_secret(name, &[("authenticationSource", name)], &["uid=1"]).await,
        }
        let first = stage.workload(&format!("{name}-1"), &[name]).await;
        let (ours, pod) = stage.attached(&first).await;
        // Written anew as the reference would have it.
        stage.attachments().delete(&ours.name_any(), &kube::api::DeleteParams::default()).await.unwrap();
        stage.report(&format!("{name}-1"), "Running").await;
        let entry = json!([{"workloadPodUID": first.uid(), "attachmentTime": "2024-01-15T10:30:00Z"}]);
        let theirs = json!({
            "apiVersion": "s3.csi.scality.com/v2", "kind": "MountpointS3PodAttachment",
            "metadata": {"name": format!("s3pa-{}", stage.volume_name(name))},
            "spec": {
                "nodeName": stage.node, "persistentVolumeName": stage.volume_name(name), "volumeID": stage.volume_name(name),
                "mountOptions": "uid=1", "workloadFSGroup": "", "mountpointS3PodAttachments": {format!("mp-theirs-{name}"): entry},
            },
        });
        stage
            .attachments()
            .create(&PostParams::default(), &serde_json::from_value(theirs).unwrap())
            .await
            .unwrap();
        eventually("their attachment is served", Duration::from_mins(1), || async {
            let pod = stage.mountpoint_pods().get_opt(&format!("mp-theirs-{name}")).await.unwrap();
            Seen::some(pod, "no pod")
        })
        .await;
        let (joined, _) = stage.attached(&stage.workload(&format!("{name}-2"), &[name]).await).await;
        assert_eq!(joined.name_any(), format!("s3pa-{}", stage.volume_name(name)), "adopted, not duplicated");
        assert_ne!(joined.spec.mountpoint_pod_of(&first.uid().unwrap()), Some(pod.name_any().as_str()));
    }
}
