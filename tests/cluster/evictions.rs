//! The kubelet evicts a Mountpoint Pod under a running workload.

use std::fs;
use std::path::Path;

use contract::names::CACHE_VOLUME;
use kube::ResourceExt as _;
use s3_csi_tests::manifest;
use s3_csi_tests::mount_deaths::{another_serves, reads_again};
use s3_csi_tests::processes::processes;
use serde_json::{Value, json};

use crate::deaths::{READS_ON, begin, ends};
use crate::story::Story;

/// A volume of the story of whose cache the kubelet allows 16 MiB.
pub(crate) async fn volume_with_cache(story: &Story, name: &str) {
    let with_cache = |volume: &mut Value| {
        let attributes = &mut volume["spec"]["csi"]["volumeAttributes"];
        attributes["cache"] = json!("emptyDir");
        attributes["cacheEmptyDirSizeLimit"] = json!("16Mi");
    };
    story.volume(name, with_cache).await;
}

/// Has the kubelet evict the Mountpoint Pod of such a volume: more is in the cache than its limit.
pub(crate) async fn kubelet_evicts(story: &Story, mountpoint_pod: &str) {
    let uid = story.mountpoint_pods_api().get(mountpoint_pod).await.unwrap().uid().unwrap();
    let cache = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/{CACHE_VOLUME}");
    fs::write(Path::new(&cache).join("too-much"), vec![b'x'; 32 << 20]).unwrap();
    let cause = format!("(Evicted: Usage of EmptyDir volume \"{CACHE_VOLUME}\" exceeds the limit \"16Mi\"");
    story.has_event(&cause).await;
}

/// By the kubelet itself, which asks nothing and waits for nothing.
#[tokio::test]
async fn a_workload_does_not_notice_that_the_kubelet_evicts_its_mountpoint_pod() {
    let story = begin("kubelet-evicts").await;
    let cached = "kubelet-evicts-cached";
    volume_with_cache(&story, cached).await;
    story.server.put(story.name, "large", &vec![b'x'; 2_000_000]).unwrap();
    story.here.run("workload", manifest::pod(&[cached], READS_ON)).await;
    story.says("workload", "good").await;
    let served_by = story.mountpoint_pods().await.pop().unwrap();
    let process = processes("s3-csi-mountpoint", Some(story.name));
    kubelet_evicts(&story, &served_by).await;
    another_serves(story.name, &process).await;
    reads_again(&story, "workload").await;
    assert!(!story.mountpoint_pods().await.contains(&served_by));
    assert!(!story.log("workload").await.contains("bad"));
    assert_eq!(story.container("workload").await.restart_count, 0);
    ends(story, &["workload"]).await;
}
