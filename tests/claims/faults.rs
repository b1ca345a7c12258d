//! A server that fails, and a network that loses answers: no bucket twice, none left over, and no OK that is not true.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::claims::{LIMIT, Tenant, handle};
use s3_csi_tests::controller::{self, Controller};
use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::{Seen, eventually};
use serde_json::json;
use xtask::s3::ALICE;

const SERVER: &str = "s3.test:80";
const CLAIMS: usize = 40;
/// Longer than the controller waits for an answer.
const TOO_LATE: Duration = Duration::from_secs(9);
/// Failures that follow each other double the wait.
const PATIENCE: Duration = Duration::from_mins(4);

/// A controller that reaches S3 through this.
async fn behind(server: &Faulty, tenant: &Tenant) -> Controller {
    let endpoint = format!("--endpoint-url={}", server.url());
    Controller::start(&tenant.here.client, &[&endpoint, "--leader-election=false"]).await
}

fn ours(tenant: &Tenant, beginning: &str) -> BTreeSet<String> {
    tenant.buckets().into_iter().filter(|bucket| bucket.starts_with(beginning)).collect()
}

#[tokio::test]
async fn whatever_happens_to_requests_each_claim_has_one_bucket_and_takes_it_along() {
    let _running = controller::none().await;
    let tenant = Tenant::set("faults", ALICE).await;
    // About half of the requests are harmed, in no order that retries could fall in step with, until it is enough.
    let server = Faulty::before(SERVER, |number, _| match ((number * 2_654_435_761) >> 7) % 10 {
        _ if number > 300 => Fault::None,
        0 => Fault::DropAnswer,
        1 => Fault::Refuse(503, "SlowDown"),
        2 => Fault::Lie(500, "InternalError"),
        3 => Fault::Cut,
        4 if number < 40 => Fault::Delay(TOO_LATE),
        4 => Fault::Lie(503, "SlowDown"),
        _ => Fault::None,
    });
    let controller = behind(&server, &tenant).await;
    tenant.class("plain", json!({"bucketNamePrefix": "faults"}), json!({})).await;
    for number in 0..CLAIMS {
        tenant.claim(&format!("data-{number}"), "plain").await;
    }
    let volumes = eventually("every claim has its volume", PATIENCE, || async {
        let volumes = tenant.volumes_here().await;
        Seen::some((volumes.len() == CLAIMS).then_some(volumes.clone()), volumes.len())
    })
    .await;
    let mut handles = BTreeSet::new();
    for number in 0..CLAIMS {
        handles.insert(handle(&tenant.bound(&format!("data-{number}")).await));
    }
    assert_eq!(handles.len(), volumes.len());
    assert_eq!(ours(&tenant, "faults-"), handles, "exactly the buckets that volumes stand for");
    for number in 0..CLAIMS {
        tenant.delete(&format!("data-{number}")).await;
    }
    eventually("nothing is left", PATIENCE, || async {
        let (volumes, buckets) = (tenant.volumes_here().await, ours(&tenant, "faults-"));
        let seen = format!("{} volumes, {} buckets", volumes.len(), buckets.len());
        Seen::some((volumes.is_empty() && buckets.is_empty()).then_some(()), seen)
    })
    .await;
    drop(controller);
}

#[tokio::test]
async fn a_claim_deleted_while_its_bucket_is_in_doubt_leaves_nothing() {
    let _running = controller::none().await;
    let tenant = Tenant::set("doubt", ALICE).await;
    let server = Faulty::before(SERVER, |_, _| Fault::DropAnswer);
    let controller = behind(&server, &tenant).await;
    tenant.class("plain", json!({"bucketNamePrefix": "doubt"}), json!({})).await;
    tenant.claim("data", "plain").await;
    tenant.has_event("data", &["ProvisioningFailed:", "lost the connection", "during CreateBucket"]).await;
    assert_eq!(ours(&tenant, "doubt-").len(), 1, "the server did it all the same");
    // Even the class may be gone by then.
    let classes = Api::<StorageClass>::all(tenant.here.client.clone());
    classes.delete(&tenant.class_name("plain"), &DeleteParams::default()).await.unwrap();
    tenant.delete("data").await;
    tenant.has_event("data", &["ProvisioningCleanupFailed:"]).await;
    drop(controller);
    server.plan(|_, _| Fault::None);
    let controller = behind(&server, &tenant).await;
    tenant.claim_gone("data").await;
    assert!(ours(&tenant, "doubt-").is_empty());
    assert!(tenant.volumes_here().await.is_empty());
    drop(controller);
}

/// As a namespace is deleted: nothing in it is spared for the sake of something else.
#[tokio::test]
async fn a_claim_in_doubt_does_not_wait_for_a_secret_that_is_gone() {
    let _running = controller::none().await;
    let tenant = Tenant::set("orphaned", ALICE).await;
    let server = Faulty::before(SERVER, |_, _| Fault::DropAnswer);
    let controller = behind(&server, &tenant).await;
    tenant.keys("keys", ALICE).await;
    let mut parameters = tenant.provisioner_secret("keys");
    parameters["bucketNamePrefix"] = json!("orphaned");
    tenant.class("keyed", parameters, json!({})).await;
    tenant.claim("data", "keyed").await;
    tenant.has_event("data", &["ProvisioningFailed:", "lost the connection"]).await;
    let left = ours(&tenant, "orphaned-");
    assert_eq!(left.len(), 1, "the server did it all the same");
    let secrets = Api::<Secret>::namespaced(tenant.here.client.clone(), &tenant.here.namespace);
    secrets.delete("keys", &DeleteParams::default()).await.unwrap();
    tenant.delete("data").await;
    tenant.claim_gone("data").await;
    let bucket = left.first().unwrap();
    tenant.has_event("data", &["BucketLeft:", bucket, "is gone or not readable: delete it manually"]).await;
    drop(controller);
}

/// When cleanups were tried.
static CLEANUPS: Mutex<Vec<Instant>> = Mutex::new(Vec::new());
/// The least that the controller waits after the first failed cleanup: a quarter of a second, less its jitter.
const SHORTEST_WAIT: Duration = Duration::from_millis(175);

/// Each edit of a claim makes the controller look at it, and its author can edit it without end.
#[tokio::test]
async fn edits_do_not_shorten_the_wait_after_a_failed_cleanup() {
    let _running = controller::none().await;
    let tenant = Tenant::set("edited", ALICE).await;
    let server = Faulty::before(SERVER, |_, _| Fault::DropAnswer);
    let controller = behind(&server, &tenant).await;
    tenant.class("plain", json!({"bucketNamePrefix": "edited"}), json!({})).await;
    tenant.claim("data", "plain").await;
    tenant.has_event("data", &["ProvisioningFailed:", "lost the connection"]).await;
    server.plan(|_, line| {
        if line.starts_with("DELETE /edited-") {
            CLEANUPS.lock().unwrap().push(Instant::now());
        }
        Fault::Refuse(503, "SlowDown")
    });
    tenant.delete("data").await;
    let times = eventually("it was tried five times", LIMIT, || async {
        let times = CLEANUPS.lock().unwrap().clone();
        let edit = json!({"metadata": {"annotations": {"edited": format!("{:?}", Instant::now())}}});
        tenant.claims().patch("data", &PatchParams::default(), &Patch::Merge(edit)).await.unwrap();
        Seen::some((times.len() >= 5).then(|| times.clone()), times.len())
    })
    .await;
    for (failures, pair) in times.windows(2).enumerate() {
        let (wait, least) = (pair[1] - pair[0], SHORTEST_WAIT * (1 << failures));
        assert!(wait >= least, "{wait:?} instead of {least:?} after {} failures", failures + 1);
    }
    server.plan(|_, _| Fault::None);
    tenant.claim_gone("data").await;
    assert!(ours(&tenant, "edited-").is_empty());
    drop(controller);
}

/// A class cannot be edited, but made anew under its name.
#[tokio::test]
async fn a_class_that_changes_while_a_bucket_is_in_doubt_leaves_one_bucket() {
    let _running = controller::none().await;
    let tenant = Tenant::set("changing", ALICE).await;
    let server = Faulty::before(SERVER, |_, _| Fault::DropAnswer);
    let controller = behind(&server, &tenant).await;
    tenant.class("plain", json!({"bucketNamePrefix": "changing-old"}), json!({})).await;
    tenant.claim("data", "plain").await;
    tenant.has_event("data", &["ProvisioningFailed:", "lost the connection"]).await;
    let classes = Api::<StorageClass>::all(tenant.here.client.clone());
    classes.delete(&tenant.class_name("plain"), &DeleteParams::default()).await.unwrap();
    tenant.class("plain", json!({"bucketNamePrefix": "changing-new"}), json!({})).await;
    server.plan(|_, _| Fault::None);
    let volume = tenant.bound("data").await;
    assert_eq!(ours(&tenant, "changing-"), BTreeSet::from([handle(&volume)]));
    assert!(handle(&volume).starts_with("changing-new-"), "{}", handle(&volume));
    drop(controller);
}

#[tokio::test]
async fn a_refusal_is_never_taken_for_success() {
    let _running = controller::none().await;
    let tenant = Tenant::set("refusals", ALICE).await;
    let server = Faulty::before(SERVER, |_, _| Fault::None);
    let controller = behind(&server, &tenant).await;
    tenant.class("plain", json!({"bucketNamePrefix": "refusals"}), json!({})).await;
    tenant.claim("early", "plain").await;
    let early = tenant.bound("early").await;

    server.plan(|_, _| Fault::Refuse(403, "AccessDenied"));
    tenant.claim("late", "plain").await;
    tenant.has_event("late", &["ProvisioningFailed:", "AccessDenied"]).await;
    tenant.delete("early").await;
    tenant.has_event(&early.name_any(), &["VolumeFailedDelete:", "AccessDenied", "s3:DeleteBucket"]).await;
    eventually("both were refused once more", LIMIT, || async {
        let (seen, early) = (server.seen(), handle(&early));
        let is_late = |seen: &&String| seen.starts_with("PUT /refusals-") && !seen.contains(&early);
        let made = seen.iter().filter(is_late).count();
        let deleted = seen.iter().filter(|seen| **seen == format!("DELETE /{early}/")).count();
        Seen::some((made > 1 && deleted > 1).then_some(()), seen.join("\n"))
    })
    .await;
    let late = tenant.claims().get("late").await.unwrap();
    assert_eq!(late.spec.unwrap().volume_name, None);
    assert!(tenant.has_bucket(&handle(&early)), "nothing was deleted");
    assert_eq!(tenant.volumes_here().await, BTreeSet::from([early.name_any()]), "and the volume says so");

    server.plan(|_, _| Fault::None);
    let late = tenant.bound("late").await;
    tenant.volume_gone(&early.name_any()).await;
    assert!(!tenant.has_bucket(&handle(&early)) && tenant.has_bucket(&handle(&late)));
    drop(controller);
}

#[tokio::test]
async fn a_claim_costs_one_request_and_its_end_another() {
    let _running = controller::none().await;
    let tenant = Tenant::set("requests", ALICE).await;
    let server = Faulty::before(SERVER, |_, _| Fault::None);
    let controller = behind(&server, &tenant).await;
    tenant.class("plain", json!({"bucketNamePrefix": "requests"}), json!({})).await;
    for number in 0..20 {
        tenant.claim(&format!("data-{number}"), "plain").await;
    }
    for number in 0..20 {
        tenant.bound(&format!("data-{number}")).await;
        tenant.delete(&format!("data-{number}")).await;
    }
    eventually("every volume is gone", LIMIT, || async {
        let left = tenant.volumes_here().await.len();
        Seen::some((left == 0).then_some(()), left)
    })
    .await;
    let mut requests = BTreeMap::<String, usize>::new();
    // Claims that other tests left with a mistake are tried again, too.
    for request in server.seen().into_iter().filter(|request| request.contains("/requests-")) {
        *requests.entry(request).or_default() += 1;
    }
    assert_eq!(requests.len(), 40, "{requests:?}");
    assert!(requests.values().all(|count| *count == 1), "{requests:?}");
    drop(controller);
}
