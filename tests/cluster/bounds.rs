//! Mountpoint Pods have limits even if their volume sets none.

use std::fs;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::ListParams;
use s3_csi_tests::manifest;
use s3_csi_tests::processes::processes;
use serde_json::json;

use crate::story::Story;

#[tokio::test]
async fn a_mountpoint_pod_has_limits_a_bounded_cache_and_a_read_only_root() {
    let story = Story::begin("bounded").await;
    story.server.put(story.name, "file", b"content").unwrap();
    let claim = "bounded-cache";
    story
        .volume(claim, |volume| volume["spec"]["csi"]["volumeAttributes"]["cache"] = json!("emptyDir"))
        .await;
    story.here.run("reader", manifest::pod(&[claim], "cat /data/file; echo; echo read; sleep 3600")).await;
    story.says("reader", "read").await;
    story.has_event("set `cacheEmptyDirSizeLimit`").await;

    let names = story.mountpoint_pods().await;
    let pods = story.mountpoint_pods_api().list(&ListParams::default()).await.unwrap();
    let pod: &Pod = pods.iter().find(|pod| names.contains(&pod.name_any())).unwrap();
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let limits = container.resources.clone().unwrap().limits.unwrap();
    assert!(limits.contains_key("memory") && limits.contains_key("ephemeral-storage"), "{limits:?}");

    let process =
        processes("s3-csi-mountpoint", Some(story.name)).pop().expect("a mount process serves the bucket");
    let line = fs::read(format!("/proc/{process}/cmdline")).unwrap();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    assert!(line.contains("--max-cache-size=972 "), "95 % of 1Gi: {line}");
    let mounts = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap();
    let root = mounts.lines().find(|mount| mount.split(' ').nth(4) == Some("/")).unwrap();
    let options = root.split(' ').nth(5).unwrap();
    assert!(options.split(',').any(|option| option == "ro"), "{root}");

    story.here.delete("reader").await;
    story.leaves_nothing().await;
}
