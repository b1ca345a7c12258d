//! Failures before a bucket is mounted, and long absences of the controller. The other files cover the rest of
//! `docs/failures.md`.

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::Api;
use kube::api::{ListParams, PostParams};
use s3_csi_tests::{Seen, eventually, manifest};
use serde_json::{Value, json};
use xtask::cluster::{Cluster, NODE_NAME};
use xtask::command::run;

use crate::changed::{self, Changed};
use crate::story::{LIMIT, Story};
use s3_csi_tests::mount_deaths::{FOREVER, end_container, reads_again};

const ENTER: &str = "ls /data && echo in; sleep 3600";

#[tokio::test]
async fn a_mountpoint_pod_whose_image_cannot_be_pulled_starts_when_it_can() {
    let story = Story::alone("image-late").await;
    let values = ["mountpointPod.image.tag=late,mountpointPod.image.pullPolicy=IfNotPresent"];
    let late = changed::values(&story.here.cluster, &values);
    story.here.run("workload", story.workload(ENTER)).await;
    for words in ["cannot serve (ErrImagePull)", "mounter:late"] {
        story.has_event(words).await;
    }
    assert_eq!(story.container("workload").await.restart_count, 0, "it has not begun");
    // Now the registry has the image.
    let tagged = tagged(&story.here.cluster);
    story.says("workload", "in").await;
    late.undo();
    story.here.delete("workload").await;
    tagged.undo();
    story.leaves_nothing().await;
}

/// The node with the Mountpoint Pods' image under another tag as well.
fn tagged(cluster: &Cluster) -> Changed {
    const LATE: &str = "s3-csi.test/mounter:late";
    let images = |cluster: &Cluster, arguments: &[&str]| {
        run(cluster.command("ctr")?.args(["--namespace=k8s.io", "images"]).args(arguments))
    };
    let own = cluster.clone();
    let tag = || images(cluster, &["tag", "s3-csi.test/mounter:dev", LATE]);
    Changed::make("the node's images", tag, move || images(&own, &["remove", LATE]))
}

/// The scheduler leaves the Mountpoint Pod waiting; the test binds it to the node, as a scheduler that has not yet seen the
/// filler would.
#[tokio::test]
async fn a_mountpoint_pod_that_the_kubelet_rejects_is_replaced_until_there_is_room() {
    let story = Story::begin("rejected").await;
    let nodes = Api::<Node>::all(story.here.client.clone());
    let memory = nodes.get(NODE_NAME).await.unwrap().status.unwrap().allocatable.unwrap()["memory"].0.clone();
    let memory: u64 = memory.strip_suffix("Ki").unwrap().parse().unwrap();
    // The scheduler would evict a pod of lower priority to make room.
    let mut filler = manifest::pod(&[], "sleep 3600");
    filler["priorityClassName"] = json!("system-node-critical");
    filler["containers"][0]["resources"] = json!({"requests": {"memory": format!("{}Ki", memory / 2)}});
    story.here.run("filler", filler).await;
    story.here.phase("filler", "Running").await;
    story
        .volume("rejected-large", |volume| {
            let attributes = &mut volume["spec"]["csi"]["volumeAttributes"];
            for field in ["Requests", "Limits"] {
                let field = format!("mountpointContainerResources{field}Memory");
                attributes[field] = json!(format!("{}Ki", memory / 4 * 3));
            }
        })
        .await;
    story.here.run("workload", manifest::pod(&["rejected-large"], ENTER)).await;
    let events = Api::<Event>::namespaced(story.here.client.clone(), &story.here.namespace);
    eventually("the kubelet has rejected a Mountpoint Pod", LIMIT, || async {
        for name in story.mountpoint_pods().await {
            let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": NODE_NAME}});
            let (pods, post) = (story.mountpoint_pods_api(), PostParams::default());
            // One that is bound already cannot be bound again.
            let _ = pods.create_subresource::<_, Value>("binding", &name, &post, &binding).await;
        }
        let all = events.list(&ListParams::default().fields("reason=MountpointPodFailed")).await.unwrap();
        let said: Vec<_> = all.iter().filter_map(|event| event.message.clone()).collect();
        let rejected = said.iter().any(|message| message.contains("OutOfmemory"));
        Seen::some(rejected.then_some(()), said.join("\n"))
    })
    .await;
    story.here.delete("filler").await;
    story.says("workload", "in").await;
    story.here.delete("workload").await;
    story.leaves_nothing().await;
}

#[tokio::test]
async fn mounts_outlast_the_controllers_absence_and_new_ones_wait_for_its_return() {
    let story = Story::alone("no-controller").await;
    story.server.put(story.name, "file", b"x").unwrap();
    let mut listening = story.workload(FOREVER);
    listening["containers"][0]["volumeMounts"][0]["mountPropagation"] = json!("HostToContainer");
    story.here.run("old", listening).await;
    story.says("old", "good").await;
    story.mountpoint_pods().await;
    let away = changed::without_controller(&story.here.cluster);
    story.here.run("new", story.workload(FOREVER)).await;
    // Recovery that needs no decision of the controller still works.
    end_container(story.name).await;
    reads_again(&story, "old").await;
    // Long enough for the kubelet to try, fail and retry.
    eventually("the kubelet has tried twice to mount for the new workload", LIMIT, || async {
        let events = Api::<Event>::namespaced(story.here.client.clone(), &story.here.namespace);
        let all = events.list(&ListParams::default().fields("reason=FailedMount")).await.unwrap();
        let waits = |event: &&Event| {
            event
                .message
                .as_ref()
                .is_some_and(|message| message.contains("check that the controller is running"))
        };
        let times: i32 = all.iter().filter(waits).filter_map(|event| event.count).sum();
        Seen::some((times > 1).then_some(()), times)
    })
    .await;
    let phase = |pod: Pod| pod.status.and_then(|status| status.phase);
    assert_eq!(phase(story.here.pods().get("new").await.unwrap()).as_deref(), Some("Pending"));
    away.undo();
    story.says("new", "good").await;
    story.says_again("old", "good").await;
    assert_eq!(story.container("old").await.restart_count, 0);
    for pod in ["old", "new"] {
        story.here.delete(pod).await;
    }
    story.leaves_nothing().await;
}
