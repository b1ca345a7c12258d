//! The controller with 500 simulated nodes.

mod simulated;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use contract::attachment::MountpointS3PodAttachment;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use s3_csi_tests::Inside;
use s3_csi_tests::account::{MOUNTPOINT_NAMESPACE, install};
use s3_csi_tests::controller::Controller;
use s3_csi_tests::processes::memory_mb;
use serde_json::json;

use crate::Samples;

/// The number of concurrent writes of the controller, so that the API server is compared under the same load.
const AT_ONCE: usize = 32;
const NODES: usize = 500;
const VOLUMES: usize = 10;
const BURST: usize = NODES * VOLUMES;
const SINGLES: usize = 200;
const RAW: usize = 1000;
/// Only how soon we notice: the watch records the time itself.
const QUICK: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_mins(5);

pub(crate) async fn measure() -> Samples {
    let here = Inside::join("bench").await;
    install(&here.client).await;
    let bench = Bench { here, seen: Arc::default() };
    let mut samples = Samples::new();

    eprintln!("raw writes");
    // Twice, because the first run warms up the API server.
    bench.raw_writes().await;
    let raw_rate = bench.raw_writes().await;

    eprintln!("controller");
    bench.prepare().await;
    bench.warm_pods(&mut samples).await;
    bench.watch().await;
    let controller = Controller::start(&bench.here.client, &[]).await;
    // From then on it is the only leader and trusts its caches.
    tokio::time::sleep(Duration::from_secs(20)).await;
    samples.insert("rss_idle_mb", vec![resident_mb(&controller)]);

    eprintln!("one at a time");
    let before = steps(&controller).await;
    let (attach, detach) = bench.singles().await;
    let after = steps(&controller).await;
    let count = SINGLES as f64;
    let attaching = ["create_attachment", "create_pod"];
    let detaching = ["delete_attachment", "update_attachment", "mark_unmount", "delete_pod"];
    samples.insert("writes_per_attach", vec![difference(&before, &after, &attaching) / count]);
    samples.insert("writes_per_detach", vec![difference(&before, &after, &detaching) / count]);
    samples.insert("attach_p50_ms", vec![percentile(&attach, 50)]);
    samples.insert("attach_p99_ms", vec![percentile(&attach, 99)]);
    samples.insert("detach_p50_ms", vec![percentile(&detach, 50)]);

    eprintln!("burst");
    let uids = bench.create_burst().await;
    bench.bind("burst").await;
    let seconds = bench.attached(&uids).await;
    samples.insert("burst_workloads", vec![BURST as f64]);
    samples.insert("burst_attach_per_s", vec![BURST as f64 / seconds]);
    samples.insert("burst_writes_per_s", vec![2.0 * BURST as f64 / seconds]);
    samples.insert("raw_writes_per_s", vec![raw_rate]);
    // Two writes for each, compared with the same two kinds of writes by a client that does nothing else.
    samples.insert("burst_rate_ratio", vec![2.0 * BURST as f64 / seconds / raw_rate]);
    let resident = resident_mb(&controller);
    samples.insert("rss_5000_mb", vec![resident]);
    samples.insert("bytes_per_workload", vec![(resident - samples["rss_idle_mb"][0]) * 1e6 / BURST as f64]);
    samples
}

struct Bench {
    here: Inside,
    seen: Arc<Mutex<Seen>>,
}

/// When the watch showed a workload as attached, and when as released.
#[derive(Default)]
struct Seen {
    attached: HashMap<String, Instant>,
    listed: HashMap<String, Vec<String>>,
    released: HashMap<String, Instant>,
}

impl Bench {
    fn client(&self) -> Client {
        self.here.client.clone()
    }

    fn node(number: usize) -> String {
        format!("sim-{number}")
    }

    /// The memory of a controller that keeps a warm pod on each node, all of which run.
    async fn warm_pods(&self, samples: &mut Samples) {
        let most = format!("--most-warm-mountpoint-pods={NODES}");
        let controller = Controller::start(&self.client(), &["--warm-mountpoint-pods=1", &most]).await;
        let pods = Api::<Pod>::namespaced(self.client(), MOUNTPOINT_NAMESPACE);
        let all = kube::api::ListParams::default();
        let deadline = Instant::now() + PATIENCE;
        let warm = loop {
            let found = pods.list(&all).await.unwrap().items;
            if found.len() == NODES {
                break found;
            }
            assert!(Instant::now() < deadline, "{} warm pods within {PATIENCE:?}", found.len());
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        let running = Patch::Merge(json!({"status": {"phase": "Running"}}));
        for pod in &warm {
            pods.patch_status(&pod.name_any(), &PatchParams::default(), &running).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        samples.insert("rss_500_warm_pods_mb", vec![resident_mb(&controller)]);
        drop(controller);
        pods.delete_collection(&DeleteParams::default().grace_period(0), &all).await.unwrap();
    }

    async fn watch(&self) {
        let seen = Arc::clone(&self.seen);
        let attachments = Api::<MountpointS3PodAttachment>::all(self.client());
        let mut events = watcher(attachments, watcher::Config::default()).boxed();
        while !matches!(events.try_next().await.unwrap(), Some(Event::InitDone)) {}
        tokio::spawn(async move {
            while let Ok(Some(event)) = events.try_next().await {
                let now = Instant::now();
                let mut seen = seen.lock().unwrap();
                let (name, uids) = match event {
                    Event::Apply(object) | Event::InitApply(object) => (
                        object.name_any(),
                        object.spec.workload_uids().map(str::to_owned).collect::<Vec<_>>(),
                    ),
                    Event::Delete(object) => (object.name_any(), Vec::new()),
                    Event::Init | Event::InitDone => continue,
                };
                for uid in &uids {
                    seen.attached.entry(uid.clone()).or_insert(now);
                }
                let before = seen.listed.insert(name, uids.clone()).unwrap_or_default();
                for uid in before.into_iter().filter(|uid| !uids.contains(uid)) {
                    seen.released.insert(uid, now);
                }
            }
        });
    }

    async fn until<T>(&self, what: &str, every: Duration, look: impl Fn(&Seen) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look(&self.seen.lock().unwrap()) {
                return found;
            }
            assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
            tokio::time::sleep(every).await;
        }
    }

    /// Milliseconds from each pod's creation, scheduled as it is, to its attachment, and from its end to the release.
    async fn singles(&self) -> (Vec<f64>, Vec<f64>) {
        let (mut attach, mut detach) = (Vec::new(), Vec::new());
        for number in 0..SINGLES {
            let name = format!("single-{number}");
            let workload =
                pod(&name, Some(&Self::node(number % NODES)), &[&format!("single-{}", number % VOLUMES)]);
            let began = Instant::now();
            let uid =
                self.here.pods().create(&PostParams::default(), &workload).await.unwrap().uid().unwrap();
            let at =
                self.until("a workload is attached", QUICK, |seen| seen.attached.get(&uid).copied()).await;
            attach.push(at.saturating_duration_since(began).as_secs_f64() * 1000.0);
            let began = Instant::now();
            self.here.pods().delete(&name, &DeleteParams::default().grace_period(0)).await.unwrap();
            let at =
                self.until("a workload is released", QUICK, |seen| seen.released.get(&uid).copied()).await;
            detach.push(at.saturating_duration_since(began).as_secs_f64() * 1000.0);
            // Irregular pauses avoid synchronizing with periodic work.
            tokio::time::sleep(Duration::from_millis(5 + (number * 7 % 23) as u64)).await;
        }
        (attach, detach)
    }

    /// Workloads whose volumes are not bound yet: binding them lets all begin at once, without other writers.
    async fn create_burst(&self) -> Vec<String> {
        let pods = self.here.pods();
        futures::stream::iter(0..BURST)
            .map(|number| {
                let pods = pods.clone();
                async move {
                    let claim = format!("burst-{}", number / NODES);
                    let workload =
                        pod(&format!("burst-{number}"), Some(&Self::node(number % NODES)), &[&claim]);
                    pods.create(&PostParams::default(), &workload).await.unwrap().uid().unwrap()
                }
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await
    }

    /// Seconds between the first and the last of them being attached.
    async fn attached(&self, uids: &[String]) -> f64 {
        // Rarely, because listing thousands of objects takes CPU time from the controller.
        self.until("the burst is attached", Duration::from_millis(200), |seen| {
            let times = uids.iter().map(|uid| seen.attached.get(uid).copied()).collect::<Option<Vec<_>>>()?;
            Some((*times.iter().max()? - *times.iter().min()?).as_secs_f64())
        })
        .await
    }
}

fn pod(name: &str, node: Option<&str>, claims: &[&str]) -> Pod {
    let volumes: Vec<_> = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
        .collect();
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": node, "volumes": volumes, "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "none"}],
        },
    }))
    .unwrap()
}

pub(crate) fn resident_mb(controller: &Controller) -> f64 {
    memory_mb(controller.pid().as_raw_nonzero().get().cast_unsigned(), "VmRSS:")
}

/// Writes that have been applied, by kind, as the controller itself counts them.
async fn steps(controller: &Controller) -> BTreeMap<String, f64> {
    // Trailing work of the last workloads.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let text = controller.metrics();
    let rows = text
        .lines()
        .filter(|line| line.starts_with("s3_csi_controller_steps_total{") && line.contains("\"applied\""));
    rows.map(|line| {
        let step = line.split("step=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
        (step, line.rsplit(' ').next().unwrap().parse().unwrap())
    })
    .collect()
}

fn difference(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>, kinds: &[&str]) -> f64 {
    let total =
        |counts: &BTreeMap<String, f64>| kinds.iter().filter_map(|kind| counts.get(*kind)).sum::<f64>();
    total(after) - total(before)
}

pub(crate) fn percentile(samples: &[f64], percent: usize) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}
