//! Warm Mountpoint Pods: kept ready, claimed, replaced and removed, with controllers that race, die and are upgraded.

mod claims;
mod early;
mod nodes;
mod races;

use std::collections::BTreeSet;
use std::time::Duration;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::annotation;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use s3_csi_tests::controller::Controller;
use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::{Value, json};

const REACTS_WITHIN: Duration = Duration::from_mins(1);

/// A stage on whose node the driver has registered.
async fn stage(name: &str) -> Stage {
    let stage = Stage::set(name).await;
    let drivers = json!({"csi.volume.kubernetes.io/nodeid": r#"{"s3.csi.scality.com":"n"}"#});
    // Admission taints a new node as not ready.
    change_node(&stage, json!({"metadata": {"annotations": drivers}, "spec": {"taints": null}})).await;
    stage
}

async fn change_node(stage: &Stage, patch: Value) {
    stage.all::<Node>().patch(&stage.node, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

async fn warm_pods(stage: &Stage) -> BTreeSet<String> {
    let pods = stage.mountpoint_pods().list(&ListParams::default()).await.unwrap();
    let is_here = |pod: &&Pod| {
        pod.annotations().get(annotation::WARM_ON) == Some(&stage.node)
            && pod.metadata.deletion_timestamp.is_none()
    };
    pods.iter().filter(is_here).map(Pod::name_any).collect()
}

async fn number_of_warm_pods(stage: &Stage, number: usize) -> BTreeSet<String> {
    eventually(&format!("{number} warm pods"), REACTS_WITHIN, || async {
        let found = warm_pods(stage).await;
        Seen::some(Some(found.clone()).filter(|found| found.len() == number), format!("{found:?}"))
    })
    .await
}

/// Waits for as many, and lets them run.
async fn ready(stage: &Stage, number: usize) -> BTreeSet<String> {
    let pods = number_of_warm_pods(stage, number).await;
    for pod in &pods {
        stage.schedule_mountpoint(pod).await;
        stage.run_mountpoint(pod).await;
    }
    pods
}

/// Lets it run, unless it does: no warm pod is created beside those that start.
async fn runs(stage: &Stage, pod: &Pod) {
    if pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_none()) {
        stage.schedule_mountpoint(&pod.name_any()).await;
        stage.run_mountpoint(&pod.name_any()).await;
    }
}

async fn says_that_it_was_claimed(stage: &Stage, attachment: &MountpointS3PodAttachment) {
    eventually("the attachment says that its pod was claimed", REACTS_WITHIN, || async {
        let conditions = stage.attachments().get(&attachment.name_any()).await.unwrap().status;
        let conditions = conditions.map(|status| status.conditions).unwrap_or_default();
        let is_said = conditions.iter().any(|condition| condition.reason == "WarmMountpointPodClaimed");
        Seen::some(is_said.then_some(()), format!("{conditions:?}"))
    })
    .await;
}

/// Waits until the controller has seen that they run.
async fn known(controller: &Controller, number: usize) {
    let line = format!("s3_csi_controller_warm_mountpoint_pods{{state=\"ready\"}} {number}");
    eventually(&line, REACTS_WITHIN, || async {
        let metrics = controller.metrics();
        let warm: Vec<&str> = metrics.lines().filter(|line| line.contains("warm_")).collect();
        Seen::some(metrics.contains(&line).then_some(()), format!("{warm:?}"))
    })
    .await;
}
