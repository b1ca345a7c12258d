//! Logs of the driver's pods and of the Mountpoint Pods. Never those of workloads.

use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, LogParams};
use kube::{Api, Client, ResourceExt as _};

use crate::answer::answer;
use crate::snapshot::Snapshot;
use crate::workload::is_ready;

/// What is kept of each container's log, from the end.
const LINES: i64 = 5000;
const BYTES: i64 = 4 << 20;
/// Of [`BYTES`] each, so that at most 32 MiB are in memory.
const AT_ONCE: usize = 8;

/// In the order in which their logs are read: controllers, because they decide, then pods that are not ready.
pub(super) async fn pods(client: &Client, snapshot: &Snapshot) -> Vec<Pod> {
    let mounts = Api::<Pod>::namespaced(client.clone(), &snapshot.mountpoint_namespace);
    let mounts = answer(mounts.list(&ListParams::default())).await.map(|list| list.items).unwrap_or_default();
    ranked(snapshot, mounts)
}

fn ranked(snapshot: &Snapshot, mounts: Vec<Pod>) -> Vec<Pod> {
    let others = snapshot.node_services.iter().cloned().chain(mounts);
    let (ready, unready): (Vec<Pod>, Vec<Pod>) = others.partition(is_ready);
    snapshot.controllers.iter().cloned().chain(unready).chain(ready).collect()
}

/// Path in the archive, and content, of each log that there is.
pub(super) fn read(client: &Client, pods: &[Pod]) -> impl Stream<Item = (String, String)> {
    let logs: Vec<_> = pods.iter().flat_map(of_pod).map(|log| log.read(client.clone())).collect();
    stream::iter(logs).buffered(AT_ONCE).filter_map(async |log| log)
}

struct Log {
    namespace: String,
    pod: String,
    container: String,
    /// Of the container that ran before the present one.
    previous: bool,
}

fn of_pod(pod: &Pod) -> Vec<Log> {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let lives = containers.flat_map(|container| [(&container.name, false), (&container.name, true)]);
    lives
        .map(|(container, previous)| Log {
            namespace: namespace.clone(),
            pod: name.clone(),
            container: container.clone(),
            previous,
        })
        .collect()
}

impl Log {
    /// Most containers have no previous life.
    async fn read(self, client: Client) -> Option<(String, String)> {
        let Self { namespace, pod, container, previous } = self;
        let params = LogParams {
            container: Some(container.clone()),
            previous,
            tail_lines: Some(LINES),
            limit_bytes: Some(BYTES),
            timestamps: true,
            ..LogParams::default()
        };
        let log = answer(Api::<Pod>::namespaced(client, &namespace).logs(&pod, &params)).await.ok()?;
        let suffix = if previous { ".previous" } else { "" };
        Some((format!("logs/{namespace}/{pod}/{container}{suffix}.log"), log))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::why::scene::{driver_pod, scene};

    #[test]
    fn pods_with_problems_come_before_those_without() {
        let mut snapshot = scene();
        snapshot.node_services.push(driver_pod("s3-csi-node-2", false));
        let mounts = vec![driver_pod("mp-1", true), driver_pod("mp-2", false)];
        let names: Vec<String> = ranked(&snapshot, mounts).iter().map(Pod::name_any).collect();
        assert_eq!(names, ["s3-csi-controller-1", "s3-csi-node-2", "mp-2", "s3-csi-node-1", "mp-1"]);
    }
}
