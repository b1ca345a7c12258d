//! From a claim to its bucket, with the cluster's own binder and the S3 server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use s3_csi_tests::claims::Tenant;
use s3_csi_tests::controller::Controller;
use serde_json::json;
use xtask::s3::ALICE;

use crate::Samples;
use crate::controller::{percentile, resident_mb};

const SINGLES: usize = 100;
const BURST: usize = 200;
/// One, as with a manifest, and many, as with a `StatefulSet`.
const AT_ONCE: usize = 32;
const PATIENCE: Duration = Duration::from_mins(5);

/// When each claim was seen bound.
type Bound = Arc<Mutex<HashMap<String, Instant>>>;

pub(crate) async fn measure() -> Samples {
    let tenant = Tenant::set("bench", ALICE).await;
    let controller = Controller::start(&tenant.here.client, &[]).await;
    tenant.class("plain", json!({}), json!({})).await;
    let bound = watch(&tenant).await;
    let mut samples = Samples::new();
    samples.insert("controller_idle_rss_mb", vec![resident_mb(&controller)]);

    eprintln!("{SINGLES} claims, one after the other");
    let mut times = Vec::new();
    for number in 0..SINGLES {
        let name = format!("single-{number}");
        let began = Instant::now();
        tenant.claim(&name, "plain").await;
        let at = until("a claim is bound", || bound.lock().unwrap().get(&name).copied()).await;
        times.push(at.saturating_duration_since(began).as_secs_f64() * 1000.0);
        // Irregular pauses avoid synchronizing with periodic work.
        tokio::time::sleep(Duration::from_millis(5 + (number * 7 % 23) as u64)).await;
    }
    samples.insert("claim_bound_p50_ms", vec![percentile(&times, 50)]);
    samples.insert("claim_bound_p99_ms", vec![percentile(&times, 99)]);

    eprintln!("{BURST} claims at once");
    let began = Instant::now();
    futures::stream::iter(0..BURST)
        .for_each_concurrent(AT_ONCE, |number| {
            let tenant = &tenant;
            async move { drop(tenant.claim(&format!("burst-{number}"), "plain").await) }
        })
        .await;
    let last = until("all are bound", || {
        let bound = bound.lock().unwrap();
        let times = (0..BURST).map(|number| bound.get(&format!("burst-{number}")).copied());
        times.collect::<Option<Vec<Instant>>>()?.into_iter().max()
    })
    .await;
    samples.insert("claims_200_bound_s", vec![last.saturating_duration_since(began).as_secs_f64()]);
    let claims = (SINGLES + BURST) as f64;
    samples.insert("s3_calls_per_create", vec![calls(&controller) / claims]);
    samples.insert("controller_rss_mb", vec![resident_mb(&controller)]);

    eprintln!("their end");
    let before = calls(&controller);
    let names = (0..SINGLES).map(|number| format!("single-{number}"));
    for name in names.chain((0..BURST).map(|number| format!("burst-{number}"))) {
        tenant.delete(&name).await;
    }
    let began = Instant::now();
    while !tenant.volumes_here().await.is_empty() {
        assert!(began.elapsed() < PATIENCE, "volumes are left");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    samples.insert("s3_calls_per_delete", vec![(calls(&controller) - before) / claims]);
    samples
}

async fn watch(tenant: &Tenant) -> Bound {
    let bound = Bound::default();
    let seen = Arc::clone(&bound);
    let mut events = watcher(tenant.claims(), watcher::Config::default()).boxed();
    while !matches!(events.try_next().await.unwrap(), Some(Event::InitDone)) {}
    tokio::spawn(async move {
        while let Ok(Some(event)) = events.try_next().await {
            let now = Instant::now();
            if let Event::Apply(claim) = event
                && is_bound(&claim)
            {
                seen.lock().unwrap().entry(claim.name_any()).or_insert(now);
            }
        }
    });
    bound
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

async fn until<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        // Only how soon we notice: the watch records the time itself.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Requests to the S3 server so far, as the controller itself counts them.
fn calls(controller: &Controller) -> f64 {
    let text = controller.metrics();
    let rows = text.lines().filter(|line| line.starts_with("s3_csi_controller_s3_calls_total{"));
    rows.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
