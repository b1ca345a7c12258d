//! A power cut that lasts so long that the cluster evicts the pods of the node.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use s3_csi_tests::changed::Changed;
use s3_csi_tests::story::{LIMIT, Story};
use s3_csi_tests::{Seen, eventually};
use xtask::cluster::{Boot, Cluster, Node};
use xtask::command::run;

use crate::place::{
    await_driver, delete_all, node_of, nodes, on_others, others, run_one, running_pod, without_power,
};

/// Stops the node for good. When that is undone, another machine of the same name joins.
fn lost(cluster: &Cluster, node: Node) -> Changed {
    let own = cluster.clone();
    let replace = move || {
        own.start_node(node, &Boot { as_new: true, ..Boot::default() })?;
        await_driver(&own)
    };
    Changed::make("a node", || cluster.stop_node(node), replace)
}

#[tokio::test]
async fn what_was_on_a_node_that_never_comes_back_goes_when_the_cluster_gives_it_up() {
    let story = Story::alone("lost").await;
    let script =
        "if [ -f /data/first ]; then echo FOUND; else echo x > /data/first; echo WRITTEN; fi; sleep 3600";
    let mut spec = story.workload(script);
    spec["affinity"] = on_others(&story);
    run_one(&story, "Deployment", "survivor", spec).await;
    let before = running_pod(&story, "survivor", |_| true).await;
    story.says(&before.name_any(), "WRITTEN").await;
    let node = story.here.cluster.node(node_of(&before).unwrap()).unwrap();
    story.here.run("bare", story.workload_on(node, "ls /data && echo in; sleep 3600")).await;
    story.says("bare", "in").await;
    let served_by = story.mountpoint_pods().await;

    let lost = lost(&story.here.cluster, node);
    let after = running_pod(&story, "survivor", |there| there != node.name()).await;
    story.says(&after.name_any(), "FOUND").await;
    let old = story.here.pods().get(&before.name_any()).await.unwrap();
    assert!(old.metadata.deletion_timestamp.is_some(), "it is evicted, but its end cannot be confirmed");
    let attached: Vec<String> = story.attachments().await.into_iter().map(|it| it.spec.node_name).collect();
    assert!(attached.contains(&node.name()), "it can still write, so it stays attached: {attached:?}");

    nodes(&story).delete(&node.name(), &DeleteParams::default()).await.unwrap();
    let all = Api::<Pod>::all(story.here.client.clone());
    eventually("nothing of the node is left", LIMIT, || async {
        let there = ListParams::default().fields(&format!("spec.nodeName={}", node.name()));
        let pods: Vec<String> = all.list(&there).await.unwrap().iter().map(ResourceExt::name_any).collect();
        let attachments = story.attachments().await;
        let attached = attachments.iter().filter(|it| it.spec.node_name == node.name()).count();
        let seen = format!("{pods:?}, {attached} attachments");
        Seen::some((pods.is_empty() && attached == 0).then_some(()), seen)
    })
    .await;
    let serving = story.mountpoint_pods().await;
    assert!(served_by.iter().all(|pod| !serving.contains(pod)), "{served_by:?} served there: {serving:?}");
    story.says(&after.name_any(), "FOUND").await;

    lost.undo();
    story.here.run("new", story.workload_on(node, "ls /data && echo in; sleep 3600")).await;
    story.says("new", "in").await;
    story.mountpoint_pods().await;
    story.here.delete("new").await;
    delete_all(&story, "Deployment", "survivor").await;
    story.leaves_nothing().await;
}

/// The taint that an administrator sets on a node that is certainly off, so that its pods are deleted without a confirmation
/// of their end.
fn out_of_service(cluster: &Cluster, node: Node) -> Changed {
    let taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";
    let kubectl = move |cluster: &Cluster, taint: &str| {
        run(cluster.kubectl()?.args(["taint", "node", &node.name(), taint]))
    };
    let own = cluster.clone();
    let back = move || kubectl(&own, &format!("{taint}-"));
    Changed::make("a node", || kubectl(cluster, taint), back)
}

/// The Mountpoint Pod tolerates every taint, so the controller deletes it.
#[tokio::test]
async fn a_node_that_was_out_of_service_returns_and_nothing_is_left() {
    let story = Story::alone("out-of-service").await;
    let [node, _] = others(&story);
    story.here.run("given-up", story.workload_on(node, "ls /data && echo in; sleep 3600")).await;
    story.says("given-up", "in").await;
    story.mountpoint_pods().await;
    let off = without_power(&story.here.cluster, node);
    let given_up = out_of_service(&story.here.cluster, node);
    eventually("the workload, its attachment and its Mountpoint Pod are gone", LIMIT, || async {
        let pod = story.here.pods().get_opt("given-up").await.unwrap();
        let attached = story.attachments().await.len();
        let serving = story.mountpoint_pods().await;
        let seen = format!("pod: {}, {attached} attachments, {serving:?}", pod.is_some());
        Seen::some((pod.is_none() && attached == 0 && serving.is_empty()).then_some(()), seen)
    })
    .await;
    off.undo();
    given_up.undo();
    await_driver(&story.here.cluster).unwrap();
    story.leaves_nothing().await;
}
