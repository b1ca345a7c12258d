//! The leader is cut off from the API server while it writes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::changed::Changed;
use s3_csi_tests::story::{LIMIT, Story};
use s3_csi_tests::{Seen, eventually};
use xtask::cluster::{Cluster, Node};
use xtask::command::capture;
use xtask::driver;

use crate::place::node_of;

/// Enough that the cut happens while some are not attached yet.
const WORKLOADS: usize = 24;

/// Two controllers on different nodes, and none on the first node, where the workloads run.
fn two_controllers(cluster: &Cluster) -> Changed {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let apart = format!("controller.affinity.podAntiAffinity.{required}[0]");
    let away =
        format!("controller.affinity.nodeAffinity.{required}.nodeSelectorTerms[0].matchExpressions[0]");
    let values = [
        "controller.replicas=2",
        &format!("{apart}.topologyKey=kubernetes\\.io/hostname"),
        &format!("{apart}.labelSelector.matchLabels.app=s3-csi-controller"),
        &format!("{away}.key=kubernetes\\.io/hostname,{away}.operator=NotIn"),
        &format!("{away}.values[0]={}", Node::FIRST.name()),
    ];
    let change = || {
        // A controller that already runs on one of the two nodes would leave no node for the second new one.
        driver::install(cluster, &["controller.replicas=0"])?;
        driver::install(cluster, &values)
    };
    let own = cluster.clone();
    Changed::make("the driver", change, move || driver::install(&own, &[]))
}

fn cut_off(cluster: &Cluster, node: Node) -> Changed {
    let own = cluster.clone();
    Changed::make("the network of a node", || cluster.cut_off(node), move || own.reconnect(node))
}

/// Waits for a controller that reports in its metrics to be the leader, and is not on `not_on`.
async fn leader(story: &Story, not_on: Option<Node>) -> Pod {
    let pods = Api::<Pod>::namespaced(story.here.client.clone(), driver::NAMESPACE);
    let params = ListParams::default().labels("app=s3-csi-controller");
    eventually("a controller is the leader", LIMIT, || async {
        let mut seen = Vec::new();
        for pod in pods.list(&params).await.unwrap() {
            if not_on.is_some_and(|node| node_of(&pod) == Some(&*node.name())) {
                continue;
            }
            let path = format!(
                "/api/v1/namespaces/{}/pods/{}:8080/proxy/metrics",
                driver::NAMESPACE,
                pod.name_any()
            );
            let request = http_get(&path);
            let reply = story.here.client.request_text(request).await;
            match reply {
                Ok(metrics) if metrics.contains("s3_csi_controller_leader 1") => return Seen::Yes(pod),
                Ok(_) => seen.push(format!("{} is not the leader", pod.name_any())),
                Err(error) => seen.push(format!("{}: {error}", pod.name_any())),
            }
        }
        Seen::NotYet(seen.join(", "))
    })
    .await
}

/// Waits until a controller that is cut off has lost its leadership. Its metrics are read on its own node.
async fn loses_leadership(story: &Story, leader: &Pod, node: Node) {
    let address = leader.status.as_ref().and_then(|status| status.pod_ip.clone()).unwrap();
    let script =
        format!("exec 3<>/dev/tcp/{address}/8080; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3");
    eventually("the controller that is cut off loses leadership", LIMIT, || async {
        let ask = story.here.cluster.command_on(node, "timeout");
        let reply = ask.and_then(|mut ask| capture(ask.args(["5", "bash", "-c", &script])));
        match reply {
            Ok(metrics) if metrics.contains("s3_csi_controller_leader 0") => Seen::Yes(()),
            Ok(_) => Seen::NotYet("it is still the leader".to_owned()),
            Err(error) => Seen::NotYet(format!("{error:#}")),
        }
    })
    .await;
}

/// The number of attachments of each workload.
async fn attached(story: &Story) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for attachment in story.attachments().await {
        for uid in attachment.spec.workload_uids() {
            *times.entry(uid.to_owned()).or_default() += 1;
        }
    }
    times
}

#[tokio::test]
async fn a_leader_that_is_cut_off_is_replaced_and_no_attachment_is_doubled_or_lost() {
    let story = Story::alone("cut-off").await;
    let two = two_controllers(&story.here.cluster);
    let old = leader(&story, None).await;
    let node = story.here.cluster.node(node_of(&old).unwrap()).unwrap();

    let mut uids = BTreeSet::new();
    let mut cut = None;
    for number in 0..WORKLOADS {
        let pod = format!("pod-{number}");
        let script = format!("echo x > /data/{pod} && echo WRITTEN; sleep 3600");
        let mut spec = story.workload_on(Node::FIRST, &script);
        // A different group needs a different attachment: some are written before the cut, some after it, and one at the
        // time of it.
        spec["securityContext"] = serde_json::json!({"fsGroup": 2000 + number / 4});
        uids.extend(story.here.run(&pod, spec).await.uid());
        if number == WORKLOADS / 2 {
            eventually("the leader writes attachments", LIMIT, || async {
                let begun = attached(&story).await.len();
                Seen::some((begun > 0).then_some(()), begun)
            })
            .await;
            cut = Some(cut_off(&story.here.cluster, node));
        }
    }
    leader(&story, Some(node)).await;
    loses_leadership(&story, &old, node).await;
    for number in 0..WORKLOADS {
        story.says(&format!("pod-{number}"), "WRITTEN").await;
    }
    let once: BTreeMap<String, usize> = uids.iter().map(|uid| (uid.clone(), 1)).collect();
    assert_eq!(attached(&story).await, once);
    cut.expect("it was cut off").undo();
    two.undo();
    // By now, the old leader has lost its leadership or is gone.
    leader(&story, None).await;
    assert_eq!(attached(&story).await, once);
    story.mountpoint_pods().await;
    for number in 0..WORKLOADS {
        story.here.pods().delete(&format!("pod-{number}"), &DeleteParams::default()).await.unwrap();
    }
    story.leaves_nothing().await;
}

fn http_get(path: &str) -> http::Request<Vec<u8>> {
    http::Request::get(path).body(Vec::new()).unwrap()
}
