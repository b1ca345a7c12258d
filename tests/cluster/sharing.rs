//! Which workloads share a Mountpoint Pod.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::comm_on_node;
use k8s_openapi::api::core::v1::{PersistentVolume, ServiceAccount};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use s3_csi_tests::manifest;
use s3_csi_tests::mount_deaths::end_containers;
use s3_csi_tests::processes::processes;
use s3_csi_tests::{Seen, eventually};
use serde_json::json;

use crate::journeys::STAY;
use crate::story::{LIMIT, Story};

#[tokio::test]
async fn one_pod_writes_and_another_reads_through_the_same_mountpoint_pod() {
    let story = Story::begin("write-and-read").await;
    story.server.put(story.name, "greeting", b"hello from the bucket").unwrap();
    let script = format!("cat /data/greeting; echo; echo written > /data/answer; echo done; {STAY}");
    story.here.run("writer", story.workload(&script)).await;
    story.says("writer", "hello from the bucket").await;
    story.says("writer", "done").await;
    assert_eq!(story.server.get(story.name, "answer").unwrap(), b"written\n");
    story.here.run("reader", story.workload(&format!("cat /data/answer; {STAY}"))).await;
    story.says("reader", "written").await;
    assert_eq!(story.mountpoint_pods().await.len(), 1, "they share it");
    story.here.delete("writer").await;
    story.here.run("late-reader", story.workload(&format!("cat /data/answer; {STAY}"))).await;
    story.says("late-reader", "written").await;
    assert_eq!(story.mountpoint_pods().await.len(), 1, "it outlives the one that it was made for");
    story.here.delete("reader").await;
    story.here.delete("late-reader").await;
    story.leaves_nothing().await;
}

#[tokio::test]
async fn what_differs_is_not_shared() {
    let story = Story::begin("not-shared").await;
    story.server.put(story.name, "file", b"x").unwrap();
    let own_identity = "not-shared-identity";
    story
        .volume(own_identity, |volume| {
            volume["spec"]["csi"]["volumeAttributes"]["authenticationSource"] = json!("pod");
        })
        .await;
    let members = [("group-2001", 2001), ("group-2002", 2002), ("group-2001-too", 2001)];
    for (pod, group) in members {
        let script = format!("stat -c 'group %g mode %a' /data/file; {STAY}");
        let mut spec = story.workload(&script);
        spec["securityContext"] = json!({"fsGroup": group});
        story.here.run(pod, spec).await;
    }
    for (pod, group) in members {
        story.says(pod, &format!("group {group} mode 660")).await;
    }
    assert_eq!(story.mountpoint_pods().await.len(), 2, "one for each group");

    // Workloads with their own identity do not share across service accounts. An Event says that it is not available
    // yet.
    let accounts = Api::<ServiceAccount>::namespaced(story.here.client.clone(), &story.here.namespace);
    for account in ["first", "second"] {
        let object = serde_json::from_value(json!({"metadata": {"name": account}})).unwrap();
        accounts.create(&PostParams::default(), &object).await.unwrap();
        let mut spec = manifest::pod(&[own_identity], STAY);
        spec["serviceAccountName"] = json!(account);
        story.here.run(&format!("as-{account}"), spec).await;
    }
    story.has_event("has no role: annotate it with `eks.amazonaws.com/role-arn`").await;
    let attachments = Api::<MountpointS3PodAttachment>::all(story.here.client.clone());
    eventually("one attachment per service account", LIMIT, || async {
        let all = attachments.list(&ListParams::default()).await.unwrap();
        let accounts: BTreeSet<String> = all
            .iter()
            .filter(|one| one.spec.persistent_volume_name == own_identity)
            .map(|one| one.spec.workload_service_account_name.clone())
            .collect();
        let both = BTreeSet::from(["first", "second"].map(str::to_owned));
        Seen::some((accounts == both).then_some(()), format!("{accounts:?}"))
    })
    .await;
    for pod in ["group-2001", "group-2002", "group-2001-too", "as-first", "as-second"] {
        story.here.delete(pod).await;
    }
    story.leaves_nothing().await;
}

/// The kubelet publishes the volumes of a running pod again and again, with the options that their volumes have by then.
async fn is_published_again(story: &Story, pod: &str, mountpoint_pod: &str) {
    let uid = story.mountpoint_pods_api().get(mountpoint_pod).await.unwrap().metadata.uid.unwrap();
    let keys = comm_on_node(Path::new("/var/lib/kubelet"), &uid).join("credentials").join(mountpoint_pod);
    let written = fs::read_to_string(&keys).unwrap();
    fs::File::options().append(true).open(&keys).unwrap().write_all(b"# not by a publish\n").unwrap();
    // The kubelet looks after a pod that has changed at once.
    let touch = Patch::Merge(json!({"metadata": {"annotations": {"example.com/touched": "yes"}}}));
    story.here.pods().patch(pod, &PatchParams::default(), &touch).await.unwrap();
    eventually("a publish has written the keys again", LIMIT, || async {
        let now = fs::read_to_string(&keys).unwrap();
        Seen::some((now == written).then_some(()), "they are as before")
    })
    .await;
}

#[tokio::test]
async fn edited_options_are_for_new_mounts_and_running_ones_keep_theirs() {
    let story = Story::begin("edited-options").await;
    story.server.put(story.name, "file", b"x").unwrap();
    let script = "while true; do stat -c 'mode %a' /data/file; sleep 0.3; done";
    let mut listening = story.workload(script);
    listening["containers"][0]["volumeMounts"][0]["mountPropagation"] = json!("HostToContainer");
    story.here.run("first", listening).await;
    story.says("first", "mode 644").await;
    let serves_first = story.mountpoint_pods().await.remove(0);
    let process_of_first = processes("s3-csi-mountpoint", Some(story.name));
    let volumes = Api::<PersistentVolume>::all(story.here.client.clone());
    let edit = Patch::Merge(json!({"spec": {"mountOptions": ["allow-delete", "file-mode=600"]}}));
    volumes.patch(story.name, &PatchParams::default(), &edit).await.unwrap();

    story.here.run("second", story.workload(script)).await;
    story.says("second", "mode 600").await;
    is_published_again(&story, "first", &serves_first).await;
    story.says_again("first", "mode 644").await;
    assert!(!story.log("first").await.contains("mode 600"));
    assert_eq!(story.mountpoint_pods().await.len(), 2, "one for each set of options");

    end_containers(&process_of_first);
    story.says("first", "mode 600").await;
    assert!(story.mountpoint_pods().await.contains(&serves_first), "the same pod serves it again");

    story.here.delete("first").await;
    story.here.run("first", story.workload(script)).await;
    story.says("first", "mode 600").await;
    eventually("they share the Mountpoint Pod with the new options", LIMIT, || async {
        let pods = story.mountpoint_pods().await;
        Seen::some((pods.len() == 1).then_some(()), format!("{pods:?}"))
    })
    .await;
    for pod in ["first", "second"] {
        assert!(!story.log(pod).await.contains("mode 644"));
        story.here.delete(pod).await;
    }
    story.leaves_nothing().await;
}
