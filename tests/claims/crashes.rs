//! A controller that is killed again and again: in the end exactly the right buckets.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::ResourceExt as _;
use kube::api::ListParams;
use s3_csi_tests::claims::Tenant;
use s3_csi_tests::controller::{self, Controller};
use s3_csi_tests::{Seen, eventually};
use serde_json::json;
use xtask::s3::ALICE;

const CLAIMS: usize = 200;
const SETTLES_WITHIN: Duration = Duration::from_mins(2);

/// Waits until claims, volumes and buckets are each other's.
async fn settled(tenant: &Tenant, expected: usize) {
    eventually("claims, volumes and buckets agree", SETTLES_WITHIN, || async {
        let claims = tenant.claims().list(&ListParams::default()).await.unwrap().items;
        let of_claims: BTreeSet<String> =
            claims.iter().map(|claim| format!("pvc-{}", claim.uid().unwrap())).collect();
        let bound = claims.iter().filter(|claim| {
            claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
                && claim.finalizers() == ["kubernetes.io/pvc-protection"]
        });
        let bound = bound.count();
        let volumes = tenant.volumes_here().await;
        let buckets = tenant.buckets().into_iter().filter(|name| name.starts_with("killed-")).count();
        let agree = of_claims == volumes && (bound, volumes.len(), buckets) == (expected, expected, expected);
        let seen = format!(
            "{} claims, {bound} bound, {} volumes, {buckets} buckets of {expected}",
            claims.len(),
            volumes.len()
        );
        Seen::some(agree.then_some(()), seen)
    })
    .await;
}

#[tokio::test]
async fn a_controller_that_is_killed_again_and_again_leaves_no_bucket() {
    let _running = controller::none().await;
    let tenant = Tenant::set("killed", ALICE).await;
    tenant.class("plain", json!({"bucketNamePrefix": "killed"}), json!({})).await;
    let start = || Controller::launch(&tenant.here.client, &["--leader-election=false"]);
    let mut running = start().await;
    // A fixed sequence with irregular gaps: kills fall into starts, provisioning, deletion and quiet.
    let (mut random, mut alive, mut kills) = (7_u64, Vec::new(), 0);
    for number in 0..CLAIMS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        tenant.claim(&format!("data-{number}"), "plain").await;
        alive.push(number);
        // Some go before they are provisioned, some while, some long after.
        if !(random >> 33).is_multiple_of(3) {
            let leaver = alive.remove((random >> 40) as usize % alive.len());
            tenant.delete(&format!("data-{leaver}")).await;
        }
        tokio::time::sleep(Duration::from_millis((random >> 45) % 60)).await;
        if (random >> 50).is_multiple_of(6) {
            drop(running);
            kills += 1;
            running = start().await;
        }
    }
    assert!(kills > 15, "{kills} kills");
    settled(&tenant, alive.len()).await;
    for number in &alive {
        tenant.delete(&format!("data-{number}")).await;
        if number % 10 == 0 {
            drop(running);
            running = start().await;
        }
    }
    settled(&tenant, 0).await;
    drop(running);
}

#[tokio::test]
async fn two_controllers_at_once_make_no_second_bucket() {
    let _running = controller::none().await;
    let tenant = Tenant::set("racing", ALICE).await;
    // The same beginning as the counted ones of `settled`, in an order of their own: suites of this file take turns.
    tenant.class("plain", json!({"bucketNamePrefix": "killed"}), json!({})).await;
    let one = Controller::start(&tenant.here.client, &["--leader-election=false"]).await;
    let two = Controller::start(&tenant.here.client, &["--leader-election=false"]).await;
    for number in 0..40 {
        tenant.claim(&format!("data-{number}"), "plain").await;
    }
    settled(&tenant, 40).await;
    for number in 0..40 {
        tenant.delete(&format!("data-{number}")).await;
    }
    settled(&tenant, 0).await;
    drop((one, two));
}
