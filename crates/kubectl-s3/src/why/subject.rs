//! What a step looks at: one claim of a pod.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use crate::installation::CONTROLLER;
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

    pub(super) fn describe_pod(self) -> String {
        format!("kubectl describe pod -n {} {}", self.namespace(), self.pod.name_any())
    }

    /// `kubectl logs` takes one namespace, which is the release's.
    pub(super) fn controller_logs(self) -> String {
        let installed = self.snapshot.installation().map(|it| it.namespace);
        match installed.or_else(|| self.snapshot.controllers.first()?.namespace()) {
            // All replicas, because only the leader says something. With a selector, kubectl shows ten lines of each.
            Some(namespace) => {
                format!("kubectl logs -n {namespace} -l app={CONTROLLER} --prefix --tail=200")
            }
            None => format!("kubectl get pods -A -l app={CONTROLLER}"),
        }
    }

    /// A pod whose volumes are mounted needs nothing of what is only for mounting.
    pub(super) fn is_mounted(self) -> bool {
        has_volumes(self.pod)
    }
}
