//! Mountpoint Pods that fail are replaced, and what is no longer needed is deleted, neither of which the reference does.

use std::time::Duration;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::annotation;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use s3_csi_tests::controller::{self, Controller, shared};
use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::{Value, json};

/// Waits until the workload is served by another pod than this.
async fn moved(stage: &Stage, workload: &Pod, from: &Pod) -> Pod {
    eventually("the workload is moved", Duration::from_mins(1), || async {
        let (_, pod) = stage.attached(workload).await;
        let other = pod.uid() != from.uid();
        Seen::some(other.then_some(pod), "still the old pod")
    })
    .await
}

#[tokio::test]
async fn a_failed_mountpoint_pod_is_replaced_and_its_workloads_move() {
    let stage = Stage::set("failed").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[], &[]).await;
    let workload = stage.workload("w", &["data"]).await;
    let (_, pod) = stage.attached(&workload).await;
    stage.run_mountpoint(&pod.name_any()).await;
    stage.report("w", "Running").await;
    stage
        .report_mountpoint(
            &pod.name_any(),
            json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}),
        )
        .await;
    let next = moved(&stage, &workload, &pod).await;
    assert_eq!(next.name_any(), format!("{}-2", pod.name_any()));
    stage.mountpoint_gone(&pod.name_any()).await;
    let note = stage.event("w", "MountpointPodReplaced").await;
    assert!(note.contains("Evicted: low on memory"), "{note}");
}

/// As with a full disk: kubelet turns away every pod that it gets.
#[tokio::test]
async fn a_mountpoint_pod_that_its_node_turns_away_is_not_replaced_again_and_again() {
    let stage = Stage::set("turned-away").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[], &[]).await;
    let workload = stage.workload("w", &["data"]).await;
    let (_, first) = stage.attached(&workload).await;
    let full =
        json!({"phase": "Failed", "reason": "Evicted", "message": "The node had condition: [DiskPressure]."});
    stage.report_mountpoint(&first.name_any(), full).await;
    let note = stage.event("w", "MountpointPodFailed").await;
    assert!(note.contains("DiskPressure"), "{note}");
    let second = moved(&stage, &workload, &first).await;
    let made = |pod: &Pod| pod.creation_timestamp().unwrap().0.as_second();
    assert!(made(&second) - made(&first) >= 14, "{} s", made(&second) - made(&first));
}

#[tokio::test]
async fn a_mountpoint_pod_deleted_by_hand_is_replaced() {
    let stage = Stage::set("deleted").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[], &[]).await;
    let workload = stage.workload("w", &["data"]).await;
    let (_, pod) = stage.attached(&workload).await;
    stage.run_mountpoint(&pod.name_any()).await;
    // Vanished: made again under its name, or under the next if the API server showed it terminating for a moment.
    stage.remove_mountpoint(&pod.name_any()).await;
    let second = moved(&stage, &workload, &pod).await;
    assert!(second.name_any().starts_with(&pod.name_any()), "{}", second.name_any());
    stage.event("w", "MountpointPodReplaced").await;
    // Scheduled, so that its deletion waits for a kubelet: the workloads do not wait with it.
    let target =
        json!({"metadata": {"name": second.name_any()}, "target": {"kind": "Node", "name": stage.node}});
    let _: serde_json::Value = stage
        .mountpoint_pods()
        .create_subresource("binding", &second.name_any(), &PostParams::default(), &target)
        .await
        .unwrap();
    stage.run_mountpoint(&second.name_any()).await;
    stage.mountpoint_pods().delete(&second.name_any(), &DeleteParams::default()).await.unwrap();
    let third = moved(&stage, &workload, &second).await;
    assert_ne!(third.name_any(), second.name_any(), "the name is still taken");
}

/// Two workloads that run on one Mountpoint Pod.
async fn two_that_run(stage: &Stage) -> (Vec<Pod>, MountpointS3PodAttachment, Pod) {
    stage.volume("data", &[], &[]).await;
    let workloads = vec![stage.workload("w1", &["data"]).await, stage.workload("w2", &["data"]).await];
    stage.attached(&workloads[0]).await;
    let (attachment, pod) = stage.attached(&workloads[1]).await;
    stage.run_mountpoint(&pod.name_any()).await;
    for workload in &workloads {
        stage.report(&workload.name_any(), "Running").await;
    }
    stage.acted().await;
    (workloads, attachment, pod)
}

/// They are attached again, to the pod that serves them, and it goes on serving.
async fn are_attached_again(
    stage: &Stage,
    workloads: &[Pod],
    before: &MountpointS3PodAttachment,
    served_by: &Pod,
) {
    for workload in workloads {
        let (attachment, pod) = stage.attached(workload).await;
        assert_ne!(attachment.uid(), before.uid());
        assert_eq!(attachment.name_any(), before.name_any());
        assert_eq!(pod.uid(), served_by.uid());
    }
    // One that is about to be unmounted takes no more.
    let (_, pod) = stage.attached(&stage.workload("new", &["data"]).await).await;
    assert_eq!(pod.uid(), served_by.uid());
    assert!(!pod.annotations().contains_key(annotation::NEEDS_UNMOUNT));
}

#[tokio::test]
async fn workloads_that_run_get_an_attachment_back_that_was_deleted_by_hand() {
    let stage = Stage::set("by-hand").await;
    let _controller = shared(&stage.here.client).await;
    let (workloads, attachment, pod) = two_that_run(&stage).await;
    stage.attachments().delete(&attachment.name_any(), &DeleteParams::default()).await.unwrap();
    are_attached_again(&stage, &workloads, &attachment, &pod).await;
}

#[tokio::test]
async fn an_attachment_that_was_deleted_while_no_controller_ran_comes_back_at_its_start() {
    let mut running = controller::none().await;
    let stage = Stage::set("by-hand-absent").await;
    *running = Some(Controller::start(&stage.here.client, &[]).await);
    let (workloads, attachment, pod) = two_that_run(&stage).await;
    assert!(running.take().unwrap().stop().success());
    stage.attachments().delete(&attachment.name_any(), &DeleteParams::default()).await.unwrap();
    // The one that the pod was made for leaves meanwhile.
    stage.remove("w1").await;
    *running = Some(Controller::start(&stage.here.client, &[]).await);
    are_attached_again(&stage, &workloads[1..], &attachment, &pod).await;
}

#[tokio::test]
async fn a_mountpoint_pod_that_no_attachment_names_is_unmounted() {
    let stage = Stage::set("orphan").await;
    let _controller = shared(&stage.here.client).await;
    let name = format!("mp-{}", stage.here.namespace);
    stage.stray_mountpoint(&name).await;
    stage.run_mountpoint(&name).await;
    stage.marked_for_unmount(&name).await;
    stage.report_mountpoint(&name, json!({"phase": "Succeeded"})).await;
    eventually("it is being deleted", Duration::from_mins(1), || async {
        let pod = stage.mountpoint_pods().get_opt(&name).await.unwrap();
        let deleted = pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
        Seen::some(deleted.then_some(()), "it is there")
    })
    .await;
}

#[tokio::test]
async fn strangers_in_the_mountpoint_namespace_are_left_alone() {
    let stage = Stage::set("stranger").await;
    let _controller = shared(&stage.here.client).await;
    let name = format!("stranger-{}", stage.here.namespace);
    let spec = json!({"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]});
    let pod = json!({"metadata": {"name": name}, "spec": spec});
    stage
        .mountpoint_pods()
        .create(&PostParams::default(), &serde_json::from_value(pod).unwrap())
        .await
        .unwrap();
    stage.report_mountpoint(&name, json!({"phase": "Succeeded"})).await;
    // One of the driver's own comes behind it in the same watch.
    let ours = format!("mp-{}", stage.here.namespace);
    stage.stray_mountpoint(&ours).await;
    stage.run_mountpoint(&ours).await;
    stage.marked_for_unmount(&ours).await;
    let pod = stage.mountpoint_pods().get(&name).await.unwrap();
    assert!(
        pod.metadata.deletion_timestamp.is_none()
            && !pod.annotations().contains_key(annotation::NEEDS_UNMOUNT)
    );
}

#[tokio::test]
async fn a_node_that_vanishes_takes_its_attachments_with_it() {
    let stage = Stage::set("vanish").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[], &[]).await;
    let workload = stage.workload("w", &["data"]).await;
    let (_, pod) = stage.attached(&workload).await;
    stage.run_mountpoint(&pod.name_any()).await;
    stage.report("w", "Running").await;
    // Another workload waits for a node, whose coming is all that is missing.
    let later = stage.volume_name("later");
    stage.volume("later", &[], &[]).await;
    let waiting = stage.workload_with("waiting", &["later"], json!({"nodeName": later})).await;
    stage.acted().await;
    stage.all::<Node>().delete(&stage.node, &DeleteParams::default()).await.unwrap();
    stage.add_node(&later).await;
    stage.attached(&waiting).await;
    // The node might only be registered anew, with its pods running on.
    assert_eq!(stage.attachments_here().await.len(), 1);
    stage.attached(&workload).await;
    // What the cluster's garbage collection does in the end.
    stage.remove("w").await;
    stage.nothing_attached().await;
    stage.mountpoint_gone(&pod.name_any()).await;
}

/// As an administrator marks a node that is certainly off. Its kubelet will not confirm the end of a pod.
#[tokio::test]
async fn a_node_out_of_service_keeps_no_mountpoint_pod() {
    let stage = Stage::set("out-of-service").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[], &[]).await;
    let workload = stage.workload("w", &["data"]).await;
    let (_, pod) = stage.attached(&workload).await;
    stage.schedule_mountpoint(&pod.name_any()).await;
    stage.run_mountpoint(&pod.name_any()).await;
    stage.report("w", "Running").await;
    let taints = |taints: Value| Patch::Merge(json!({"spec": {"taints": taints}}));
    let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"});
    let nodes = stage.all::<Node>();
    nodes.patch(&stage.node, &PatchParams::default(), &taints(json!([taint]))).await.unwrap();
    stage.acted().await;
    // A workload that tolerates the taint stays, with everything it needs.
    stage.attached(&workload).await;
    stage.remove("w").await;
    stage.nothing_attached().await;
    stage.mountpoint_gone(&pod.name_any()).await;

    nodes.patch(&stage.node, &PatchParams::default(), &taints(Value::Null)).await.unwrap();
    let next = stage.workload("next", &["data"]).await;
    stage.attached(&next).await;
}
