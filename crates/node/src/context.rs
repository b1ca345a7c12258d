//! What every operation works with. It decides nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use contract::names::source_on_node;
use service::keys::DriverKeys;

use crate::events::MountEvents;
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
    /// Environment of every mount process: endpoint, region, CA bundle.
    pub environment: BTreeMap<String, String>,
    pub mountpoint_namespace: String,
}

impl Context {
    /// The source mount of a Mountpoint Pod.
    pub fn source(&self, mountpoint_pod: &str) -> PathBuf {
        source_on_node(self.kubelet.path(), mountpoint_pod)
    }

    /// Forgets a target that is no longer published.
    pub fn forget(&self, target: &Path) {
        self.published.remove(target);
        self.events.forget(target);
    }
}
