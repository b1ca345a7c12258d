//! Attachments that are deleted manually while their workloads run.

use std::collections::BTreeSet;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::annotation;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, CustomResourceExt as _, ResourceExt as _};
use s3_csi_tests::{Seen, eventually};
use serde_json::json;
use xtask::cache::checkout;
use xtask::cluster::Cluster;
use xtask::command::run;

use crate::changed::Changed;
use crate::story::{LIMIT, Story};
use s3_csi_tests::mount_deaths::{FOREVER, end_container, reads_again};

const PODS: [&str; 2] = ["first", "second"];

/// Two workloads that share a mount, with mounts of the node propagated to them.
async fn begin(story: Story) -> Story {
    story.server.put(story.name, "file", b"x").unwrap();
    for pod in PODS {
        let mut listening = story.workload(FOREVER);
        listening["containers"][0]["volumeMounts"][0]["mountPropagation"] = json!("HostToContainer");
        story.here.run(pod, listening).await;
    }
    for pod in PODS {
        story.says(pod, "good").await;
    }
    story
}

/// Waits for the attachment of the story's volume that lists both workloads.
async fn attached(story: &Story) -> MountpointS3PodAttachment {
    let mut uids = BTreeSet::new();
    for pod in PODS {
        uids.extend(story.here.pods().get(pod).await.unwrap().uid());
    }
    let attachments = Api::<MountpointS3PodAttachment>::all(story.here.client.clone());
    eventually("both workloads are attached", LIMIT, || async {
        let all = match attachments.list(&ListParams::default()).await {
            Ok(all) => all,
            Err(error) => return Seen::NotYet(error.to_string()),
        };
        let lists = |it: &MountpointS3PodAttachment| {
            it.spec.workload_uids().map(str::to_owned).collect::<BTreeSet<_>>() == uids
        };
        let found = all.items.into_iter().find(lists);
        Seen::some(found, "no attachment lists them")
    })
    .await
}

/// The same Mountpoint Pod keeps serving both workloads, and their mount recovers from a crash.
async fn keeps_serving_and_heals(story: Story, served_by: &[String]) {
    assert_eq!(story.mountpoint_pods().await, served_by);
    let pod = story.mountpoint_pods_api().get(&served_by[0]).await.unwrap();
    assert!(!pod.annotations().contains_key(annotation::NEEDS_UNMOUNT));
    for pod in PODS {
        assert!(!story.log(pod).await.contains("bad"), "{pod} has lost its mount");
    }
    end_container(story.name).await;
    for pod in PODS {
        reads_again(&story, pod).await;
        assert_eq!(story.container(pod).await.restart_count, 0);
        story.here.delete(pod).await;
    }
    story.leaves_nothing().await;
}

#[tokio::test]
async fn a_deleted_attachment_comes_back_and_the_mount_heals() {
    let story = begin(Story::begin("by-hand").await).await;
    let before = attached(&story).await;
    let served_by = story.mountpoint_pods().await;
    let attachments = Api::<MountpointS3PodAttachment>::all(story.here.client.clone());
    attachments.delete(&before.name_any(), &DeleteParams::default()).await.unwrap();
    let after = attached(&story).await;
    assert_ne!(after.uid(), before.uid());
    keeps_serving_and_heals(story, &served_by).await;
}

/// The cluster without the definition of attachments, and so without any attachment.
fn without_definition(cluster: &Cluster) -> Changed {
    let definition = format!("customresourcedefinition/{}", MountpointS3PodAttachment::crd().name_any());
    let own = cluster.clone();
    let delete = {
        let definition = definition.clone();
        move || run(cluster.kubectl()?.args(["delete", &definition, "--wait", "--timeout=240s"]))
    };
    let create = move || {
        // Not while the deletion goes on, after which nothing would be there.
        run(own.kubectl()?.args(["wait", &definition, "--for=delete", "--timeout=240s"]))?;
        let file = checkout().join("charts/s3-csi/crds/mountpoints3podattachments.yaml");
        run(own.kubectl()?.args(["create", "--filename"]).arg(file))
    };
    Changed::make("the definition of attachments", delete, create)
}

#[tokio::test]
async fn a_deleted_definition_takes_no_mount_along_and_its_return_brings_all_attachments_back() {
    let story = begin(Story::alone("definition").await).await;
    let before = attached(&story).await;
    let served_by = story.mountpoint_pods().await;
    let away = without_definition(&story.here.cluster);
    for pod in PODS {
        story.says_again(pod, "good").await;
    }
    away.undo();
    let after = attached(&story).await;
    assert_ne!(after.uid(), before.uid());
    keeps_serving_and_heals(story, &served_by).await;
}
