//! What every operation works with. It decides nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use contract::names::source_on_node;
use service::driver_identity::DriverIdentity;
use service::keys::DriverKeys;

use crate::comm;
use crate::events::MountEvents;
use crate::flags::Addressing;
use crate::liveness::LivenessProbe;
use crate::locks::Locks;
use crate::metrics::Metrics;
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

impl Context {
    /// The source mount of a Mountpoint Pod.
    pub fn source(&self, mountpoint_pod: &str) -> PathBuf {
        source_on_node(self.kubelet.path(), mountpoint_pod)
    }

    /// Why the mount of this source has no valid keys any more, if so.
    pub fn expired_keys(&self, source: &Path) -> Option<String> {
        let pod = self.cache.pod(source.file_name()?.to_str()?)?;
        comm::expired_keys(&comm::open(&self.kubelet, &pod.uid).ok()?)
    }

    /// Forgets a target that is no longer published.
    pub fn forget(&self, target: &Path) {
        self.published.remove(target);
        self.events.forget(target);
    }
}
