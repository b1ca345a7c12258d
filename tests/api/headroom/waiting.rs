//! Workloads do not wait for headroom that they cannot get, and mounts never wait for headroom.

use contract::names::DRIVER;
use kube::api::{DeleteParams, ListParams};
use s3_csi_tests::refusal::deny_updates;
use s3_csi_tests::{Stage, controller};

use super::{gated, headroom_pods, is_ungated, number_of_headroom_pods, reserving};

#[tokio::test]
async fn a_volume_without_headroom_keeps_no_workload_waiting() {
    let _running = controller::none().await;
    let stage = Stage::set("headroom-refused").await;
    let _controller = reserving(&stage).await;
    stage.volume("invalid", &[("mountpointContainerResourcesRequestsCpu", "much")], &[]).await;
    let resources = [
        ("mountpointContainerResourcesRequestsMemory", "2Gi"),
        ("mountpointContainerResourcesLimitsMemory", "1Gi"),
    ];
    stage.volume("refused", &resources, &[]).await;
    stage.volume("data", &[], &[]).await;
    let workload = gated(&stage, "w", &["invalid", "refused", "data"]).await;
    is_ungated(&stage, "w").await;
    let note = stage.event("w", "HeadroomPodRejected").await;
    assert!(note.contains(&stage.volume_name("refused")) && note.contains("limit"), "{note}");
    assert_eq!(headroom_pods(&stage, &workload).await.len(), 1);
    gated(&stage, "without", &[]).await;
    is_ungated(&stage, "without").await;
    stage.remove("w").await;
    number_of_headroom_pods(&stage, &workload, 0).await;
}

/// A policy may allow labels of its own only.
#[tokio::test]
async fn a_workload_that_must_not_be_labelled_is_scheduled_without_headroom() {
    let _running = controller::none().await;
    let stage = Stage::set("headroom-unlabelled").await;
    let _controller = reserving(&stage).await;
    stage.unbound_volume("free", DRIVER, &[], &[]).await;
    let workload = gated(&stage, "w", &["free"]).await;
    let condition = format!(
        "object.metadata.namespace == '{}' && has(object.metadata.labels) && object.metadata.labels.size() > 0",
        stage.here.namespace
    );
    deny_updates(&stage.here, &stage.here.pods(), "w", &condition).await;
    stage.bind("free").await;
    is_ungated(&stage, "w").await;
    let note = stage.event("w", "HeadroomPodRejected").await;
    assert!(note.contains(&stage.volume_name("free")) && note.contains("denied by the test"), "{note}");
    assert_eq!(headroom_pods(&stage, &workload).await.len(), 0);
}

/// Anyone who may create pods can make as many of them.
#[tokio::test]
async fn pods_that_wait_for_claims_delay_no_mount() {
    const PODS: usize = 300;
    const CLAIMS: usize = 100;
    let _running = controller::none().await;
    let stage = Stage::set("headroom-flood").await;
    let _controller = reserving(&stage).await;
    let claims: Vec<String> = (0..CLAIMS).map(|number| format!("never-{number}")).collect();
    let claims: Vec<&str> = claims.iter().map(String::as_str).collect();
    let before = reads_of_claims(&stage).await;
    for number in 0..PODS {
        gated(&stage, &format!("waits-{number}"), &claims).await;
    }
    stage.volume("data", &[], &[]).await;
    stage.attached(&stage.workload("w", &["data"]).await).await;
    let read = reads_of_claims(&stage).await - before;
    // One claim at each look, of which there are few in the time that this takes.
    assert!((1..PODS * CLAIMS / 2).contains(&read), "{read}");
    // Controllers of other tests must not find them.
    let all = DeleteParams::default().grace_period(0);
    stage.here.pods().delete_collection(&all, &ListParams::default()).await.unwrap();
}

/// How often the API server was asked for one.
async fn reads_of_claims(stage: &Stage) -> usize {
    let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
    let metrics = stage.here.client.request_text(request).await.unwrap();
    let own = metrics.lines().filter(|line| {
        let is_of_claims =
            line.contains("resource=\"persistentvolumeclaims\"") && line.contains("verb=\"GET\"");
        line.starts_with("apiserver_request_total{") && is_of_claims
    });
    own.map(|line| line.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap()).sum()
}
