//! Claims that meet others, that are torn, and that are not allowed.

use std::collections::BTreeSet;

use contract::names::{annotation, label};
use contract::sharing::{Identity, SharingKey};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use s3_csi_tests::controller::{self, Controller};
use s3_csi_tests::refusal::{deny_updates, lift, never_answer_updates};
use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::json;

use super::{
    REACTS_WITHIN, known, number_of_warm_pods, ready, runs, says_that_it_was_claimed, stage, warm_pods,
};

/// As a controller leaves it that is killed between the claim and the attachment.
#[tokio::test]
async fn a_claimed_pod_without_an_attachment_serves_its_workload_or_ends() {
    let _running = controller::none().await;
    let stage = stage("warm-torn").await;
    let controller = Controller::start(&stage.here.client, &["--warm-mountpoint-pods=2"]).await;
    let [one, two] = Vec::from_iter(ready(&stage, 2).await).try_into().unwrap();
    drop(controller);
    stage.volume("stays", &[], &[]).await;
    stage.volume("left", &[], &[]).await;
    let stays = stage.workload("stays", &["stays"]).await;
    claim(&stage, &one, "stays", &stays.uid().unwrap()).await;
    claim(&stage, &two, "left", "c0ffee").await;

    let _controller = Controller::start(&stage.here.client, &["--warm-mountpoint-pods=2"]).await;
    let (attachment, serving) = stage.attached(&stays).await;
    assert_eq!(serving.name_any(), one);
    says_that_it_was_claimed(&stage, &attachment).await;
    stage.marked_for_unmount(&two).await;
    number_of_warm_pods(&stage, 2).await;
}

async fn claim(stage: &Stage, pod: &str, volume: &str, uid: &str) {
    let key = SharingKey {
        node: stage.node.clone(),
        volume_name: stage.volume_name(volume),
        volume_id: stage.volume_name(volume),
        mount_options: String::new(),
        fs_group: String::new(),
        identity: Identity::Driver,
    };
    let claim = json!({"metadata": {
        "labels": {label::WORKLOAD_UID: uid},
        "annotations": {
            annotation::WARM_ON: null, annotation::WARM_SHAPE: null,
            annotation::ATTACHMENT: key.attachment_name(), annotation::VOLUME_NAME: key.volume_name,
            annotation::EARLY_MOUNT: "null",
        },
        "ownerReferences": null,
    }});
    stage.mountpoint_pods().patch(pod, &PatchParams::default(), &Patch::Merge(claim)).await.unwrap();
}

#[tokio::test]
async fn two_controllers_claim_no_pod_twice() {
    let _running = controller::none().await;
    let stage = stage("warm-racing").await;
    let flags = ["--leader-election=false", "--warm-mountpoint-pods=3"];
    let one = Controller::start(&stage.here.client, &flags).await;
    let warm = ready(&stage, 3).await;
    let other = Controller::start(&stage.here.client, &flags).await;
    known(&one, 3).await;
    known(&other, 3).await;
    let mut workloads = Vec::new();
    for number in 0..6 {
        stage.unbound_volume(&format!("v{number}"), contract::names::DRIVER, &[], &[]).await;
        workloads.push(stage.workload(&format!("w{number}"), &[&format!("v{number}")]).await);
    }
    for number in 0..6 {
        stage.bind(&format!("v{number}")).await;
    }
    let mut serving = BTreeSet::new();
    for workload in &workloads {
        let (_, pod) = stage.attached(workload).await;
        runs(&stage, &pod).await;
        serving.insert(pod.name_any());
    }
    assert_eq!(serving.len(), workloads.len(), "each volume has its own pod");
    assert!(!serving.is_disjoint(&warm), "warm pods were claimed");
    // What one of them claimed while the other attached the workload to another pod serves nothing, and ends.
    eventually("every pod serves, is warm or ends", REACTS_WITHIN, || async {
        let named: BTreeSet<String> = stage
            .attachments_here()
            .await
            .into_iter()
            .flat_map(|attachment| attachment.spec.mountpoint_pods.into_keys())
            .collect();
        let pods = stage.mountpoint_pods().list(&ListParams::default()).await.unwrap();
        let is_left = |pod: &&Pod| {
            let annotations = pod.annotations();
            let volume = annotations.get(annotation::VOLUME_NAME);
            volume.is_some_and(|volume| volume.starts_with(&stage.volume_name("")))
                && !named.contains(&pod.name_any())
                && !annotations.contains_key(annotation::NEEDS_UNMOUNT)
                && pod.metadata.deletion_timestamp.is_none()
        };
        let left: Vec<String> = pods.iter().filter(is_left).map(Pod::name_any).collect();
        let warm = warm_pods(&stage).await.len();
        Seen::some((left.is_empty() && warm == 3).then_some(()), format!("{left:?}, {warm} warm"))
    })
    .await;
}

/// As with a policy of the cluster's administrators.
#[tokio::test]
async fn a_warm_pod_that_must_not_be_changed_is_left_for_a_while() {
    let _running = controller::none().await;
    let stage = stage("warm-denied").await;
    let controller = Controller::start(&stage.here.client, &["--warm-mountpoint-pods=1"]).await;
    let [warm] = Vec::from_iter(ready(&stage, 1).await).try_into().unwrap();
    known(&controller, 1).await;
    deny_updates(&stage.here, &stage.mountpoint_pods(), &warm, &format!("object.metadata.name == '{warm}'"))
        .await;
    for name in ["one", "two"] {
        stage.volume(name, &[], &[]).await;
        let (_, serving) = stage.attached(&stage.workload(name, &[name]).await).await;
        assert_ne!(serving.name_any(), warm);
    }
    let metrics = controller.metrics();
    for (result, number) in [("lost", 1), ("being_replaced", 1)] {
        let line = format!("s3_csi_controller_warm_claims_total{{result=\"{result}\"}} {number}");
        assert!(metrics.contains(&line), "it is not tried again for each volume: {line}: {metrics}");
    }
    assert_eq!(warm_pods(&stage).await, BTreeSet::from([warm.clone()]));
    drop(controller);
    lift(&stage.here, &stage.mountpoint_pods(), &warm).await;
}

/// As with a webhook that has failed.
#[tokio::test]
async fn a_claim_without_an_answer_keeps_no_workload_waiting() {
    let _running = controller::none().await;
    let stage = stage("warm-unanswered").await;
    let controller = Controller::start(&stage.here.client, &["--warm-mountpoint-pods=1"]).await;
    let [warm] = Vec::from_iter(ready(&stage, 1).await).try_into().unwrap();
    known(&controller, 1).await;
    let condition = format!("object.metadata.name == '{warm}'");
    let _webhook = never_answer_updates(&stage.here, &stage.mountpoint_pods(), &warm, &condition).await;
    stage.volume("data", &[], &[]).await;
    let (_, serving) = stage.attached(&stage.workload("w", &["data"]).await).await;
    assert_ne!(serving.name_any(), warm);
    assert!(controller.log().contains("claim_pod failed"), "{}", controller.log());
    drop(controller);
    lift(&stage.here, &stage.mountpoint_pods(), &warm).await;
}
