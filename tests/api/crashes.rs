//! Controllers that race, die and come back: in the end exactly the right objects.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use contract::names::annotation;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams};
use s3_csi_tests::controller::{self, Controller};
use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::json;

const SETTLES_WITHIN: Duration = Duration::from_mins(1);
const VOLUMES: usize = 5;

/// Waits until attachments list exactly these workloads, once per volume, and every pod they name is there.
async fn settled(stage: &Stage, expected: &BTreeSet<String>) {
    eventually("exactly the right objects are there", SETTLES_WITHIN, || async {
        // Before the attachments: what is marked by then must not be named any more.
        let pods = stage.mountpoint_pods().list(&ListParams::default()).await.unwrap().items;
        let mut listed = BTreeMap::<String, usize>::new();
        let mut named = BTreeSet::new();
        for attachment in stage.attachments_here().await {
            for uid in attachment.spec.workload_uids() {
                *listed.entry(uid.to_owned()).or_default() += 1;
            }
            named.extend(attachment.spec.mountpoint_pods.into_keys());
        }
        if let Some((uid, _)) = listed.iter().find(|(_, count)| **count > 1) {
            panic!("{uid} is attached twice");
        }
        let there: BTreeSet<String> = listed.into_keys().collect();
        let of_stage = |pod: &&Pod| {
            let volume = pod.annotations().get(annotation::VOLUME_NAME);
            volume.is_some_and(|volume| volume.starts_with(&stage.volume_name("")))
        };
        let unneeded = |pod: &&Pod| {
            pod.annotations().contains_key(annotation::NEEDS_UNMOUNT)
                || pod.metadata.deletion_timestamp.is_some()
        };
        let (old, serving): (Vec<&Pod>, Vec<&Pod>) = pods.iter().filter(of_stage).partition(unneeded);
        for pod in old {
            assert!(
                !named.contains(&pod.name_any()),
                "{} is to be unmounted, but an attachment names it",
                pod.name_any()
            );
        }
        let serving: BTreeSet<String> = serving.iter().map(|pod| pod.name_any()).collect();
        let seen = format!(
            "{} of {} listed, {} pods named, {} serve",
            there.intersection(expected).count(),
            expected.len(),
            named.len(),
            serving.len()
        );
        Seen::some((there == *expected && serving == named).then_some(()), seen)
    })
    .await;
}

async fn volumes(stage: &Stage) {
    for number in 0..VOLUMES {
        stage.volume(&format!("v{number}"), &[], &[]).await;
    }
}

async fn workload(stage: &Stage, number: usize) -> String {
    let claim = format!("v{}", number % VOLUMES);
    let group = json!({"securityContext": {"fsGroup": number % 7}});
    stage.workload_with(&format!("w{number}"), &[&claim], group).await.uid().unwrap()
}

#[tokio::test]
async fn two_controllers_at_once_make_no_duplicates() {
    let _running = controller::none().await;
    let stage = Stage::set("racing").await;
    volumes(&stage).await;
    let one = Controller::start(&stage.here.client, &["--leader-election=false"]).await;
    let two = Controller::start(&stage.here.client, &["--leader-election=false"]).await;
    let mut expected = BTreeSet::new();
    for number in 0..200 {
        expected.insert(workload(&stage, number).await);
    }
    settled(&stage, &expected).await;
    for number in (0..200).step_by(2) {
        let uid = stage.here.pods().get(&format!("w{number}")).await.unwrap().uid().unwrap();
        stage.remove(&format!("w{number}")).await;
        expected.remove(&uid);
    }
    settled(&stage, &expected).await;
    drop((one, two));
}

#[tokio::test]
async fn a_controller_that_is_killed_again_and_again_ends_right() {
    let _running = controller::none().await;
    let stage = Stage::set("killed").await;
    volumes(&stage).await;
    let mut expected = BTreeSet::new();
    let mut alive: Vec<(usize, String)> = Vec::new();
    let start = || Controller::launch(&stage.here.client, &["--leader-election=false"]);
    let mut running = start().await;
    // A fixed sequence with irregular gaps: kills fall into starts, writes and quiet.
    let mut random = 1_u64;
    for number in 0..500 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let uid = workload(&stage, number).await;
        expected.insert(uid.clone());
        alive.push((number, uid));
        if !(random >> 33).is_multiple_of(3) {
            let (leaver, uid) = alive.remove((random >> 40) as usize % alive.len());
            stage
                .here
                .pods()
                .delete(&format!("w{leaver}"), &DeleteParams::default().grace_period(0))
                .await
                .unwrap();
            expected.remove(&uid);
        }
        if (random >> 50).is_multiple_of(25) {
            drop(running);
            running = start().await;
        }
    }
    settled(&stage, &expected).await;
    drop(running);
}

#[tokio::test]
async fn the_second_of_two_takes_over_when_the_first_is_killed_or_stops() {
    let _running = controller::none().await;
    let stage = Stage::set("takeover").await;
    stage.volume("v0", &[], &[]).await;
    let first = Controller::start(&stage.here.client, &[]).await;
    let second = Controller::launch(&stage.here.client, &[]).await;
    second.says("caches filled").await;
    stage.attached(&stage.workload("w1", &["v0"]).await).await;
    drop(first);
    second.says("became leader").await;
    stage
        .attached(&stage.workload_with("w2", &["v0"], json!({"securityContext": {"fsGroup": 1}})).await)
        .await;
    let third = Controller::launch(&stage.here.client, &[]).await;
    third.says("caches filled").await;
    assert!(second.stop().success());
    third.says("became leader").await;
    stage
        .attached(&stage.workload_with("w3", &["v0"], json!({"securityContext": {"fsGroup": 2}})).await)
        .await;
}

#[tokio::test]
async fn probes_and_metrics_tell_the_truth() {
    let _running = controller::none().await;
    let stage = Stage::set("probes").await;
    let controller = Controller::start(&stage.here.client, &["--leader-election=false"]).await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(controller.probe(path), ("HTTP/1.1 200 OK".to_owned(), "ok".to_owned()), "{path}");
    }
    stage.volume("v0", &[], &[]).await;
    let (_, pod) = stage.attached(&stage.workload("w", &["v0"]).await).await;
    stage.run_mountpoint(&pod.name_any()).await;
    eventually("the metrics show it", Duration::from_mins(1), || async {
        let text = controller.metrics();
        let shown = text.contains("s3_csi_controller_steps_total{step=\"create_pod\",result=\"applied\"} 1")
            && text.contains("s3_csi_controller_leader 1");
        Seen::some(shown.then_some(()), text)
    })
    .await;
}
