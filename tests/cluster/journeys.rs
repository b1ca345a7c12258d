//! Workloads use buckets, without failures.

use contract::options::IgnoredOption;
use s3_csi_tests::manifest;
use s3_csi_tests::{Seen, eventually};
use serde_json::json;

use crate::story::{LIMIT, Story};

pub(crate) const STAY: &str = "sleep 3600";

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
