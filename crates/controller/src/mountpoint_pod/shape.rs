//! Volumes that need the same pod.

use contract::volume::{Cache, Resources, Volume};

/// What of a pod's spec differs between volumes. The default is what most volumes have.
#[derive(Default)]
pub(crate) struct Shape {
    pub(crate) service_account: Option<String>,
    pub(crate) resources: Resources,
    pub(crate) cache: Cache,
}

impl Shape {
    pub(crate) fn of(volume: &Volume) -> Self {
        let Volume { service_account, resources, cache, .. } = volume.clone();
        Self { service_account, resources, cache }
    }
}
