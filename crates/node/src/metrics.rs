//! The node's metrics. Every label has a handful of values, except those that name a mount.

mod figures;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use contract::names::sources_on_node;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric, LabelValueEncoder,
};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::mounts::Mounts;
pub use figures::MountFigures;

/// In seconds: from a republish that finds everything mounted to a publish that waits until its deadline.
const BUCKETS: [f64; 10] = [0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

#[derive(Clone, Debug)]
pub struct Metrics {
    publishes: Family<Outcome, Histogram>,
    stages: Family<StageLabel, Histogram>,
    pub credentials: Counter,
    pub sweeps: Counter,
    pub dead: Gauge,
    pub deaths: Counter,
    pub moves: Counter,
    early: Family<EarlyLabel, Counter>,
    pub unresponsive: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabel {
    stage: Stage,
}

/// The stages of a publish that can take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Stage {
    Assignment,
    Listening,
    Mount,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EarlyLabel {
    result: Early,
}

/// What became of a bucket that could be mounted before the kubelet asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Early {
    Mounted,
    NotNeeded,
    NotPossible,
    Failed,
}

impl EncodeLabelValue for Early {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(match self {
            Self::Mounted => "mounted",
            Self::NotNeeded => "not_needed",
            Self::NotPossible => "not_possible",
            Self::Failed => "failed",
        })
    }
}

impl Metrics {
    pub fn register(figures: MountFigures) -> (Self, Arc<Mutex<Registry>>) {
        let histogram = || Histogram::new(BUCKETS);
        let metrics = Self {
            publishes: Family::new_with_constructor(histogram),
            stages: Family::new_with_constructor(histogram),
            credentials: Counter::default(),
            sweeps: Counter::default(),
            dead: Gauge::default(),
            deaths: Counter::default(),
            moves: Counter::default(),
            early: Family::default(),
            unresponsive: Gauge::default(),
        };
        let mut registry = Registry::with_prefix("s3_csi_node");
        registry.register("publish_seconds", "NodePublishVolume by result", metrics.publishes.clone());
        registry.register("publish_stage_seconds", "Stages of a publish", metrics.stages.clone());
        registry.register("credentials_written", "New or changed credentials", metrics.credentials.clone());
        registry.register("dead_mounts", "Mounts whose mount process died", metrics.dead.clone());
        let help = "Mount processes that died";
        registry.register("mount_process_deaths", help, metrics.deaths.clone());
        registry.register("mount_moves", "Mounts moved to another Mountpoint Pod", metrics.moves.clone());
        let help =
            "Buckets of claimed warm Mountpoint Pods, by whether they were mounted before the kubelet asked";
        registry.register("early_mounts", help, metrics.early.clone());
        let help = "Mounts whose mount process is not responding";
        registry.register("unresponsive_mounts", help, metrics.unresponsive.clone());
        registry.register("sweeps", "Sweeps for leftover mounts", metrics.sweeps.clone());
        registry.register_collector(Box::new(Sources {
            mounts: figures.mounts.clone(),
            folder: sources_on_node(figures.kubelet.path()),
        }));
        registry.register_collector(Box::new(figures));
        (metrics, Arc::new(Mutex::new(registry)))
    }

    pub fn published(&self, code: tonic::Code, time: Duration) {
        self.publishes.get_or_create(&Outcome { code: format!("{code:?}") }).observe(time.as_secs_f64());
    }

    pub fn early_mount(&self, result: Early) {
        self.early.get_or_create(&EarlyLabel { result }).inc();
    }

    pub fn stage(&self, stage: Stage, time: Duration) {
        self.stages.get_or_create(&StageLabel { stage }).observe(time.as_secs_f64());
    }
}

/// Counted in the mount table on every scrape.
#[derive(Debug)]
struct Sources {
    mounts: Mounts,
    folder: std::path::PathBuf,
}

impl Collector for Sources {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let table = self.mounts.table().unwrap_or_default();
        // Mounts below the top one are dead or were replaced.
        let buckets = || table.0.iter().filter(|mount| mount.bucket && table.is_on_top(mount));
        let sources = buckets().filter(|mount| mount.point.starts_with(&self.folder)).count();
        for (name, help, count) in [
            ("mounted_buckets", "Buckets mounted on this node", sources),
            ("bound_workloads", "Mounts of workloads", buckets().count() - sources),
        ] {
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        Ok(())
    }
}
