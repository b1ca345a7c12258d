//! Warm Mountpoint Pods: mounts through them, bursts, and what they cost.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::names::annotation;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::account::MOUNTPOINT_NAMESPACE;
use s3_csi_tests::controller::metrics_of_installed;
use s3_csi_tests::memory_limit::MemoryLimit;
use s3_csi_tests::processes::processes;
use s3_csi_tests::{Seen, eventually, manifest};
use xtask::driver;

use super::timeline::{Seconds, now};
use super::{Bench, LIMIT, SCRIPT};
use crate::Samples;

/// Of the installation during the single mounts.
pub(super) const ONE: &str = "mountpointPod.warm.perNode=1";
/// Workloads that come at once, each with its own bucket, and the warm pods that they find.
const BURST: usize = 20;
const FIVE: &str = "mountpointPod.warm.perNode=5";

/// What a bucket adds to a plain pod, in milliseconds.
pub(super) const ADDED: &str = "added_over_plain_pod_warm_p50_ms";
/// Half of the time between two looks of the kubelet's at a pod's volumes, which one that was not mounted at the first look
/// waits for, in milliseconds.
const MISSED: f64 = 150.0;

/// The share of these mounts that did not wait for another look.
pub(super) fn met_first_look(added: &[f64]) -> f64 {
    added.iter().filter(|added| **added < MISSED).count() as f64 / added.len() as f64
}

impl Bench {
    /// Waits until as many run and nothing starts on the node.
    pub(super) async fn warm(&self, number: usize) {
        let pods = Api::<Pod>::namespaced(self.here.client.clone(), MOUNTPOINT_NAMESPACE);
        eventually("warm pods run", LIMIT, || async {
            let all = pods.list(&ListParams::default()).await.unwrap();
            let is_ready = |pod: &&Pod| {
                let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
                pod.annotations().contains_key(annotation::WARM_ON) && phase == Some("Running")
            };
            let ready = all.iter().filter(is_ready).count();
            Seen::some((ready == number).then_some(()), format!("{ready} of {number} run"))
        })
        .await;
    }

    /// A new bucket through a warm pod, compared with a plain pod of the same round.
    pub(super) async fn instant(&self, number: usize, plain: Seconds) -> Vec<(&'static str, f64)> {
        let volume = format!("instant-{number}");
        self.volume(&volume).await;
        self.warm(1).await;
        let before = self.writes().await;
        let (created, workload) = self.run(&volume, &[&volume]).await;
        let started = self.timeline.started(&workload).await - created;
        let published = self.timeline.published(&self.here, &workload).await;
        let scheduled = self.timeline.scheduled(&workload).await;
        // With the replacement.
        self.warm(1).await;
        let writes = self.writes().await - before;
        let mountpoint = self.timeline.mountpoint_pod(&volume).await;
        self.here.delete(&workload).await;
        self.timeline.gone(&mountpoint).await;
        vec![
            ("warm_container_started_p50_ms", started * 1000.0),
            (ADDED, (started - plain) * 1000.0),
            ("added_over_plain_pod_warm_worst_ms", (started - plain) * 1000.0),
            ("warm_scheduled_to_published_p50_ms", (published - scheduled) * 1000.0),
            ("warm_scheduled_to_published_worst_ms", (published - scheduled) * 1000.0),
            ("api_writes_per_warm_attach", writes),
        ]
    }

    /// What the controller has written so far.
    pub(super) async fn writes(&self) -> f64 {
        let metrics = metrics_of_installed(&self.here.client).await;
        let steps = metrics.lines().filter(|line| line.starts_with("s3_csi_controller_steps_total"));
        let applied = steps.filter(|line| line.contains("applied"));
        applied.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    pub(super) fn one_warm_pod(&self, samples: &mut Samples) {
        let serving = processes("s3-csi-mountpoint", None).len();
        let [mounter] = processes("s3-csi-mounter", None)[..] else { panic!("{serving} mounts are served") };
        let used = MemoryLimit::of(&self.here.cluster, mounter).peak();
        samples.insert("warm_pod_memory_mb", vec![used as f64 / 1e6]);
    }

    /// The same burst without warm pods and with some.
    pub(super) async fn bursts(&self, samples: &mut Samples) {
        for (values, prefix) in [(&[][..], "usual"), (&[FIVE][..], "five")] {
            driver::install(&self.here.cluster, values).unwrap();
            self.warm(if values.is_empty() { 0 } else { 5 }).await;
            let mut took = self.burst(prefix).await;
            took.sort_by(f64::total_cmp);
            let [median, worst] = [took[took.len() / 2], took[took.len() - 1]];
            let within = |limit: f64| took.iter().filter(|seconds| **seconds < limit).count() as f64;
            let keys = if values.is_empty() {
                ["burst_20_usual_p50_s", "burst_20_usual_worst_s", "burst_20_usual_within_1_s"]
            } else {
                [
                    "burst_20_with_5_warm_p50_s",
                    "burst_20_with_5_warm_worst_s",
                    "burst_20_with_5_warm_within_1_s",
                ]
            };
            samples.extend(
                keys.into_iter().zip([median, worst, within(1.0)]).map(|(key, value)| (key, vec![value])),
            );
        }
        driver::install(&self.here.cluster, &[]).unwrap();
        self.warm(0).await;
    }

    /// Seconds from each workload's creation to the start of its container.
    async fn burst(&self, prefix: &str) -> Vec<Seconds> {
        let names: Vec<String> = (0..BURST).map(|number| format!("burst-{prefix}-{number}")).collect();
        for name in &names {
            self.volume(name).await;
        }
        let mut created = BTreeMap::new();
        for name in &names {
            created.insert(name, now());
            self.here.run(name, manifest::pod(&[name], SCRIPT)).await;
        }
        let mut took = Vec::new();
        for name in &names {
            took.push(self.timeline.started(name).await - created[name]);
        }
        let pods = self.here.pods();
        for name in &names {
            pods.delete(name, &DeleteParams::default()).await.unwrap();
        }
        for name in &names {
            self.timeline.gone(name).await;
        }
        eventually("no mount is left", LIMIT, || async {
            let left = processes("s3-csi-mountpoint", None).len();
            Seen::some((left == 0).then_some(()), format!("{left} are left"))
        })
        .await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        took
    }
}
