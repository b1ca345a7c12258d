//! One volume on many nodes, and one that is restricted to some nodes.

use kube::api::DeleteParams;
use s3_csi_tests::story::{LIMIT, Story};
use s3_csi_tests::{Seen, eventually, manifest};
use serde_json::json;

use crate::place::{node_of, others, serving_nodes};

#[tokio::test]
async fn a_volume_is_used_on_three_nodes_at_once() {
    let story = Story::begin("three-nodes").await;
    let names: Vec<String> = story.here.cluster.nodes().unwrap().iter().map(|node| node.name()).collect();
    for node in story.here.cluster.nodes().unwrap() {
        let own = node.name();
        // Lines, not names: a shell closes a duplicate of its redirection first, so a new file appears empty.
        let script = format!(
            "echo written on {own} > /data/{own}; until [ $(cat /data/* | wc -l) = 3 ]; do sleep 0.2; done; \
             cat /data/*; echo ALL; sleep 3600"
        );
        story.here.run(&own, story.workload_on(node, &script)).await;
    }
    for reader in &names {
        story.says(reader, "ALL").await;
        let log = story.log(reader).await;
        for writer in &names {
            assert!(
                log.contains(&format!("written on {writer}")),
                "{reader} reads what {writer} wrote: {log}"
            );
        }
    }
    assert_eq!(serving_nodes(&story).await, names, "each node has a Mountpoint Pod");
    let mut attached: Vec<String> =
        story.attachments().await.into_iter().map(|it| it.spec.node_name).collect();
    attached.sort();
    assert_eq!(attached, names, "and an attachment");
    for name in &names {
        story.here.delete(name).await;
    }
    story.leaves_nothing().await;
}

/// Beside them and their Mountpoint Pod, the node has room (`maxPods`) for the pods of the driver only.
#[tokio::test]
async fn a_hundred_pods_of_a_node_share_one_mountpoint_pod() {
    let story = Story::alone("hundred").await;
    let [_, node] = others(&story);
    story.server.put(story.name, "file", b"content").unwrap();
    let names: Vec<String> = (0..100).map(|number| format!("pod-{number}")).collect();
    for name in &names {
        story.here.run(name, story.workload_on(node, "cat /data/file; echo; echo READ; sleep 3600")).await;
    }
    for name in &names {
        story.says(name, "READ").await;
        assert!(story.log(name).await.contains("content"), "{name}");
    }
    assert_eq!(serving_nodes(&story).await, [node.name()], "one Mountpoint Pod");
    let attachments = story.attachments().await;
    let attached: usize = attachments.iter().map(|it| it.spec.workload_uids().count()).sum();
    assert_eq!((attachments.len(), attached), (1, names.len()));
    for name in &names {
        story.here.pods().delete(name, &DeleteParams::default()).await.unwrap();
    }
    story.leaves_nothing().await;
}

#[tokio::test]
async fn a_volume_with_node_affinity_is_used_only_where_it_may_be() {
    let story = Story::begin("affinity").await;
    let [here, elsewhere] = others(&story);
    let term = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [here.name()]});
    let claim = "affinity-bound";
    story
        .volume(claim, |volume| {
            volume["spec"]["nodeAffinity"] =
                json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}});
        })
        .await;
    story.here.run("free", manifest::pod(&[claim], "ls /data && echo in; sleep 3600")).await;
    let mut pinned = manifest::pod(&[claim], "sleep 3600");
    pinned["nodeSelector"] = json!({"kubernetes.io/hostname": elsewhere.name()});
    story.here.run("elsewhere", pinned).await;
    story.says("free", "in").await;
    assert_eq!(node_of(&story.here.pods().get("free").await.unwrap()), Some(&*here.name()));
    assert_eq!(serving_nodes(&story).await, [here.name()]);
    // Not its Events: if the claim was not bound at first, they say so for minutes, because they count as one series.
    eventually("the other pod says why it is not scheduled", LIMIT, || async {
        let status = story.here.pods().get("elsewhere").await.unwrap().status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default().into_iter();
        let messages: Vec<String> = conditions.filter_map(|condition| condition.message).collect();
        // The text of newer releases, and that of 1.34.
        let words = ["PersistentVolume's node affinity", "volume node affinity conflict"];
        let found = messages.iter().any(|message| words.iter().any(|words| message.contains(words)));
        Seen::some(found.then_some(()), messages.join("\n"))
    })
    .await;
    assert_eq!(node_of(&story.here.pods().get("elsewhere").await.unwrap()), None);
    assert_eq!(serving_nodes(&story).await, [here.name()], "no Mountpoint Pod is created for it");
    for pod in ["free", "elsewhere"] {
        story.here.delete(pod).await;
    }
    story.leaves_nothing().await;
}
