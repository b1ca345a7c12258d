//! On which node a pod runs, and what a story does to a node.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use kube::Api;
use kube::api::{ListParams, PostParams};
use s3_csi_tests::changed::Changed;
use s3_csi_tests::story::{LIMIT, Story};
use s3_csi_tests::{Seen, eventually};
use serde_json::{Value, json};
use xtask::cluster::{Boot, Cluster, Node};
use xtask::command::run;
use xtask::driver;

/// Writes and reads a file again and again, and logs failures. No name is used twice, because files cannot be overwritten.
pub(crate) const BEAT: &str = "while true; do file=/data/$(cat /proc/sys/kernel/random/uuid); \
    if echo x > $file && [ \"$(cat $file)\" = x ]; then echo beat; else echo FAILED; fi; sleep 0.2; done";

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The nodes that a story may stop. The first runs the control plane.
pub(crate) fn others(story: &Story) -> [Node; 2] {
    story.here.cluster.nodes().unwrap()[1..].try_into().unwrap()
}

/// Keeps a pod away from the first node.
pub(crate) fn on_others(story: &Story) -> Value {
    let hosts = json!({
        "key": "kubernetes.io/hostname", "operator": "In", "values": others(story).map(Node::name),
    });
    let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [hosts]}]});
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})
}

/// The node that the pod was scheduled on.
pub(crate) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The nodes of the story's Mountpoint Pods, sorted.
pub(crate) async fn serving_nodes(story: &Story) -> Vec<String> {
    let mut nodes = Vec::new();
    for name in story.mountpoint_pods().await {
        let pod = story.mountpoint_pods_api().get_opt(&name).await.unwrap();
        nodes.extend(pod.as_ref().and_then(node_of).map(str::to_owned));
    }
    nodes.sort();
    nodes
}

/// A power cut, until it is undone.
pub(crate) fn without_power(cluster: &Cluster, node: Node) -> Changed {
    let own = cluster.clone();
    let start = move || own.start_node(node, &Boot::default());
    Changed::make("the power of a node", || cluster.stop_node(node), start)
}

pub(crate) fn nodes(story: &Story) -> Api<NodeObject> {
    Api::all(story.here.client.clone())
}

/// Calls `look` again and again while `act`, which blocks, is running.
pub(crate) async fn during(act: impl FnOnce() -> Result<()> + Send + 'static, look: impl AsyncFn()) {
    let running = tokio::task::spawn_blocking(act);
    while !running.is_finished() {
        look().await;
        tokio::time::sleep(LOOK_EVERY).await;
    }
    running.await.unwrap().unwrap();
}

/// Waits until the driver runs on every node of the cluster.
pub(crate) fn await_driver(cluster: &Cluster) -> Result<()> {
    let arguments = ["rollout", "status", "daemonset/s3-csi-node", "--timeout=240s"];
    run(cluster.kubectl()?.args(["--namespace", driver::NAMESPACE]).args(arguments))
}

/// A Deployment or `StatefulSet` with one pod of this spec.
pub(crate) async fn run_one(story: &Story, kind: &str, name: &str, spec: Value) {
    let object = json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": name}}, "serviceName": name,
            "template": {"metadata": {"labels": {"app": name}}, "spec": spec},
        },
    });
    let post = PostParams::default();
    let (client, namespace) = (story.here.client.clone(), &story.here.namespace);
    if kind == "Deployment" {
        let all = Api::<k8s_openapi::api::apps::v1::Deployment>::namespaced(client, namespace);
        all.create(&post, &serde_json::from_value(object).unwrap()).await.unwrap();
    } else {
        let all = Api::<k8s_openapi::api::apps::v1::StatefulSet>::namespaced(client, namespace);
        all.create(&post, &serde_json::from_value(object).unwrap()).await.unwrap();
    }
}

/// Deletes it and waits until its pods are gone.
pub(crate) async fn delete_all(story: &Story, kind: &str, name: &str) {
    let delete = kube::api::DeleteParams::default();
    let (client, namespace) = (story.here.client.clone(), &story.here.namespace);
    if kind == "Deployment" {
        let all = Api::<k8s_openapi::api::apps::v1::Deployment>::namespaced(client, namespace);
        all.delete(name, &delete).await.map(drop).unwrap();
    } else {
        let all = Api::<k8s_openapi::api::apps::v1::StatefulSet>::namespaced(client, namespace);
        all.delete(name, &delete).await.map(drop).unwrap();
    }
    eventually(&format!("the pods of {name} are gone"), LIMIT, || async {
        let left = pods_of(story, name).await.len();
        Seen::some((left == 0).then_some(()), left)
    })
    .await;
}

async fn pods_of(story: &Story, app: &str) -> Vec<Pod> {
    let params = ListParams::default().labels(&format!("app={app}"));
    story.here.pods().list(&params).await.unwrap().items
}

/// Waits for a running pod of this application on a node that `fits`.
pub(crate) async fn running_pod(story: &Story, app: &str, fits: impl Fn(&str) -> bool) -> Pod {
    eventually(&format!("a pod of {app} runs"), LIMIT, || async {
        let pods = pods_of(story, app).await;
        let seen: Vec<String> =
            pods.iter().map(|pod| format!("{:?} on {:?}", phase(pod), node_of(pod))).collect();
        let runs = |pod: &Pod| {
            let alive = pod.metadata.deletion_timestamp.is_none() && phase(pod) == Some("Running");
            alive && node_of(pod).is_some_and(&fits)
        };
        Seen::some(pods.into_iter().find(runs), seen.join(", "))
    })
    .await
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}
