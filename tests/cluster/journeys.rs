//! Workloads use buckets, without failures.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::comm_on_node;
use contract::options::IgnoredOption;
use k8s_openapi::api::core::v1::{PersistentVolume, ServiceAccount};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use s3_csi_tests::manifest;
use s3_csi_tests::processes::processes;
use s3_csi_tests::{Seen, eventually};
use serde_json::json;

use crate::story::{LIMIT, Story};
use s3_csi_tests::mount_deaths::end_containers;

const STAY: &str = "sleep 3600";

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

#[tokio::test]
async fn read_only_by_volume_by_access_mode_and_by_mount() {
    let story = Story::begin("read-only").await;
    story.server.put(story.name, "file", b"readable").unwrap();
    story.volume("read-only-option", |volume| volume["spec"]["mountOptions"] = json!(["read-only"])).await;
    story.volume("read-only-many", |volume| volume["spec"]["accessModes"] = json!(["ReadOnlyMany"])).await;
    let script = format!("cat /data/file; echo; if echo x > /data/new; then echo WRITTEN; fi; {STAY}");
    for (name, claim) in [
        ("by-option", "read-only-option"),
        ("by-mode", "read-only-many"),
        ("by-mount", story.name),
        ("by-claim", story.name),
    ] {
        let mut spec = manifest::pod(&[claim], &script);
        match name {
            "by-mount" => spec["containers"][0]["volumeMounts"][0]["readOnly"] = json!(true),
            "by-claim" => spec["volumes"][0]["persistentVolumeClaim"]["readOnly"] = json!(true),
            _ => {}
        }
        story.here.run(name, spec).await;
    }
    story.here.run("writer", story.workload(&script)).await;
    for name in ["by-option", "by-mode", "by-mount", "by-claim"] {
        story.says(name, "readable").await;
        story.says(name, "Read-only file system").await;
    }
    story.says("writer", "WRITTEN").await;
    for name in ["by-option", "by-mode", "by-mount", "by-claim", "writer"] {
        story.here.delete(name).await;
    }
    story.leaves_nothing().await;
}

/// S3 does not distinguish access modes; Kubernetes itself enforces one pod at a time.
#[tokio::test]
async fn claims_of_a_single_node_or_pod_are_accepted() {
    let story = Story::begin("single").await;
    for (claim, mode) in [("single-node", "ReadWriteOnce"), ("single-pod", "ReadWriteOncePod")] {
        story.volume(claim, |volume| volume["spec"]["accessModes"] = json!([mode])).await;
        let script = format!("echo x > /data/{claim} && echo WRITTEN; {STAY}");
        story.here.run(claim, manifest::pod(&[claim], &script)).await;
    }
    for pod in ["single-node", "single-pod"] {
        story.says(pod, "WRITTEN").await;
        story.here.delete(pod).await;
    }
    story.leaves_nothing().await;
}

#[tokio::test]
async fn a_workload_without_root_reads_and_writes_with_its_group() {
    let story = Story::begin("without-root").await;
    story.server.put(story.name, "file", b"readable").unwrap();
    let script = format!("id; cat /data/file; echo; echo mine > /data/mine && echo WRITTEN; {STAY}");
    let mut spec = story.workload(&script);
    spec["securityContext"] =
        json!({"runAsUser": 4000, "runAsGroup": 4000, "runAsNonRoot": true, "fsGroup": 5000});
    story.here.run("workload", spec).await;
    story.says("workload", "readable").await;
    story.says("workload", "WRITTEN").await;
    assert_eq!(story.server.get(story.name, "mine").unwrap(), b"mine\n");
    story.here.delete("workload").await;
    story.leaves_nothing().await;
}

/// What volumes of other drivers have, and this one ignores. With any of them, writing or finding the bucket would fail.
const IGNORED: [(IgnoredOption, &str); 6] = [
    (IgnoredOption::Profile, "profile=other"),
    (IgnoredOption::EndpointUrl, "endpoint-url=http://s3.test:81"),
    (IgnoredOption::CacheXz, "cache-xz=another-bucket"),
    (IgnoredOption::IncrementalUpload, "incremental-upload"),
    (IgnoredOption::StorageClass, "storage-class=GLACIER"),
    (IgnoredOption::Kernel, "o=ro"),
];

/// One of them with options that have no effect.
#[tokio::test]
async fn a_pod_has_two_buckets_and_one_bucket_under_two_handles() {
    assert_eq!(IGNORED.map(|(option, _)| option), IgnoredOption::ALL);
    let story = Story::begin("two-buckets").await;
    story.server.put(story.name, "a/file", b"in a").unwrap();
    story.server.put(story.name, "b/file", b"in b").unwrap();
    for prefix in ["a", "b"] {
        story
            .volume(&format!("two-buckets-{prefix}"), |volume| {
                let own = ["allow-delete".to_owned(), format!("prefix {prefix}/")];
                let ignored =
                    IGNORED.iter().filter(|_| prefix == "a").map(|(_, option)| (*option).to_owned());
                volume["spec"]["mountOptions"] = json!(own.into_iter().chain(ignored).collect::<Vec<_>>());
            })
            .await;
    }
    let script =
        format!("ls /data; cat /data1/file; echo; cat /data2/file; echo; echo via > /data1/new; {STAY}");
    story.here.run("workload", manifest::pod(&[story.name, "two-buckets-a", "two-buckets-b"], &script)).await;
    story.says("workload", "in a").await;
    story.says("workload", "in b").await;
    eventually("the file written through one handle is in the bucket", LIMIT, || async {
        let keys = story.server.objects(story.name, "a/").unwrap();
        Seen::some(keys.contains(&"a/new".to_owned()).then_some(()), format!("{keys:?}"))
    })
    .await;
    let names = IGNORED.map(|(option, _)| option.to_string()).join(", ");
    story.has_event(&format!("these mount options are not supported and have no effect: {names}")).await;
    assert_eq!(story.mountpoint_pods().await.len(), 3, "each volume its own");
    story.here.delete("workload").await;
    story.leaves_nothing().await;
}

#[tokio::test]
async fn twenty_pods_at_once_share_one_mountpoint_pod() {
    let story = Story::begin("twenty-at-once").await;
    let names: Vec<String> = (0..20).map(|number| format!("pod-{number}")).collect();
    for name in &names {
        let script = format!("echo {name} > /data/{name} && echo WRITTEN; {STAY}");
        story.here.run(name, story.workload(&script)).await;
    }
    for name in &names {
        story.says(name, "WRITTEN").await;
    }
    assert_eq!(story.mountpoint_pods().await.len(), 1);
    assert_eq!(story.server.objects(story.name, "").unwrap().len(), 20);
    for name in &names {
        story.here.pods().delete(name, &kube::api::DeleteParams::default()).await.unwrap();
    }
    story.leaves_nothing().await;
}

/// The kubelet unmounts the volumes of pods that have ended, also before these are deleted.
#[tokio::test]
async fn pods_that_end_within_a_second_leave_nothing() {
    let story = Story::begin("short-lived").await;
    story.server.put(story.name, "file", b"content").unwrap();
    let names: Vec<String> = (0..10).map(|number| format!("pod-{number}")).collect();
    for name in &names {
        let mut spec = story.workload("cat /data/file");
        spec["restartPolicy"] = json!("Never");
        story.here.run(name, spec).await;
    }
    for name in &names {
        story.here.phase(name, "Succeeded").await;
        story.mountpoint_pods().await;
        assert_eq!(story.log(name).await, "content", "{name}");
    }
    eventually("nothing is left of pods that are still in the API", LIMIT, || async {
        let left = story.left().await;
        Seen::some(left.is_empty().then_some(()), format!("{left:?}"))
    })
    .await;
    for name in &names {
        story.here.delete(name).await;
    }
    story.leaves_nothing().await;
}

/// `kubectl delete --force`: the pod is gone from the API before the kubelet has stopped it.
#[tokio::test]
async fn a_workload_deleted_by_force_leaves_nothing() {
    let story = Story::begin("by-force").await;
    story.here.run("workload", story.workload(&format!("echo up; {STAY}"))).await;
    story.says("workload", "up").await;
    story.mountpoint_pods().await;
    let force = kube::api::DeleteParams::default().grace_period(0);
    story.here.pods().delete("workload", &force).await.unwrap();
    story.leaves_nothing().await;
}
