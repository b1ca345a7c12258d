//! After an upgrade, mounts move to Mountpoint Pods of the new version.

use std::time::Duration;

use contract::names::{annotation, label};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use s3_csi_tests::controller::{self, Controller, shared};
use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::json;

/// A workload with a volume of its own, and the Mountpoint Pod that serves it.
async fn served(stage: &Stage, name: &str) -> (Pod, Pod) {
    stage.volume(name, &[], &[]).await;
    let workload = stage.workload(&format!("w-{name}"), &[name]).await;
    let (_, pod) = stage.attached(&workload).await;
    stage.run_mountpoint(&pod.name_any()).await;
    stage.report(&workload.name_any(), "Running").await;
    (workload, pod)
}

pub(crate) async fn make_outdated(stage: &Stage, pod: &Pod) {
    let patch = json!({"metadata": {"labels": {label::DRIVER_VERSION: "0.0.0"}}});
    let params = PatchParams::default();
    stage.mountpoint_pods().patch(&pod.name_any(), &params, &Patch::Merge(patch)).await.unwrap();
}

/// Waits until one of the workloads is assigned to another pod; returns its number and that pod.
async fn one_moves(stage: &Stage, waiting: &[(Pod, Pod)]) -> (usize, Pod) {
    eventually("one of the workloads moves", Duration::from_mins(1), || async {
        for (index, (workload, from)) in waiting.iter().enumerate() {
            let (_, pod) = stage.attached(workload).await;
            if pod.uid() != from.uid() {
                return Seen::Yes((index, pod));
            }
        }
        Seen::NotYet("all have their old pods".to_owned())
    })
    .await
}

/// The controller looks at each of the workloads once more, and none of them moves.
async fn all_stay(stage: &Stage, waiting: &[(Pod, Pod)], why: &str) {
    for (_, from) in waiting {
        let patch = json!({"metadata": {"annotations": {"tests.example.com/stays": why}}});
        let params = PatchParams::default();
        stage.mountpoint_pods().patch(&from.name_any(), &params, &Patch::Merge(patch)).await.unwrap();
    }
    stage.acted().await;
    for (workload, from) in waiting {
        assert_eq!(stage.attached(workload).await.1.uid(), from.uid(), "{why}");
    }
}

/// Two workloads of the same node on pods of an older version.
async fn outdated(stage: &Stage) -> Vec<(Pod, Pod)> {
    let served = vec![served(stage, "one").await, served(stage, "two").await];
    for (_, pod) in &served {
        make_outdated(stage, pod).await;
    }
    served
}

#[tokio::test]
async fn mounts_move_to_the_new_version_one_after_the_other_on_a_node() {
    let stage = Stage::set("upgraded").await;
    let _controller = shared(&stage.here.client).await;
    let mut waiting = outdated(&stage).await;
    while !waiting.is_empty() {
        let (index, next) = one_moves(&stage, &waiting).await;
        let (_, old) = waiting.remove(index);
        assert_ne!(next.labels()[label::DRIVER_VERSION], "0.0.0");
        stage.marked_for_unmount(&old.name_any()).await;
        all_stay(&stage, &waiting, "the next pod does not run yet").await;
        stage.run_mountpoint(&next.name_any()).await;
        all_stay(&stage, &waiting, "the mount has not left its old pod yet").await;
        stage.report_mountpoint(&old.name_any(), json!({"phase": "Succeeded"})).await;
    }
}

/// A program is writing a large file, for example.
#[tokio::test]
async fn a_mount_that_cannot_move_does_not_keep_the_others_of_its_node_from_moving() {
    let stage = Stage::set("upgrade-stuck").await;
    let _controller = shared(&stage.here.client).await;
    let mut waiting = outdated(&stage).await;
    let (index, next) = one_moves(&stage, &waiting).await;
    let (_, old) = waiting.remove(index);
    let long_ago = Timestamp::now() - SignedDuration::from_mins(3);
    stage.run_mountpoint_since(&next.name_any(), long_ago).await;
    one_moves(&stage, &waiting).await;
    let old = stage.mountpoint_pods().get(&old.name_any()).await.unwrap();
    assert_eq!(old.status.unwrap().phase.as_deref(), Some("Running"));
}

#[tokio::test]
async fn mounts_stay_in_their_pods_if_the_administrator_wants_it() {
    let _running = controller::none().await;
    let stage = Stage::set("not-upgraded").await;
    let _controller = Controller::start(&stage.here.client, &["--move-on-upgrade=false"]).await;
    let (workload, pod) = served(&stage, "data").await;
    make_outdated(&stage, &pod).await;
    stage.acted().await;
    assert_eq!(stage.attached(&workload).await.1.uid(), pod.uid());
    let (_, other) = stage.attached(&stage.workload("new", &["data"]).await).await;
    assert_ne!(other.uid(), pod.uid(), "new workloads get a pod of the new version");
    assert_eq!(stage.attached(&workload).await.1.uid(), pod.uid());
}

/// The reference driver and older versions recorded nothing, and the node cannot see it.
#[tokio::test]
async fn adopted_mountpoint_pods_get_a_record_of_whose_keys_their_volume_asks_for() {
    let stage = Stage::set("adopted").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("plain", &[], &[]).await;
    stage.volume_with_secret("named", &[], &[]).await;
    for (name, source) in [("plain", "driver"), ("named", "secret")] {
        let (_, pod) = stage.attached(&stage.workload(name, &[name]).await).await;
        let pod = pod.name_any();
        stage.run_mountpoint(&pod).await;
        for lost in [None, Some("pod")] {
            let patch = json!({"metadata": {"annotations": {annotation::AUTHENTICATION_SOURCE: lost}}});
            stage.mountpoint_pods().patch(&pod, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
            eventually("it is recorded", Duration::from_mins(1), || async {
                let pod = stage.mountpoint_pods().get(&pod).await.unwrap();
                let record = pod.annotations().get(annotation::AUTHENTICATION_SOURCE);
                Seen::some(record.is_some_and(|it| it == source).then_some(()), format!("{record:?}"))
            })
            .await;
        }
    }
}
