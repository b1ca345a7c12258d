//! A node returns after a power cut.

use std::collections::BTreeSet;
use std::fs;

use kube::ResourceExt as _;
use kube::api::DeleteParams;
use s3_csi_tests::story::{LIMIT, Story};
use s3_csi_tests::{Seen, eventually, manifest};
use serde_json::json;

use crate::place::{BEAT, others, serving_nodes, without_power};

/// The kubelet finds pods on its disk that have been deleted meanwhile, and others that must continue.
#[tokio::test]
async fn a_node_that_returns_runs_its_workloads_again_and_ends_those_deleted_by_force() {
    let story = Story::alone("power-cut").await;
    let [node, _] = others(&story);
    let own_claim = "power-cut-own";
    story.volume(own_claim, |_| {}).await;
    let kept = story.here.run("kept", story.workload_on(node, BEAT)).await;
    let sharing = story.here.run("sharing", story.workload_on(node, BEAT)).await;
    let mut alone = manifest::pod(&[own_claim], BEAT);
    alone["nodeSelector"] = json!({"kubernetes.io/hostname": node.name()});
    let alone = story.here.run("alone", alone).await;
    for pod in ["kept", "sharing", "alone"] {
        story.says(pod, "beat").await;
    }
    assert_eq!(story.mountpoint_pods().await.len(), 2);

    let off = without_power(&story.here.cluster, node);
    for pod in ["sharing", "alone"] {
        story.here.pods().delete(pod, &DeleteParams::default().grace_period(0)).await.unwrap();
    }
    off.undo();
    eventually("the workload is restarted", LIMIT, || async {
        let container = story.container("kept").await;
        let runs = container.state.as_ref().is_some_and(|it| it.running.is_some());
        let again = container.restart_count > 0 && runs;
        Seen::some(again.then_some(()), serde_json::to_string(&container).unwrap())
    })
    .await;
    story.says_again("kept", "beat").await;
    assert!(!story.log("kept").await.contains("FAILED"), "it is not restarted before its bucket is mounted");
    let deleted = [sharing.uid().unwrap(), alone.uid().unwrap()];
    eventually("only the kept workload is attached, and nothing is left of the others", LIMIT, || async {
        let attachments = story.attachments().await;
        let attached: BTreeSet<&str> = attachments.iter().flat_map(|it| it.spec.workload_uids()).collect();
        let serving = serving_nodes(&story).await;
        let init = story.here.cluster.init_of(node).expect("the node is on");
        let mounts = fs::read_to_string(format!("/proc/{init}/mountinfo")).unwrap();
        let there = |uid: &&String| {
            let folder = format!("/proc/{init}/root/var/lib/kubelet/pods/{uid}");
            mounts.contains(uid.as_str()) || fs::exists(folder).unwrap()
        };
        let left: Vec<&String> = deleted.iter().filter(there).collect();
        let seen = format!("attached {attached:?}, served on {serving:?}, left {left:?}");
        let clean = attached == BTreeSet::from([&*kept.uid().unwrap()]) && serving.len() == 1;
        Seen::some((clean && left.is_empty()).then_some(()), seen)
    })
    .await;
    story.here.delete("kept").await;
    story.leaves_nothing().await;
}
