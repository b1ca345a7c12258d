//! A mount moves to another Mountpoint Pod while a workload uses it. The workload needs no `mountPropagation`: it is the same
//! mount all the time.

use std::fs;

use contract::names::label;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, EvictParams};
use s3_csi_tests::node::metrics_of_installed;
use s3_csi_tests::{Seen, eventually};
use xtask::image::next;

use crate::changed;
use crate::restarts::{end_without_errors, serves_another};
use crate::story::{LIMIT, Story};

/// Reads on in a file that it has open, writes and reads other files, and logs every failure.
const USES: &str = "exec 3< /data/large; i=0; while true; do i=$((i+1)); file=/data/$(hostname)-$i; \
    if dd bs=1000 count=1 <&3 of=/tmp/part 2>/dev/null && [ -s /tmp/part ] && echo $i > $file && [ \"$(cat $file)\" = $i ]; \
    then echo beat; else echo FAILED $i; fi; sleep 0.2; done";

async fn begin(name: &'static str) -> (Story, Pod) {
    let story = Story::alone(name).await;
    story.server.put(name, "large", &vec![b'x'; 20_000_000]).unwrap();
    let pod = story.here.run("workload", story.workload(USES)).await;
    story.says("workload", "beat").await;
    (story, pod)
}

/// The file system that the workload has.
fn device(story: &Story, pod: &Pod) -> String {
    let uid = pod.uid().unwrap();
    let target = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/{}/mount ", story.name);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let top = mounts.lines().rfind(|line| line.contains(&target)).expect("it is mounted");
    top.split(' ').nth(2).unwrap().to_owned()
}

/// Waits until one pod is left, and it is not one of these.
async fn has_moved(story: &Story, from: &[String]) -> String {
    eventually("another Mountpoint Pod serves the workload, alone", LIMIT, || async {
        story.mountpoint_pods().await;
        let uids = uids(story).await;
        let moved = matches!(uids.as_slice(), [uid] if !from.contains(uid));
        Seen::some(moved.then(|| uids[0].clone()), format!("{uids:?} instead of {from:?}"))
    })
    .await
}

async fn uids(story: &Story) -> Vec<String> {
    let mut uids = Vec::new();
    for name in story.mountpoint_pods().await {
        let pod = story.mountpoint_pods_api().get_opt(&name).await.unwrap();
        uids.extend(pod.and_then(|pod| pod.uid()));
    }
    uids
}

/// How many mounts the node service has moved.
async fn moves(story: &Story) -> u32 {
    let metrics = metrics_of_installed(&story.here.client).await;
    let moves = metrics.lines().find_map(|line| line.strip_prefix("s3_csi_node_mount_moves_total "));
    moves.expect("a metric of the node service").parse().unwrap()
}

/// With a grace period, in which the old pod hands the mount over, and without.
#[tokio::test]
async fn a_workload_does_not_notice_that_its_mountpoint_pod_is_evicted_or_killed() {
    let (story, pod) = begin("moves").await;
    let mount = device(&story, &pod);
    for by_force in [false, true] {
        let (names, before) = (story.mountpoint_pods().await, uids(&story).await);
        let (pods, moved) = (story.mountpoint_pods_api(), moves(&story).await);
        if by_force {
            pods.delete(&names[0], &DeleteParams::default().grace_period(0)).await.unwrap();
        } else {
            pods.evict(&names[0], &EvictParams::default()).await.unwrap();
        }
        has_moved(&story, &before).await;
        // A pod that is deleted by force is gone from the API before its container is, which serves meanwhile.
        eventually("the mount is served by another pod", LIMIT, || async {
            let now = moves(&story).await;
            Seen::some((now > moved).then_some(()), format!("{now} moves"))
        })
        .await;
        story.says_again("workload", "beat").await;
        assert_eq!(device(&story, &pod), mount);
    }
    serves_another(&story, "new").await;
    end_without_errors(story, &["workload", "new"]).await;
}

/// The driver versions that created the story's Mountpoint Pods.
pub(crate) async fn versions(story: &Story) -> Vec<String> {
    let mut versions = Vec::new();
    for name in story.mountpoint_pods().await {
        let pod = story.mountpoint_pods_api().get_opt(&name).await.unwrap();
        versions.extend(pod.map(|pod| pod.labels()[label::DRIVER_VERSION].clone()));
    }
    versions.sort();
    versions
}

/// Each mount in a pod of its own.
async fn serve_with(story: &Story, version: &str, mounts: usize) {
    eventually(&format!("{mounts} pods of version {version} serve, alone"), LIMIT, || async {
        let versions = versions(story).await;
        Seen::some((versions == vec![version; mounts]).then_some(()), format!("{versions:?}"))
    })
    .await;
}

/// Upgrades every program and downgrades it again.
#[tokio::test]
async fn a_workload_does_not_notice_an_upgrade_of_the_whole_driver_and_the_way_back() {
    let (story, pod) = begin("upgrade").await;
    let mount = device(&story, &pod);
    let ours = versions(&story).await.remove(0);
    assert_ne!(ours, next::VERSION);
    for archive in next::archives(story.here.cluster.cache()) {
        story.here.cluster.import_image(&archive).unwrap();
    }
    let tag = format!("image.tag={tag},mountpointPod.image.tag={tag}", tag = next::TAG);
    let upgraded = changed::values(&story.here.cluster, &[&tag]);
    serve_with(&story, next::VERSION, 1).await;
    serves_another(&story, "newer").await;
    upgraded.undo();
    serve_with(&story, &ours, 1).await;
    serves_another(&story, "older").await;
    assert_eq!(device(&story, &pod), mount);
    end_without_errors(story, &["workload", "newer", "older"]).await;
}

/// The administrator wants it so.
#[tokio::test]
async fn mounts_stay_where_they_are_when_an_upgrade_must_not_move_them() {
    let (story, _pod) = begin("upgrade-stays").await;
    let ours = versions(&story).await;
    for archive in next::archives(story.here.cluster.cache()) {
        story.here.cluster.import_image(&archive).unwrap();
    }
    let tag = format!("image.tag={tag},mountpointPod.image.tag={tag}", tag = next::TAG);
    let stays = [tag.as_str(), "mountpointPod.moveOnUpgrade=false"];
    let upgraded = changed::values(&story.here.cluster, &stays);
    serves_another(&story, "newer").await;
    let both = [ours.as_slice(), &[next::VERSION.to_owned()]].concat();
    assert_eq!(versions(&story).await, both, "a new workload gets a Mountpoint Pod of the new version");
    upgraded.undo();
    serve_with(&story, &ours[0], 2).await;
    end_without_errors(story, &["workload", "newer"]).await;
}
