//! What the controller counts. Labels come from small fixed sets.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::observed::Phase;
use crate::warm::{Warmth, is_ready};
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

#[derive(Clone, Debug)]
pub struct Metrics {
    pub reconciles: Family<ResultLabel, Counter>,
    pub reconcile_seconds: Histogram,
    pub steps: Family<StepLabels, Counter>,
    pub queues: Family<QueueLabel, Gauge>,
    pub retries: Family<QueueLabel, Gauge>,
    pub leader: Gauge,
    warm: Family<ResultLabel, Counter>,
}

/// Before the name of each.
pub const PREFIX: &str = "s3_csi_controller";

impl Metrics {
    pub fn register(registry: &mut Registry, world: &Arc<Mutex<World>>) -> Self {
        let metrics = Self {
            reconciles: Family::default(),
            // From a decision without writes to one that waits for a slow API server.
            reconcile_seconds: Histogram::new(exponential_buckets(0.000_1, 4.0, 10)),
            steps: Family::default(),
            queues: Family::default(),
            retries: Family::default(),
            leader: Gauge::default(),
            warm: Family::default(),
        };
        registry.register("reconciles", "Decisions, by how they ended", metrics.reconciles.clone());
        registry.register(
            "reconcile_seconds",
            "Time of a decision with its writes",
            metrics.reconcile_seconds.clone(),
        );
        registry.register("steps", "Writes to the API server, by kind and result", metrics.steps.clone());
        registry.register("queue_depth", "Keys that wait for a worker, by queue", metrics.queues.clone());
        let help = "Keys that wait for the time of their next attempt, by queue";
        registry.register("queue_retries", help, metrics.retries.clone());
        registry.register("leader", "1 while this controller is the leader", metrics.leader.clone());
        let help = "New Mountpoint Pods that volumes needed, by whether a warm one was claimed";
        registry.register("warm_claims", help, metrics.warm.clone());
        registry.register_collector(Box::new(Stock { world: Arc::clone(world), waiting: Mutex::default() }));
        metrics
    }

    pub fn warm(&self, result: Warmth) {
        self.warm.get_or_create(&ResultLabel { result: result.into() }).inc();
    }
}

/// Since when attachments have had no running Mountpoint Pod, by name, as far as the metrics were read. Not their own age, nor
/// that of their pods: a pod that is replaced after a year leaves them waiting for seconds.
#[derive(Debug, Default)]
struct Waiting(HashMap<String, Instant>);

impl Waiting {
    /// How long the first of those that wait now has waited.
    fn longest<'a>(&mut self, names: impl Iterator<Item = &'a String>, now: Instant) -> Duration {
        let since = |name: &String| (name.clone(), self.0.get(name).copied().unwrap_or(now));
        self.0 = names.map(since).collect();
        self.0.values().map(|since| now.saturating_duration_since(*since)).max().unwrap_or_default()
    }
}

/// Counted when the metrics are read.
#[derive(Debug)]
struct Stock {
    world: Arc<Mutex<World>>,
    waiting: Mutex<Waiting>,
}

impl Collector for Stock {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let world = self.world.lock();
        let runs = |name: &String| {
            world.pods.get(name).is_some_and(|pod| !pod.is_ending() && pod.phase == Phase::Running)
        };
        let (served, waiting): (Vec<_>, Vec<_>) =
            world.attachments.iter().partition(|(_, found)| found.spec.mountpoint_pods.keys().all(runs));
        let longest = self.waiting.lock().longest(waiting.iter().map(|(name, _)| *name), Instant::now());
        let oldest = ConstGauge::new(longest.as_secs_f64());
        let descriptor = encoder.encode_descriptor(
            "oldest_waiting_attachment_seconds",
            "The longest time that one attachment has been without a running Mountpoint Pod",
            None,
            oldest.metric_type(),
        )?;
        oldest.encode(descriptor)?;
        let mut gauge = |name: &str, help: &str, rows: &[(&str, &str, usize)]| {
            let mut family =
                encoder.encode_descriptor(name, help, None, prometheus_client::metrics::MetricType::Gauge)?;
            for (label, value, count) in rows {
                let count = i64::try_from(*count).unwrap_or(i64::MAX);
                ConstGauge::new(count).encode(family.encode_family(&[(*label, *value)])?)?;
            }
            Ok::<(), std::fmt::Error>(())
        };
        let states = [("state", "served", served.len()), ("state", "waiting", waiting.len())];
        gauge("attachments", "Attachments, by whether all of their Mountpoint Pods run", &states)?;
        let in_phase = |phase| world.pods.values().filter(|pod| pod.phase == phase).count();
        let phases = Phase::ALL.iter().map(|phase| ("phase", phase.into(), in_phase(*phase)));
        let phases: Vec<_> = phases.collect();
        gauge("mountpoint_pods", "Mountpoint Pods, by phase", &phases)?;
        let warm = || world.pods.values().filter(|pod| pod.warm.is_some() && !pod.is_ending());
        let ready = warm().filter(|pod| is_ready(pod)).count();
        let states = [("state", "ready", ready), ("state", "starting", warm().count() - ready)];
        gauge("warm_mountpoint_pods", "Mountpoint Pods that wait for a volume, by whether they run", &states)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_attachment_that_waits_at_every_reading_grows_old() {
        let (mut waiting, start) = (Waiting::default(), Instant::now());
        let mut longest = |names: &[&str], minute: u64| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            waiting.longest(names.iter(), start + Duration::from_mins(minute)).as_secs() / 60
        };
        assert_eq!(longest(&["a"], 0), 0);
        assert_eq!(longest(&["b", "a"], 10), 10);
        // Others come and go.
        assert_eq!(longest(&["b", "c"], 20), 10);
        assert_eq!(longest(&["c", "d"], 30), 10);
        assert_eq!(longest(&[], 40), 0);
        assert_eq!(longest(&["a"], 50), 0, "it was served in between");
    }
}
