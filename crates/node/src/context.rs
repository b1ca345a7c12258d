//! What every operation works with. It decides nothing.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use contract::mountpoint_pod::MountpointPod;
use contract::names::{source_on_node, sources_on_node};
use k8s_openapi::jiff::Timestamp;
use service::driver_identity::DriverIdentity;
use service::keys::DriverKeys;

use crate::comm;
use crate::descriptors::{KeptDescriptors, MounterId, SurvivingMount};
use crate::events::MountEvents;
use crate::flags::{Addressing, Flags};
use crate::liveness::LivenessProbe;
use crate::locks::Locks;
use crate::metrics::Metrics;
use crate::mount_table::{Device, MountTable};
use crate::mounts::Mounts;
use crate::node_cache::NodeCache;
use crate::published::PublishedRequests;
use crate::safe_path::Root;

pub struct Context {
    pub kubelet: Root,
    pub cache: NodeCache,
    pub mounts: Mounts,
    pub liveness: LivenessProbe,
    pub locks: Locks,
    pub descriptors: KeptDescriptors,
    pub installation: Installation,
    pub published: PublishedRequests,
    pub events: MountEvents,
    pub metrics: Metrics,
}

/// What is the same for every volume of this installation.
#[derive(Clone, Debug)]
pub struct Installation {
    pub driver_keys: DriverKeys,
    /// Used where there are no such keys.
    pub driver_identity: Option<DriverIdentity>,
    /// Environment of every mount process: endpoint, region, CA bundle.
    pub environment: BTreeMap<String, String>,
    pub mountpoint_namespace: String,
    pub addressing: Addressing,
    /// Region of the installation; may be empty.
    pub region: String,
    /// STS server of the installation; Amazon's for the volume's region if none.
    pub sts_endpoint_url: Option<String>,
    /// Agent of EKS Pod Identity, if the installation uses it.
    pub pod_identity_agent: Option<String>,
}

impl Installation {
    pub fn of(flags: &Flags) -> Self {
        let given = |url: &str| Some(url.to_owned()).filter(|url| !url.is_empty());
        Self {
            driver_keys: DriverKeys { folder: flags.credentials_dir.clone() },
            driver_identity: flags.identity.identity(),
            environment: flags.environment(),
            mountpoint_namespace: flags.mountpoint_namespace.clone(),
            addressing: flags.s3_addressing,
            region: flags.region.clone(),
            sts_endpoint_url: given(&flags.identity.sts_endpoint_url),
            pod_identity_agent: flags.pod_identity_agent.as_deref().and_then(given),
        }
    }
}

impl Context {
    /// The source mount of a Mountpoint Pod.
    pub fn source(&self, mountpoint_pod: &str) -> PathBuf {
        source_on_node(self.kubelet.path(), mountpoint_pod)
    }

    /// The source mount of a file system that is mounted at targets.
    pub fn source_of<'a>(&self, table: &'a MountTable, device: Device) -> Option<&'a Path> {
        let sources = sources_on_node(self.kubelet.path());
        let mut points =
            table.0.iter().filter(|mount| mount.device == device).map(|mount| mount.point.as_path());
        points.find(|point| point.starts_with(&sources))
    }

    /// The folder shared with the Mountpoint Pod that serves this source.
    pub fn comm_of(&self, source: &Path) -> Option<OwnedFd> {
        let pod = self.cache.pod(source.file_name()?.to_str()?)?;
        comm::open(&self.kubelet, &pod.uid).ok()
    }

    /// Why the mount at the target has ended, if its mounter reports that.
    pub fn reason_of_end(&self, table: &MountTable, target: &Path) -> Option<String> {
        let source = self.source_of(table, table.top_bucket(target)?.device)?;
        comm::reason_of_end(&self.comm_of(source)?)
    }

    /// Keeps a copy of the descriptor of the pod's mount, if another mount process could continue it.
    pub fn keep_descriptor(&self, pod: &MountpointPod, descriptor: Arc<OwnedFd>, mounter: Option<MounterId>) {
        let folder = comm::open(&self.kubelet, &pod.uid)
            .ok()
            .filter(comm::has_journal)
            .and_then(|comm| comm::successor_folder(&comm).inspect_err(not_kept).ok());
        match mounter.zip(folder) {
            Some((mounter, folder)) => {
                let (pod_name, successor_folder) = (pod.name.clone(), Arc::new(folder));
                let served_since = Timestamp::now();
                let kept =
                    SurvivingMount { descriptor, mounter, pod: pod_name, served_since, successor_folder };
                self.descriptors.keep(&pod.uid, kept);
            }
            // It ends with its mount process.
            None => self.descriptors.drop(&pod.uid),
        }
    }

    /// Forgets a target that is no longer published.
    pub fn forget(&self, target: &Path) {
        self.published.remove(target);
        self.events.forget(target);
    }
}

fn not_kept(error: &std::io::Error) {
    tracing::warn!(%error, "the mount will not survive its Mountpoint Pod: cannot keep its journal");
}
