//! The node service and the kubelet's registration: when it is ready, and when its node loses the start-up taint.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use contract::names::DRIVER;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use s3_csi_tests::csi::Csi;
use s3_csi_tests::node::{Kubelet, NodeProgram};
use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_mins(3);
const NOT_READY: &str = "s3.csi.scality.com/agent-not-ready";

fn taints_of_a_new_node() -> Value {
    json!([{"key": NOT_READY, "effect": "NoExecute"}, {"key": "others", "effect": "NoSchedule"}])
}

/// Gives the node the start-up taint and another one, and the registration of an earlier process.
async fn tainted(stage: &Stage) {
    let patch = Patch::Merge(json!({"spec": {"taints": taints_of_a_new_node()}}));
    stage.all::<Node>().patch(&stage.node, &PatchParams::default(), &patch).await.unwrap();
    let known = json!({"metadata": {"name": stage.node}, "spec": {"drivers": [driver(stage)]}});
    let known = serde_json::from_value(known).unwrap();
    stage.all::<CSINode>().create(&PostParams::default(), &known).await.unwrap();
}

/// As the kubelet lists it in the `CSINode`.
fn driver(stage: &Stage) -> Value {
    json!({"name": DRIVER, "nodeID": stage.node})
}

async fn change_csi_node(stage: &Stage, change: Value) {
    let params = PatchParams::default();
    stage.all::<CSINode>().patch(&stage.node, &params, &Patch::Merge(change)).await.unwrap();
}

async fn taints(stage: &Stage) -> Vec<String> {
    let node = stage.all::<Node>().get(&stage.node).await.unwrap();
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    taints.into_iter().map(|taint| taint.key).collect()
}

/// The other taint stays.
async fn only_ours_is_removed(stage: &Stage) {
    eventually("the taint is gone", LIMIT, || async {
        let mut left = taints(stage).await;
        // The API server adds one of its own to a node that is created.
        left.retain(|taint| !taint.starts_with("node.kubernetes.io/"));
        Seen::some((left == ["others"]).then_some(()), format!("{left:?}"))
    })
    .await;
}

#[tokio::test]
async fn the_taint_goes_when_kubelet_knows_the_driver_and_not_before() {
    let (stage, kubelet) = (Stage::set("node-taint").await, Kubelet::default());
    tainted(&stage).await;
    let debug = &["--log-level=info,node=debug"];
    let node = NodeProgram::start(&stage.here.client, &stage.node, &kubelet, debug).await;
    assert!(!node.csi.is_ready().await);
    assert!(node.probe("/readyz").0.contains("503"));

    // Before the registration, it does not look: otherwise it would have seen the earlier one, and never say this.
    change_csi_node(&stage, json!({"spec": {"drivers": []}})).await;
    let registry = Csi::connect(&kubelet.registration_socket()).await.unwrap();
    registry.registered().await;
    let not_yet = "CSINode does not list the driver yet";
    node.says(not_yet).await;
    // When it sees the next change, it has dealt with the one before.
    change_csi_node(&stage, json!({"metadata": {"labels": {"changed": "again"}}})).await;
    eventually("it has seen another change", LIMIT, || async {
        let log = node.log();
        Seen::some((log.matches(not_yet).count() > 1).then_some(()), log)
    })
    .await;
    assert_eq!(taints(&stage).await, [NOT_READY, "others"], "the kubelet does not know the driver yet");

    change_csi_node(&stage, json!({"spec": {"drivers": [driver(&stage)]}})).await;
    only_ours_is_removed(&stage).await;
    assert!(node.csi.is_ready().await && node.probe("/readyz").0.contains("200"));
}

/// The kubelet gives a node that it registers again the taint again, and the node service goes on running.
#[tokio::test]
async fn a_node_that_joins_again_loses_the_taint_again() {
    let (stage, kubelet) = (Stage::set("node-rejoins").await, Kubelet::default());
    tainted(&stage).await;
    let node = NodeProgram::start(&stage.here.client, &stage.node, &kubelet, &["--registration=off"]).await;
    only_ours_is_removed(&stage).await;
    let nodes = stage.all::<Node>();
    nodes.delete(&stage.node, &DeleteParams::default()).await.unwrap();
    let again = json!({"metadata": {"name": stage.node}, "spec": {"taints": taints_of_a_new_node()}});
    nodes.create(&PostParams::default(), &serde_json::from_value(again).unwrap()).await.unwrap();
    only_ours_is_removed(&stage).await;
    drop(node);
}

#[tokio::test]
async fn a_registrar_beside_it_is_left_to_do_its_work() {
    let (stage, kubelet) = (Stage::set("node-beside").await, Kubelet::default());
    tainted(&stage).await;
    let node = NodeProgram::start(&stage.here.client, &stage.node, &kubelet, &["--registration=off"]).await;
    assert!(!kubelet.registration_socket().exists());
    assert!(node.csi.is_ready().await);
    only_ours_is_removed(&stage).await;
}

/// The kubelet rejects a registration while there is no API server, and does not repeat it until the socket is another one.
#[tokio::test]
async fn a_rejected_registration_is_offered_again() {
    let (stage, kubelet) = (Stage::set("node-rejected").await, Kubelet::default());
    let node = NodeProgram::start(&stage.here.client, &stage.node, &kubelet, &[]).await;
    let socket = kubelet.registration_socket();
    let stamp = || fs::metadata(&socket).map(|it| (it.ino(), it.ctime(), it.ctime_nsec()));
    let before = stamp().unwrap();
    Csi::connect(&socket).await.unwrap().rejected("the API server is unavailable").await;
    let again = eventually("there is another socket", LIMIT, || async {
        match (stamp(), Csi::connect(&socket).await) {
            (Ok(now), Ok(csi)) if now != before => Seen::Yes(csi),
            (now, csi) => Seen::NotYet(format!("{now:?} {:?}", csi.err())),
        }
    })
    .await;
    assert!(!node.csi.is_ready().await);
    again.registered().await;
    eventually("it is ready", LIMIT, || async {
        Seen::some(node.csi.is_ready().await.then_some(()), node.log())
    })
    .await;
}
