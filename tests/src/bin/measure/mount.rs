//! Mounts on a real node: the stages of a cold mount, the time of the clean-up, and the resources of the driver's
//! programs.

mod timeline;
mod warm;

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::manifest;
use s3_csi_tests::memory_limit::MemoryLimit;
use s3_csi_tests::node::metrics_of_installed;
use s3_csi_tests::processes::{megabytes, processes, processor_seconds, resident_mb};
use s3_csi_tests::{Inside, Seen, eventually};
use xtask::driver;
use xtask::s3::{ALICE, Client, ENDPOINT};

use crate::Samples;
use timeline::{Seconds, Timeline, now};

const LIMIT: Duration = Duration::from_mins(3);
/// Exits at once on SIGTERM, as a well-behaved program does.
const SCRIPT: &str = "trap 'exit 0' TERM; ls /data > /dev/null; while :; do sleep 1 & wait $!; done";
/// With which a volume does not use warm pods; otherwise it has no effect.
const OTHER_SHAPE: (&str, &str) = ("mountpointContainerResourcesRequestsCpu", "11m");
/// As many mounts as a node of 110 pods may have.
const MANY: usize = 100;
/// An idle program is watched for this long.
const IDLE: Duration = Duration::from_mins(1);

/// What to measure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    /// Single mounts through a warm pod, each with a plain pod to compare.
    Warm,
}

pub(crate) async fn measure(repetitions: usize, part: Part) -> Samples {
    let here = Inside::join("bench-mount").await;
    // Volumes that need another pod than a warm one take the usual way.
    driver::install(&here.cluster, &[warm::ONE]).unwrap();
    let bench = Bench {
        timeline: Timeline::follow(&here).await,
        server: Client::new(ENDPOINT, ALICE).unwrap(),
        here,
    };
    let mut samples = Samples::new();
    tokio::time::sleep(Duration::from_secs(5)).await;
    samples.insert("node_rss_idle_mb", vec![resident_mb("s3-csi-node")]);
    bench.warm(1).await;
    bench.one_warm_pod(&mut samples);
    for number in 0..repetitions {
        eprintln!("{number}");
        let figures = match part {
            Part::All => bench.once(number).await,
            Part::Warm => bench.warm_only(number).await,
        };
        for (key, value) in figures {
            samples.entry(key).or_default().push(value);
        }
    }
    samples.insert("warm_met_first_look_share", vec![warm::met_first_look(&samples[warm::ADDED])]);
    if part == Part::All {
        bench.bursts(&mut samples).await;
        bench.with_many_mounts(&mut samples).await;
    }
    samples
}

struct Bench {
    here: Inside,
    timeline: Timeline,
    server: Client,
}

impl Bench {
    /// One plain pod, and a volume from its first workload to its last.
    async fn once(&self, number: usize) -> Vec<(&'static str, f64)> {
        let volume = format!("bench-{number}");
        self.volume_with(&volume, &[OTHER_SHAPE]).await;
        self.warm(1).await;
        let mut figures = Vec::new();
        let mut add = |key, seconds: Seconds| figures.push((key, seconds * 1000.0));

        let plain_started = self.plain(number).await;
        add("plain_container_started_p50_ms", plain_started);

        let writes = self.writes().await;
        let (created, cold) = self.run(&format!("cold-{number}"), &[&volume]).await;
        let started = self.timeline.started(&cold).await;
        let mountpoint = self.timeline.mountpoint_pod(&volume).await;
        let steps = self.timeline.cold_mount(&self.here, &cold, &mountpoint, &volume).await;
        add("cold_container_started_p50_ms", started - created);
        add("added_over_plain_pod_p50_ms", started - created - plain_started);
        let mut before = created;
        for (key, at) in steps.named().into_iter().chain(self.timeline.start_of_workload(&cold).await) {
            add(key, at - before);
            before = at;
        }
        add("mounter_started_to_published_p50_ms", steps.published - steps.container_started);
        add("mounter_started_to_published_worst_ms", steps.published - steps.container_started);
        figures.push(("api_writes_per_usual_attach", self.writes().await - writes));
        let mut add = |key, seconds: Seconds| figures.push((key, seconds * 1000.0));

        let (_, warm) = self.run(&format!("warm-{number}"), &[&volume]).await;
        self.timeline.started(&warm).await;
        add("warm_publish_p50_ms", self.timeline.publish_took(&self.here, &warm).await);
        self.here.delete(&warm).await;

        let deleted = now();
        self.here.pods().delete(&cold, &DeleteParams::default()).await.unwrap();
        add("detach_container_exited_p50_ms", self.timeline.exited(&mountpoint).await - deleted);
        add("detach_pod_gone_p50_ms", self.timeline.gone(&mountpoint).await - deleted);

        let (_, forced) = self.run(&format!("forced-{number}"), &[&volume]).await;
        self.timeline.started(&forced).await;
        let mountpoint = self.timeline.mountpoint_pod(&volume).await;
        let uid = self.here.pods().get(&forced).await.unwrap().uid().unwrap();
        let deleted = now();
        self.here.pods().delete(&forced, &DeleteParams::default().grace_period(0)).await.unwrap();
        let unpublished = self.timeline.unpublished(&uid).await;
        add("force_delete_clean_p50_ms", self.timeline.unattached(&volume).await.max(unpublished) - deleted);
        self.timeline.gone(&mountpoint).await;
        self.unmounted(&volume).await;
        figures.extend(self.instant(number, plain_started).await);
        figures
    }

    async fn warm_only(&self, number: usize) -> Vec<(&'static str, f64)> {
        let plain_started = self.plain(number).await;
        let mut figures = vec![("plain_container_started_p50_ms", plain_started * 1000.0)];
        figures.extend(self.instant(number, plain_started).await);
        figures
    }

    /// A pod without volumes of ours, from its creation to the start of its container.
    async fn plain(&self, number: usize) -> Seconds {
        let (created, plain) = self.run(&format!("plain-{number}"), &[]).await;
        let started = self.timeline.started(&plain).await - created;
        self.here.delete(&plain).await;
        started
    }

    async fn unmounted(&self, volume: &str) {
        eventually("it is unmounted", LIMIT, || async {
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            Seen::some((!mounts.contains(&format!("~csi/{volume}/mount"))).then_some(()), "mounted")
        })
        .await;
    }

    async fn with_many_mounts(&self, samples: &mut Samples) {
        let volumes: Vec<String> = (0..MANY).map(|number| format!("many-{number}")).collect();
        for volume in &volumes {
            self.volume(volume).await;
        }
        let names: Vec<&str> = volumes.iter().map(String::as_str).collect();
        let available = available_mb();
        let (created, pod) = self.run("many", &names).await;
        let started = self.timeline.started(&pod).await;
        samples.insert("started_with_100_volumes_s", vec![started - created]);
        tokio::time::sleep(Duration::from_secs(5)).await;
        samples.insert("node_rss_100_mounts_mb", vec![resident_mb("s3-csi-node")]);
        let peaks = processes("s3-csi-mountpoint", None).into_iter();
        let peaks = peaks.map(|process| MemoryLimit::of(&self.here.cluster, process).peak());
        samples.insert("mountpoint_containers_100_mb", vec![peaks.sum::<u64>() as f64 / 1e6]);
        samples.insert("memory_of_100_mounts_mb", vec![available - available_mb()]);
        samples.insert("controller_rss_mb", vec![resident_mb("s3-csi-controller")]);
        let before = (processor_seconds("s3-csi-node"), self.publishes().await);
        tokio::time::sleep(IDLE).await;
        let used = processor_seconds("s3-csi-node") - before.0;
        samples.insert("node_cpu_idle_percent", vec![used / IDLE.as_secs_f64() * 100.0]);
        // The cost of an idle mount depends on how often the kubelet republishes it.
        samples.insert("idle_publishes_per_minute", vec![self.publishes().await - before.1]);
    }

    /// How many calls the node service has answered.
    async fn publishes(&self) -> f64 {
        let metrics = metrics_of_installed(&self.here.client).await;
        let counts = metrics.lines().filter(|line| line.starts_with("s3_csi_node_publish_seconds_count"));
        counts.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    async fn volume(&self, name: &str) {
        self.volume_with(name, &[]).await;
    }

    /// A bucket, a volume and a claim that are bound.
    async fn volume_with(&self, name: &str, attributes: &[(&str, &str)]) {
        self.server.create_bucket(name).unwrap();
        let mut volume = manifest::volume(name, &self.here.namespace, name);
        for (key, value) in attributes {
            volume["spec"]["csi"]["volumeAttributes"][key] = (*value).into();
        }
        let claim = manifest::claim(&volume);
        let post = PostParams::default();
        let volumes = Api::<PersistentVolume>::all(self.here.client.clone());
        volumes.create(&post, &serde_json::from_value(volume).unwrap()).await.unwrap();
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.here.client.clone(), &self.here.namespace);
        claims.create(&post, &serde_json::from_value(claim).unwrap()).await.unwrap();
        eventually("the claim is bound", LIMIT, || async {
            let phase = claims.get(name).await.unwrap().status.and_then(|status| status.phase);
            Seen::some((phase.as_deref() == Some("Bound")).then_some(()), format!("{phase:?}"))
        })
        .await;
    }

    /// Starts a pod with these claims after a pause of random length: a fixed one would lock onto kubelet's rounds of a
    /// second. Returns when it was asked for.
    async fn run(&self, name: &str, claims: &[&str]) -> (Seconds, String) {
        tokio::time::sleep(timeline::random_pause()).await;
        let created = now();
        self.here.run(name, manifest::pod(claims, SCRIPT)).await;
        (created, name.to_owned())
    }
}

/// Memory that is free or could be freed, on the whole machine: what pods cost beside their containers is in it, too.
fn available_mb() -> f64 {
    megabytes("/proc/meminfo", "MemAvailable:")
}
