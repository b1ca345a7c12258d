//! How many warm pods there are, and where.

use contract::names::annotation;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::controller::{self, Controller};
use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::json;
use xtask::driver;

use super::{REACTS_WITHIN, change_node, known, number_of_warm_pods, ready, stage, warm_pods};
use crate::chart;

#[tokio::test]
async fn warm_pods_leave_a_node_that_is_cordoned_or_full() {
    let _running = controller::none().await;
    let stage = stage("warm-closed").await;
    let controller = Controller::start(&stage.here.client, &["--warm-mountpoint-pods=2"]).await;
    number_of_warm_pods(&stage, 2).await;
    change_node(&stage, json!({"spec": {"unschedulable": true}})).await;
    number_of_warm_pods(&stage, 0).await;
    change_node(&stage, json!({"spec": {"unschedulable": false}})).await;
    ready(&stage, 2).await;
    known(&controller, 2).await;

    // A volume that cannot use them finds no room beside them.
    stage.volume("big", &[("mountpointContainerResourcesRequestsMemory", "1Gi")], &[]).await;
    let (_, waiting) = stage.attached(&stage.workload("w", &["big"]).await).await;
    let full = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Too many pods.",
    });
    stage.report_mountpoint(&waiting.name_any(), json!({"phase": "Pending", "conditions": [full]})).await;
    number_of_warm_pods(&stage, 0).await;
}

#[tokio::test]
async fn warm_pods_make_room_for_a_workload_that_fits_nowhere() {
    let _running = controller::none().await;
    let stage = stage("warm-crowded").await;
    let flags = ["--warm-mountpoint-pods=2", r#"--mountpoint-resources={"requests": {"memory": "64Mi"}}"#];
    let _controller = Controller::start(&stage.here.client, &flags).await;
    number_of_warm_pods(&stage, 2).await;
    fits_nowhere(&stage, "gpu", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.").await;
    stage.acted().await;
    number_of_warm_pods(&stage, 2).await;
    let message = "0/1 nodes are available: 1 Insufficient memory. preemption: 0/1 nodes are available.";
    fits_nowhere(&stage, "big", message).await;
    number_of_warm_pods(&stage, 0).await;
}

/// The controller hears of a pod for which the scheduler finds no node. It does not stay, because controllers of other tests must
/// not find it.
async fn fits_nowhere(stage: &Stage, name: &str, message: &str) {
    let pods = Api::<Pod>::namespaced(stage.here.client.clone(), &stage.here.namespace);
    let container = json!({"name": "main", "image": "none"});
    let pod = json!({"metadata": {"name": name}, "spec": {"containers": [container]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let condition =
        json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message});
    let status = Patch::Merge(json!({"status": {"conditions": [condition]}}));
    pods.patch_status(name, &PatchParams::default(), &status).await.unwrap();
    pods.delete(name, &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn warm_pods_of_another_installation_are_replaced_and_never_claimed() {
    let _running = controller::none().await;
    let stage = stage("warm-upgrade").await;
    let before = Controller::start(&stage.here.client, &["--warm-mountpoint-pods=1"]).await;
    let old = ready(&stage, 1).await;
    known(&before, 1).await;
    drop(before);
    stage.volume("data", &[], &[]).await;
    let workload = stage.workload("w", &["data"]).await;
    let flags = ["--warm-mountpoint-pods=1", "--mountpoint-pod-labels={\"team\":\"a\"}"];
    let after = Controller::start(&stage.here.client, &flags).await;
    let (_, serving) = stage.attached(&workload).await;
    assert!(!old.contains(&serving.name_any()), "it was made without the label");
    eventually("the old one is replaced", REACTS_WITHIN, || async {
        let now = warm_pods(&stage).await;
        Seen::some((now.len() == 1 && now.is_disjoint(&old)).then_some(()), format!("{now:?}"))
    })
    .await;
    drop(after);
    let _off = Controller::start(&stage.here.client, &[]).await;
    number_of_warm_pods(&stage, 0).await;
}

/// A values file has `off` as a boolean, `--set` as a string.
#[tokio::test]
async fn the_chart_takes_off_however_it_is_written() {
    let stage = Stage::set("warm-off").await;
    for (given, number) in [("off", "off"), ("false", "0"), ("0", "0"), ("2", "2"), ("auto", "auto")] {
        let objects = chart::objects(&stage, &[&format!("mountpointPod.warm.perNode={given}")]);
        let container = &chart::pods(&objects)[1]["containers"][0];
        assert_eq!(chart::variable(container, "WARM_MOUNTPOINT_PODS"), number);
    }
    let wrong = driver::render(&stage.here.cluster, None, &["mountpointPod.warm.perNode=true"]);
    assert!(wrong.unwrap_err().to_string().contains("perNode"));
}

/// The values `perNode` and `inCluster`. Two nodes reach the limit together, or with those of other tests.
#[tokio::test]
async fn nodes_keep_no_more_warm_pods_together_than_the_cluster_may_have() {
    let _running = controller::none().await;
    let (one, other) = (stage("warm-limit-one").await, stage("warm-limit-other").await);
    let together = async |number: usize| {
        eventually(&format!("{number} warm pods in the cluster"), REACTS_WITHIN, || async {
            let pods = one.mountpoint_pods().list(&ListParams::default()).await.unwrap();
            let is_warm = |pod: &&Pod| {
                pod.annotations().contains_key(annotation::WARM_ON)
                    && pod.metadata.deletion_timestamp.is_none()
            };
            let found: Vec<String> = pods.iter().filter(is_warm).map(Pod::name_any).collect();
            Seen::some((found.len() == number).then_some(()), format!("{found:?}"))
        })
        .await;
    };
    for (most, number) in [(3, 3), (1, 1)] {
        let most = format!("--most-warm-mountpoint-pods={most}");
        let arguments = ["--warm-mountpoint-pods=2", &most];
        let controller = Controller::start(&one.here.client, &arguments).await;
        together(number).await;
        for stage in [&one, &other] {
            stage.acted().await;
        }
        together(number).await;
        drop(controller);
    }
}
