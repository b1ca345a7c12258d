//! What a step looks at: one claim of a pod.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use crate::snapshot::Snapshot;
use crate::workload::has_volumes;

#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) pod: &'a Pod,
    pub(crate) claim: &'a str,
}

impl Subject<'_> {
    pub(super) fn namespace(self) -> String {
        self.pod.namespace().unwrap_or_default()
    }

    /// A pod whose volumes are mounted needs nothing of what is only for mounting.
    pub(super) fn is_mounted(self) -> bool {
        has_volumes(self.pod)
    }
}
