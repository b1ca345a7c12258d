//! The figures of each mount, read when they are scraped: from the folders shared with Mountpoint Pods, which no one else can
//! reach. What a pod writes there becomes numbers; every label is what the node itself knows.

use std::ffi::OsStr;
use std::fmt::{self, Error};

use contract::names::{annotation, sources_on_node};
use kube::ResourceExt as _;
use mounter::figures::{BOUNDS, Figures, uptime};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;

use crate::comm;
use crate::mounts::Mounts;
use crate::node_cache::NodeCache;
use crate::safe_path::Root;

type Label<'a> = (&'static str, &'a str);
/// There are no exemplars, but the encoder has to know the type of their labels.
type NoLabels = Vec<(String, String)>;
/// The figure of a metric, at this moment, if the mount has it.
type Figure = fn(&Figures, u64) -> Option<u64>;

pub struct MountFigures {
    pub mounts: Mounts,
    pub cache: NodeCache,
    pub kubelet: Root,
}

struct Mount {
    volume: String,
    /// Of the claim.
    namespace: String,
    claim: String,
    node: String,
    mountpoint_pod: String,
    figures: Figures,
}

impl MountFigures {
    /// Those whose source is mounted. A mount that has not written any figures yet is left out.
    fn read(&self) -> Vec<Mount> {
        let table = self.mounts.table().unwrap_or_default();
        let folder = sources_on_node(self.kubelet.path());
        let sources = table.0.iter().filter(|mount| {
            mount.bucket && mount.point.parent() == Some(folder.as_path()) && table.is_on_top(mount)
        });
        sources.filter_map(|mount| self.mount(mount.point.file_name().and_then(OsStr::to_str)?)).collect()
    }

    fn mount(&self, mountpoint_pod: &str) -> Option<Mount> {
        let pod = self.cache.slim_pod(mountpoint_pod)?;
        let annotation =
            |name| pod.annotations().get(name).map(String::as_str).filter(is_plain).unwrap_or_default();
        // Mountpoint Pods of older drivers do not know it.
        let (namespace, claim) = annotation(annotation::CLAIM).split_once('/').unwrap_or_default();
        Some(Mount {
            volume: annotation(annotation::VOLUME_NAME).to_owned(),
            namespace: namespace.to_owned(),
            claim: claim.to_owned(),
            node: self.cache.node().to_owned(),
            mountpoint_pod: mountpoint_pod.to_owned(),
            figures: comm::figures(&comm::open(&self.kubelet, pod.metadata.uid.as_deref()?).ok()?)?,
        })
    }
}

/// Labels are written as they are.
fn is_plain(names: &&str) -> bool {
    names.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-./".contains(&byte))
}

impl fmt::Debug for MountFigures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("MountFigures")
    }
}

impl Mount {
    fn labels<'a>(&'a self, own: &[Label<'a>]) -> Vec<Label<'a>> {
        let mut labels = vec![
            ("volume", self.volume.as_str()),
            ("namespace", self.namespace.as_str()),
            ("persistentvolumeclaim", self.claim.as_str()),
            ("node", self.node.as_str()),
            ("mountpoint_pod", self.mountpoint_pod.as_str()),
        ];
        labels.extend(own);
        labels
    }

    /// A sample of a counter or gauge.
    fn encode(
        &self,
        metric: &mut MetricEncoder<'_>,
        kind: MetricType,
        own: &[Label<'_>],
        value: u64,
    ) -> Result<(), Error> {
        let labels = self.labels(own);
        let mut metric = metric.encode_family(&labels)?;
        match kind {
            MetricType::Counter => metric.encode_counter(&value, None::<&Exemplar<NoLabels, f64>>),
            _ => metric.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX)),
        }
    }
}

impl Collector for MountFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let (mounts, now) = (self.read(), uptime());
        if mounts.is_empty() {
            return Ok(());
        }
        let mut metric = encoder.encode_descriptor(
            "mount_s3_requests",
            "Attempts at requests of a mount to S3, by operation and HTTP status",
            None,
            MetricType::Counter,
        )?;
        for mount in &mounts {
            for (operation, requests) in &mount.figures.requests {
                for (code, count) in &requests.codes {
                    let own = [("operation", operation.as_str()), ("code", code.as_str())];
                    mount.encode(&mut metric, MetricType::Counter, &own, *count)?;
                }
            }
        }
        let mut metric = encoder.encode_descriptor(
            "mount_s3_request_seconds",
            "Duration of attempts at requests of a mount to S3",
            None,
            MetricType::Histogram,
        )?;
        for mount in &mounts {
            for (operation, requests) in &mount.figures.requests {
                let buckets: Vec<(f64, u64)> =
                    BOUNDS.into_iter().chain([f64::INFINITY]).zip(requests.durations).collect();
                let (sum, count) = (requests.microseconds as f64 / 1e6, requests.durations.iter().sum());
                let labels = mount.labels(&[("operation", operation.as_str())]);
                metric.encode_family(&labels)?.encode_histogram::<NoLabels>(sum, count, &buckets, None)?;
            }
        }
        let mut metric = encoder.encode_descriptor(
            "mount_cache_blocks",
            "Blocks that a mount looked for in its cache",
            None,
            MetricType::Counter,
        )?;
        for mount in mounts.iter().filter(|mount| mount.figures.cache_hits + mount.figures.cache_misses > 0) {
            let Figures { cache_hits, cache_misses, .. } = mount.figures;
            for (result, count) in [("hit", cache_hits), ("miss", cache_misses)] {
                mount.encode(&mut metric, MetricType::Counter, &[("result", result)], count)?;
            }
        }
        let single: [(&str, &str, MetricType, Figure); 5] = [
            ("mount_read_bytes", "Bytes read from a mount", MetricType::Counter, |it, _| Some(it.read_bytes)),
            ("mount_written_bytes", "Bytes written to a mount", MetricType::Counter, |it, _| {
                Some(it.written_bytes)
            }),
            ("mount_uploads", "Uploads of a mount in progress", MetricType::Gauge, |it, _| Some(it.uploads)),
            (
                "mount_oldest_request_seconds",
                "Age of a mount's oldest waiting request",
                MetricType::Gauge,
                |it, now| Some(it.oldest_wait(now)),
            ),
            (
                "mount_keys_expire_timestamp_seconds",
                "When the temporary keys of a mount expire",
                MetricType::Gauge,
                |it, _| it.keys_expire,
            ),
        ];
        for (name, help, kind, value) in single {
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for mount in &mounts {
                if let Some(value) = value(&mount.figures, now) {
                    mount.encode(&mut metric, kind, &[], value)?;
                }
            }
        }
        Ok(())
    }
}
