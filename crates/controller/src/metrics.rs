//! What the controller counts. Labels come from small fixed sets.

use std::sync::{Arc, Mutex};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::group::is_broken;
use crate::observed::Phase;
use crate::provision::fault::{Fault, Operation};
use crate::provision::volume::Kept;
use crate::world::World;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StepLabels {
    pub step: &'static str,
    pub result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResultLabel {
    pub result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct QueueLabel {
    pub queue: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    operation: &'static str,
    result: &'static str,
}

/// Requests to the S3 server.
#[derive(Clone, Debug, Default)]
pub struct S3Calls(Family<CallLabels, Counter>);

impl S3Calls {
    pub fn count<T>(&self, operation: Operation, outcome: &Result<T, Fault>) {
        let result = if outcome.is_ok() { "done" } else { "failed" };
        self.0.get_or_create(&CallLabels { operation: operation.as_str(), result }).inc();
    }
}

/// Why a bucket outlived its volume although the policy is Delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptReason {
    NotEmpty,
    UnfinishedUploads,
    /// Not of a name that the driver gives.
    NotOurs,
    /// There are no keys to delete it with.
    SecretMissing,
}

impl From<Kept> for KeptReason {
    fn from(why: Kept) -> Self {
        match why {
            Kept::NotEmpty => Self::NotEmpty,
            Kept::Uploading => Self::UnfinishedUploads,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, Default)]
pub struct BucketsKept(Family<ReasonLabel, Counter>);

impl BucketsKept {
    pub fn count(&self, reason: KeptReason) {
        let reason = match reason {
            KeptReason::NotEmpty => "not_empty",
            KeptReason::UnfinishedUploads => "unfinished_uploads",
            KeptReason::NotOurs => "not_ours",
            KeptReason::SecretMissing => "secret_missing",
        };
        self.0.get_or_create(&ReasonLabel { reason }).inc();
    }
}

#[derive(Clone, Debug)]
pub struct Metrics {
    pub reconciles: Family<ResultLabel, Counter>,
    pub reconcile_seconds: Histogram,
    pub steps: Family<StepLabels, Counter>,
    pub s3_calls: S3Calls,
    pub buckets_kept: BucketsKept,
    pub queues: Family<QueueLabel, Gauge>,
    pub leader: Gauge,
}

impl Metrics {
    pub fn register(world: &Arc<Mutex<World>>) -> (Self, Arc<Mutex<Registry>>) {
        let metrics = Self {
            reconciles: Family::default(),
            // From a decision without writes to one that waits for a slow API server.
            reconcile_seconds: Histogram::new(exponential_buckets(0.000_1, 4.0, 10)),
            steps: Family::default(),
            s3_calls: S3Calls::default(),
            buckets_kept: BucketsKept::default(),
            queues: Family::default(),
            leader: Gauge::default(),
        };
        let mut registry = Registry::with_prefix("s3_csi_controller");
        registry.register("reconciles", "Decisions, by how they ended", metrics.reconciles.clone());
        registry.register(
            "reconcile_seconds",
            "Time of a decision with its writes",
            metrics.reconcile_seconds.clone(),
        );
        registry.register("steps", "Writes to the API server, by kind and result", metrics.steps.clone());
        registry.register(
            "s3_calls",
            "Requests to the S3 server, by kind and result",
            metrics.s3_calls.0.clone(),
        );
        registry.register(
            "buckets_kept",
            "Buckets that outlived their volume although its policy is Delete, by reason",
            metrics.buckets_kept.0.clone(),
        );
        registry.register("queue_depth", "Keys that wait to be looked at, by queue", metrics.queues.clone());
        registry.register("leader", "1 while this controller acts", metrics.leader.clone());
        registry.register_collector(Box::new(Stock(Arc::clone(world))));
        (metrics, Arc::new(Mutex::new(registry)))
    }
}

/// Counts what there is at the moment somebody asks.
#[derive(Debug)]
struct Stock(Arc<Mutex<World>>);

impl Collector for Stock {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let world = self.0.lock().map_err(|_| std::fmt::Error)?;
        let runs = |name: &String| {
            world.pods.get(name).is_some_and(|pod| !is_broken(pod) && pod.phase == Phase::Running)
        };
        let total = world.attachments.len();
        let served =
            world.attachments.values().filter(|found| found.spec.mountpoint_pods.keys().all(runs)).count();
        let mut gauge = |name: &str, help: &str, rows: &[(&str, &str, usize)]| {
            let mut family =
                encoder.encode_descriptor(name, help, None, prometheus_client::metrics::MetricType::Gauge)?;
            for (label, value, count) in rows {
                let count = i64::try_from(*count).unwrap_or(i64::MAX);
                ConstGauge::new(count).encode(family.encode_family(&[(*label, *value)])?)?;
            }
            Ok::<(), std::fmt::Error>(())
        };
        let states = [("state", "served", served), ("state", "waiting", total - served)];
        gauge("attachments", "Attachments, by whether all of their Mountpoint Pods run", &states)?;
        let in_phase = |phase| world.pods.values().filter(|pod| pod.phase == phase).count();
        let phases = Phase::ALL.map(|phase| ("phase", phase.as_str(), in_phase(phase)));
        gauge("mountpoint_pods", "Mountpoint Pods, by phase", &phases)
    }
}
