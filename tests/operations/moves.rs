//! A mount moves to another Mountpoint Pod while a workload uses it. The workload needs no `mountPropagation`: it is the same
//! mount all the time.

use std::fs;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::label;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, EvictParams};
use kube::{Api, CustomResourceExt as _, ResourceExt as _};
use s3_csi_tests::manifest;
use s3_csi_tests::node::metrics_of_installed;
use s3_csi_tests::{Seen, eventually};
use serde_json::{Value, json};
use xtask::command::run;
use xtask::driver;
use xtask::image::{next, released};

use crate::changed::{self, Changed};
use crate::story::{LIMIT, Story};
use s3_csi_tests::beat::{delete_without_errors, end_without_errors, serves_another};

/// Reads on in a file that it has open, writes and reads other files, and logs every failure.
const USES: &str = "exec 3< /data/large; i=0; while true; do i=$((i+1)); file=/data/$(hostname)-$i; \
    if dd bs=1000 count=1 <&3 of=/tmp/part 2>/dev/null && [ -s /tmp/part ] && echo $i > $file && [ \"$(cat $file)\" = $i ]; \
    then echo beat; else echo FAILED $i; fi; sleep 0.2; done";

/// Writes lines into a file that it keeps open, and logs each of them that was accepted.
const WRITES: &str = "i=0; exec 4> /data/lines; while true; do i=$((i+1)); \
    if echo $i >&4; then echo beat; else echo FAILED $i; fi; sleep 0.2; done";

async fn begin(name: &'static str) -> (Story, Pod) {
    let story = Story::alone(name).await;
    story.server.put(name, "large", &vec![b'x'; 20_000_000]).unwrap();
    let pod = story.here.run("workload", story.workload(USES)).await;
    story.says("workload", "beat").await;
    (story, pod)
}

/// Starts the program that keeps a file open, in a pod of its own.
async fn begin_to_write(story: &Story) {
    story.here.run("writer", story.workload(WRITES)).await;
    story.says("writer", "beat").await;
}

/// None of the workloads saw an error, and the file of the program that kept it open has every line that it logged.
async fn end_with_every_line(story: &Story, workloads: &[&str]) {
    let accepted = story.log("writer").await.matches("beat").count();
    delete_without_errors(story, workloads).await;
    let lines = String::from_utf8(story.server.get(story.name, "lines").unwrap()).unwrap();
    let numbers: Vec<usize> = lines.lines().map(|line| line.parse().unwrap()).collect();
    assert!(numbers.iter().copied().eq(1..=numbers.len()), "{lines}");
    assert!(numbers.len() >= accepted && accepted > 0, "{} of {accepted} lines", numbers.len());
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
    story.volume("upgrade-other", |_| {}).await;
    story.here.run("other", manifest::pod(&["upgrade-other"], USES)).await;
    story.says("other", "beat").await;
    begin_to_write(&story).await;
    let ours = versions(&story).await.remove(0);
    assert_ne!(ours, next::VERSION);
    for archive in next::archives(story.here.cluster.cache()) {
        story.here.cluster.import_image(&archive).unwrap();
    }
    let tag = format!("image.tag={tag},mountpointPod.image.tag={tag}", tag = next::TAG);
    let upgraded = changed::values(&story.here.cluster, &[&tag]);
    serve_with(&story, next::VERSION, 2).await;
    serves_another(&story, "newer").await;
    upgraded.undo();
    serve_with(&story, &ours, 2).await;
    serves_another(&story, "older").await;
    assert_eq!(device(&story, &pod), mount);
    end_with_every_line(&story, &["workload", "other", "writer", "newer", "older"]).await;
    story.leaves_nothing().await;
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

/// The last released version instead of this one, as if it had been installed first.
fn released_instead(story: &Story) -> Changed {
    let install = || {
        let cluster = &story.here.cluster;
        driver::uninstall(cluster)?;
        run(cluster.kubectl()?.args(["delete", "crd", MountpointS3PodAttachment::crd_name()]))?;
        for archive in released::archives(cluster.cache())? {
            cluster.import_image(&archive)?;
        }
        let tag = format!("image.tag={tag},mountpointPod.image.tag={tag}", tag = released::TAG);
        driver::install_chart(cluster, &released::chart(cluster.cache()), &[&tag])
    };
    let own = story.here.cluster.clone();
    Changed::make("the driver", install, move || driver::install(&own, &[]))
}

/// Runs the command of the page that begins with these words, with these values.
fn paste(story: &Story, words: &str, values: &[&str]) {
    let page = include_str!("../../docs/upgrading.md");
    let command = page.lines().find(|line| line.starts_with(words));
    let command = command.unwrap_or_else(|| panic!("the page has no `{words}`"));
    let mut helm = driver::helm(&story.here.cluster).unwrap();
    helm.args(command.split_whitespace().skip(1)).args(values.iter().flat_map(|value| ["--set", value]));
    run(helm.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))).unwrap();
}

async fn definition(story: &Story) -> Value {
    let definitions = Api::<CustomResourceDefinition>::all(story.here.client.clone());
    json!(definitions.get(MountpointS3PodAttachment::crd_name()).await.unwrap().spec)
}

async fn has_definition(story: &Story, expected: &Value) {
    eventually("the definition of attachments is that of the version", LIMIT, || async {
        let present = definition(story).await;
        Seen::some((present == *expected).then_some(()), present)
    })
    .await;
}

/// Two builds of different sources, mount process and chart included. Runs only with `cargo xtask test --released`.
#[tokio::test]
async fn the_released_version_is_upgraded_and_rolled_back() {
    let story = Story::alone("released").await;
    let (ours, of_ours) = (env!("CARGO_PKG_VERSION"), definition(&story).await);
    let installed = released_instead(&story);
    let of_released = definition(&story).await;
    story.server.put(story.name, "large", &vec![b'x'; 20_000_000]).unwrap();
    let pod = story.here.run("workload", story.workload(USES)).await;
    story.says("workload", "beat").await;
    begin_to_write(&story).await;
    assert_eq!(versions(&story).await, [released::VERSION]);
    let mount = device(&story, &pod);

    paste(&story, "helm upgrade", &["image.tag=dev,mountpointPod.image.tag=dev"]);
    serve_with(&story, ours, 1).await;
    serves_another(&story, "newer").await;
    has_definition(&story, &of_ours).await;

    paste(&story, "helm rollback", &[]);
    serve_with(&story, released::VERSION, 1).await;
    serves_another(&story, "older").await;
    has_definition(&story, &of_released).await;
    assert_eq!(device(&story, &pod), mount);
    end_with_every_line(&story, &["workload", "writer", "newer", "older"]).await;
    eventually("nothing is left", LIMIT, || async {
        let left = story.left().await;
        Seen::some(left.is_empty().then_some(()), format!("{left:?}"))
    })
    .await;
    installed.undo();
    story.leaves_nothing().await;
}
