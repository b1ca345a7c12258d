//! Headroom that is reserved for Mountpoint Pods on a node that is full.

use contract::names::{HEADROOM_GATE, label};
use contract::quantity::Quantity;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::account::MOUNTPOINT_NAMESPACE;
use s3_csi_tests::{Seen, changed, eventually, manifest};
use serde_json::json;

use crate::story::{LIMIT, Story};

const READ: &str = "cat /data/file && echo in; sleep 3600";
/// Keeps the workload from the scheduler until the test says so.
const HOLD: &str = "example.com/hold";
/// What the Mountpoint Pod requests, and what is left for it on the node: less.
const REQUEST: u128 = 96 << 20;
const LEFT: u128 = 32 << 20;
/// What the controller requests, which is away and comes back.
const CONTROLLER: u128 = 32 << 20;

/// The memory that no pod on the node has requested.
async fn free_memory(story: &Story, node: &str) -> u128 {
    let nodes = Api::<Node>::all(story.here.client.clone());
    let allocatable = nodes.get(node).await.unwrap().status.unwrap().allocatable.unwrap();
    let bytes = |text: &str| Quantity::parse(text).unwrap().units();
    let pods = Api::<Pod>::all(story.here.client.clone());
    let here = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let mut requested = 0;
    for pod in pods.list(&here).await.unwrap() {
        for container in pod.spec.unwrap().containers {
            let requests = container.resources.and_then(|resources| resources.requests).unwrap_or_default();
            requested += requests.get("memory").map_or(0, |memory| bytes(&memory.0));
        }
    }
    bytes(&allocatable["memory"].0) - requested
}

async fn headroom_pods(story: &Story) -> Vec<Pod> {
    let ours = ListParams::default().labels(label::HEADROOM_FOR_POD);
    story.mountpoint_pods_api().list(&ours).await.unwrap().items
}

/// The controller is away while the scheduler places the workload, its headroom pod, and a pod that takes all other room: else,
/// the Mountpoint Pod would usually be there first.
#[tokio::test]
async fn a_mountpoint_pod_takes_the_headroom_that_was_reserved_on_a_full_node() {
    let story = Story::alone("headroom").await;
    story.server.put(story.name, "file", b"read").unwrap();
    let on = changed::values(&story.here.cluster, &["mountpointPod.reserveHeadroom=true"]);
    story
        .volume("headroom-large", |volume| {
            let attributes = &mut volume["spec"]["csi"]["volumeAttributes"];
            attributes["mountpointContainerResourcesRequestsMemory"] = json!(REQUEST.to_string());
        })
        .await;
    let mut workload = manifest::pod(&["headroom-large"], READ);
    workload["schedulingGates"] = json!([{"name": HEADROOM_GATE}, {"name": HOLD}]);
    story.here.run("workload", workload).await;
    eventually("only the other gate is left", LIMIT, || async {
        let spec = story.here.pods().get("workload").await.unwrap().spec.unwrap();
        let gates: Vec<String> = spec.scheduling_gates.into_iter().flatten().map(|gate| gate.name).collect();
        Seen::some((gates == [HOLD]).then_some(()), format!("{gates:?}"))
    })
    .await;

    let away = changed::without_controller(&story.here.cluster);
    let ungated = Patch::Merge(json!({"spec": {"schedulingGates": null}}));
    story.here.pods().patch("workload", &PatchParams::default(), &ungated).await.unwrap();
    let headroom = eventually("the headroom pod runs beside its workload", LIMIT, || async {
        let pods = headroom_pods(&story).await;
        let phase = pods.first().and_then(|pod| pod.status.as_ref()?.phase.clone());
        let runs = phase.as_deref() == Some("Running");
        Seen::some(pods.first().cloned().filter(|_| runs), format!("{phase:?}"))
    })
    .await;
    let node = story.here.cluster.nodes().unwrap()[0].name();
    let mut filler = manifest::pod(&[], "sleep 3600");
    // Mountpoint Pods cannot preempt it: only the headroom pod can give way.
    filler["priorityClassName"] = json!("system-node-critical");
    let room = free_memory(&story, &node).await - LEFT - CONTROLLER;
    filler["containers"][0]["resources"] = json!({"requests": {"memory": room.to_string()}});
    story.here.run("filler", filler).await;
    story.here.phase("filler", "Running").await;

    away.undo();
    story.says("workload", "in").await;
    let events = Api::<Event>::namespaced(story.here.client.clone(), MOUNTPOINT_NAMESPACE);
    let of_it = format!("reason=Preempted,involvedObject.name={}", headroom.name_any());
    eventually("the scheduler made room", LIMIT, || async {
        let preempted = events.list(&ListParams::default().fields(&of_it)).await.unwrap();
        Seen::some((preempted.items.len() == 1).then_some(()), format!("{:?}", preempted.items))
    })
    .await;
    eventually("nothing is left of the reservation", LIMIT, || async {
        let labels = story.here.pods().get("workload").await.unwrap().labels().clone();
        let left = headroom_pods(&story).await.len();
        Seen::some((labels.is_empty() && left == 0).then_some(()), format!("{left} pods, {labels:?}"))
    })
    .await;
    for pod in ["workload", "filler"] {
        story.here.delete(pod).await;
    }
    on.undo();
    story.leaves_nothing().await;
}
