//! Workloads that move to another node, on request and because their node is drained.

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::changed::Changed;
use s3_csi_tests::story::{LIMIT, Story};
use s3_csi_tests::{Seen, eventually};
use serde_json::json;
use xtask::cluster::{Cluster, Node};
use xtask::command::run;

use crate::place::{delete_all, during, node_of, on_others, others, run_one, running_pod, serving_nodes};

#[tokio::test]
async fn the_pod_of_a_stateful_set_finds_its_data_on_another_node() {
    let story = Story::begin("moves").await;
    let [from, to] = others(&story);
    let script = "if [ -f /data/first ]; then cat /data/first; echo FOUND; \
                  else echo written before > /data/first && echo WRITTEN; fi; sleep 3600";
    let mut spec = story.workload_on(from, script);
    spec["terminationGracePeriodSeconds"] = json!(1);
    run_one(&story, "StatefulSet", "set", spec).await;
    story.says("set-0", "WRITTEN").await;
    assert_eq!(serving_nodes(&story).await, [from.name()]);
    let sets = Api::<StatefulSet>::namespaced(story.here.client.clone(), &story.here.namespace);
    let elsewhere = json!({"nodeSelector": {"kubernetes.io/hostname": to.name()}});
    let patch = Patch::Merge(json!({"spec": {"template": {"spec": elsewhere}}}));
    sets.patch("set", &PatchParams::default(), &patch).await.unwrap();
    running_pod(&story, "set", |node| node == to.name()).await;
    story.says("set-0", "FOUND").await;
    assert!(story.log("set-0").await.contains("written before"));
    story.mountpoint_pods().await;
    delete_all(&story, "StatefulSet", "set").await;
    story.leaves_nothing().await;
}

/// Continues for some seconds after SIGTERM, and writes a last object only if no file operation has failed.
const PROPER: &str = "fine=yes; left=-1; trap 'left=12' TERM; \
    while [ $left != 0 ]; do \
      file=/data/$(cat /proc/sys/kernel/random/uuid); \
      { echo x > $file && [ \"$(cat $file)\" = x ] && echo beat; } || fine=no; \
      if [ $left -gt 0 ]; then left=$((left-1)); fi; sleep 0.3; \
    done; if [ $fine = yes ]; then echo bye > /data/ended-$(hostname); fi";

fn cordoned(cluster: &Cluster, node: Node) -> Changed {
    let kubectl = move |cluster: &Cluster, verb: &str| run(cluster.kubectl()?.args([verb, &node.name()]));
    let own = cluster.clone();
    Changed::make("a node", || kubectl(cluster, "cordon"), move || kubectl(&own, "uncordon"))
}

#[tokio::test]
async fn a_drained_node_loses_workloads_first_and_mountpoint_pods_last() {
    let story = Story::alone("drained").await;
    let mut spec = story.workload(PROPER);
    spec["affinity"] = on_others(&story);
    run_one(&story, "Deployment", "mover", spec).await;
    let before = running_pod(&story, "mover", |_| true).await;
    story.says(&before.name_any(), "beat").await;
    let node = story.here.cluster.node(node_of(&before).unwrap()).unwrap();
    let [mountpoint_pod] = story.mountpoint_pods().await.try_into().unwrap();

    // Undone even if the test fails, because other stories need the node.
    let cordoned = cordoned(&story.here.cluster, node);
    let cluster = story.here.cluster.clone();
    let ended = format!("ended-{}", before.name_any());
    let watch = async || {
        // The workload's last object, not its Pod object: the kubelet unmounts the volume before it reports
        // that the pod is gone, and the Mountpoint Pod may end as soon as the volume is unmounted.
        let serving = story.mountpoint_pods().await;
        let serves = serving.contains(&mountpoint_pod);
        let replacement = serving.iter().find(|name| name.starts_with(&format!("{mountpoint_pod}-")));
        assert_eq!(replacement, None, "a workload that is ending needs no other Mountpoint Pod");
        let has_ended = story.server.get(story.name, &ended).is_ok();
        assert!(serves || has_ended, "the Mountpoint Pod ended before the workload");
    };
    during(move || cluster.drain_node(node), watch).await;
    assert_eq!(
        story.server.get(story.name, &ended).unwrap(),
        b"bye\n",
        "no file operation failed until the end"
    );
    let after = running_pod(&story, "mover", |there| there != node.name()).await;
    story.says(&after.name_any(), "beat").await;
    eventually("no Mountpoint Pod is left there", LIMIT, || async {
        let serving = serving_nodes(&story).await;
        Seen::some((!serving.contains(&node.name())).then_some(()), format!("{serving:?}"))
    })
    .await;
    cordoned.undo();
    delete_all(&story, "Deployment", "mover").await;
    story.leaves_nothing().await;
}
