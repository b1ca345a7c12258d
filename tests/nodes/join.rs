//! A node joins while workloads wait for it.

use std::cell::Cell;

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::changed::Changed;
use s3_csi_tests::story::Story;
use xtask::cluster::{Boot, Cluster, Node};

use crate::place::{await_driver, during, node_of, nodes, others, serving_nodes};

const TAINT: &str = "s3.csi.scality.com/agent-not-ready";

/// Stops the node. When that is undone, another machine of the same name joins, with the start-up taint.
fn removed(cluster: &Cluster, node: Node) -> Changed {
    let own = cluster.clone();
    let taints = vec![format!("{TAINT}:NoExecute")];
    let join = move || {
        own.start_node(node, &Boot { as_new: true, taints })?;
        await_driver(&own)
    };
    Changed::make("a node", || cluster.stop_node(node), join)
}

#[tokio::test]
async fn no_workload_starts_on_a_node_that_joins_before_its_driver_is_there() {
    let story = Story::alone("joins").await;
    let [_, node] = others(&story);
    let joins = removed(&story.here.cluster, node);
    // Deletes the pods of the removed machine at once instead of waiting for the garbage collector.
    nodes(&story).delete(&node.name(), &DeleteParams::default()).await.unwrap();
    let all = Api::<Pod>::all(story.here.client.clone());
    let there = ListParams::default().fields(&format!("spec.nodeName={}", node.name()));
    for pod in all.list(&there).await.unwrap() {
        let pods = Api::<Pod>::namespaced(story.here.client.clone(), &pod.namespace().unwrap());
        pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
    }
    story.here.run("waiting", story.workload_on(node, "ls /data && echo in; sleep 3600")).await;
    let is_tainted = async || {
        let node = nodes(&story).get_opt(&node.name()).await.unwrap();
        let mut taints = node.and_then(|node| node.spec?.taints).into_iter().flatten();
        taints.any(|taint| taint.key == TAINT)
    };
    let was_tainted = Cell::new(false);
    let watch = async || {
        // In this order, because the taint can be removed in between, but is never added again.
        let waiting = story.here.pods().get("waiting").await.unwrap();
        let tainted = is_tainted().await;
        was_tainted.set(was_tainted.get() || tainted);
        assert!(!tainted || node_of(&waiting).is_none(), "the workload was scheduled on a tainted node");
    };
    let join = || {
        joins.undo();
        Ok(())
    };
    during(join, watch).await;
    story.says("waiting", "in").await;
    assert_eq!(serving_nodes(&story).await, [node.name()]);
    assert!(was_tainted.get() && !is_tainted().await, "the taint was set and then removed");

    let registered = Api::<CSINode>::all(story.here.client.clone()).get(&node.name()).await.unwrap();
    assert!(registered.spec.drivers.iter().any(|driver| driver.name == contract::names::DRIVER));
    let events = Api::<Event>::namespaced(story.here.client.clone(), &story.here.namespace);
    let failed = ListParams::default().fields("reason=FailedMount");
    let failed: Vec<String> =
        events.list(&failed).await.unwrap().into_iter().filter_map(|event| event.message).collect();
    let too_early = |message: &&String| message.contains("not found in the list of registered CSI drivers");
    assert_eq!(failed.iter().find(too_early), None, "the workload started before the driver");
    story.here.delete("waiting").await;
    story.leaves_nothing().await;
}
