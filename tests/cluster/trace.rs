//! One id leads through the logs of all programs.

use contract::names::DRIVER;
use contract::trace;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::account::MOUNTPOINT_NAMESPACE;
use s3_csi_tests::{Seen, eventually};
use serde_json::{Value, json};
use xtask::command::capture;
use xtask::driver;

use crate::story::{LIMIT, Story};

/// The messages of the lines with this id, of pods of a namespace.
fn messages(story: &Story, namespace: &str, pods: &str, id: &str) -> Vec<String> {
    let mut kubectl = story.here.cluster.kubectl().unwrap();
    let log = capture(kubectl.args(["logs", "--namespace", namespace, "--tail=-1", pods])).unwrap();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let with_id = lines.filter(|line| line["trace_id"].as_str().is_some_and(|ids| ids.contains(id)));
    with_id.map(|line| line["message"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Waits until these messages have the id, in this order.
async fn leads_to(story: &Story, (namespace, pods): (&str, &str), id: &str, wanted: &[&str]) {
    eventually(&format!("{id} leads to {wanted:?}"), LIMIT, || async {
        let found = messages(story, namespace, pods, id);
        let mut rest = found.iter();
        let all = wanted.iter().all(|words| rest.any(|message| message.starts_with(words)));
        Seen::some(all.then_some(()), format!("{found:?}"))
    })
    .await;
}

const CONTROLLER: (&str, &str) = (driver::NAMESPACE, "--selector=app=s3-csi-controller");
const NODE: (&str, &str) = (driver::NAMESPACE, "--selector=app=s3-csi-node");

#[tokio::test]
async fn one_trace_id_leads_from_the_pod_to_the_hand_over() {
    let story = Story::begin("trace").await;
    let script = "ls /data && echo in; sleep 3600";
    let id = trace::id(&story.here.run("workload", story.workload(script)).await.uid().unwrap());
    story.says("workload", "in").await;
    let served_by = story.mountpoint_pods().await.remove(0);
    leads_to(&story, CONTROLLER, &id, &["attachment created", "pod created"]).await;
    leads_to(&story, NODE, &id, &["credentials written", "serving", "published"]).await;
    leads_to(&story, (MOUNTPOINT_NAMESPACE, &served_by), &id, &["serving, version"]).await;

    // Another workload has its own id, and shares the mount of the first.
    let other = trace::id(&story.here.run("other", story.workload(script)).await.uid().unwrap());
    story.says("other", "in").await;
    leads_to(&story, CONTROLLER, &other, &["attachment updated"]).await;
    leads_to(&story, NODE, &other, &["published"]).await;
    assert_eq!(messages(&story, MOUNTPOINT_NAMESPACE, &served_by, &other), Vec::<String>::new());
    for pod in ["workload", "other"] {
        story.here.delete(pod).await;
    }
    leads_to(&story, NODE, &id, &["published", "unpublished"]).await;
    story.leaves_nothing().await;
}

#[tokio::test]
async fn one_trace_id_leads_from_the_claim_to_its_bucket() {
    let story = Story::begin("claim-trace").await;
    let (post, delete) = (PostParams::default(), DeleteParams::default());
    let classes = Api::<StorageClass>::all(story.here.client.clone());
    let class = json!({"metadata": {"name": "claim-trace"}, "provisioner": DRIVER});
    classes.create(&post, &serde_json::from_value(class).unwrap()).await.unwrap();
    let claims = Api::<PersistentVolumeClaim>::namespaced(story.here.client.clone(), &story.here.namespace);
    let claim = json!({
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": "claim-trace",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let claim = claims.create(&post, &serde_json::from_value(claim).unwrap()).await.unwrap();
    leads_to(&story, CONTROLLER, &trace::id(&claim.uid().unwrap()), &["claim provisioned"]).await;
    claims.delete("data", &delete).await.unwrap();
    eventually("the claim is gone", LIMIT, || async {
        match claims.get_opt("data").await.unwrap() {
            None => Seen::Yes(()),
            Some(left) => Seen::NotYet(format!("{:?}", left.metadata)),
        }
    })
    .await;
    classes.delete("claim-trace", &delete).await.unwrap();
    story.leaves_nothing().await;
}
