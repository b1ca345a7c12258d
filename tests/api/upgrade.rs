//! After an upgrade, mounts move to Mountpoint Pods of the new version.

use std::time::Duration;

use contract::names::label;
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

#[tokio::test]
async fn mounts_move_to_the_new_version_one_after_the_other_on_a_node() {
    let stage = Stage::set("upgraded").await;
    let _controller = shared(&stage.here.client).await;
    let mut waiting = vec![served(&stage, "one").await, served(&stage, "two").await];
    for (_, pod) in &waiting {
        make_outdated(&stage, pod).await;
    }
    while !waiting.is_empty() {
        let (index, next) = eventually("one of the workloads moves", Duration::from_mins(1), || async {
            for (index, (workload, from)) in waiting.iter().enumerate() {
                let (_, pod) = stage.attached(workload).await;
                if pod.uid() != from.uid() {
                    return Seen::Yes((index, pod));
                }
            }
            Seen::NotYet("all have their old pods".to_owned())
        })
        .await;
        let (_, old) = waiting.remove(index);
        assert_ne!(next.labels()[label::DRIVER_VERSION], "0.0.0");
        stage.told_to_unmount(&old.name_any()).await;
        stage.acted().await;
        for (workload, from) in &waiting {
            assert_eq!(stage.attached(workload).await.1.uid(), from.uid(), "the next pod does not run yet");
        }
        stage.run_mountpoint(&next.name_any()).await;
    }
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
