//! Waits for the Mountpoint Pod that a workload is assigned to, and for its mounter.

use std::time::{Duration, Instant};

use contract::mountpoint_pod::MountpointPod;
use contract::slim::SlimPod;
use kube::ResourceExt as _;

use crate::comm;
use crate::context::Context;
use crate::publish::error::{PublishError, kernel_error};
use crate::request::PublishRequest;

/// The scheduler needs milliseconds. If a Mountpoint Pod is not on this node by then, its status may say why.
const SCHEDULED_WITHIN: Duration = Duration::from_secs(2);

/// Waits until an attachment lists the workload and the Mountpoint Pod it names is on this node.
pub(crate) async fn wait_for_mountpoint_pod(
    context: &Context,
    request: &PublishRequest,
    until: Instant,
) -> Result<MountpointPod, PublishError> {
    let PublishRequest { volume_name, volume_id, pod_uid, .. } = request;
    let synced = tokio::time::timeout_at(until.into(), context.cache.wait_until_synced()).await;
    synced.map_err(|_| PublishError::CacheNotSynced)?;
    let mut changes = context.cache.changes();
    loop {
        changes.borrow_and_update();
        let name = context.cache.assignment(volume_name, volume_id, pod_uid);
        if let Some(pod) = name.as_deref().and_then(|name| context.cache.slim_pod(name)) {
            return trusted(&pod, context.cache.node(), volume_name)
                .map_err(|reason| PublishError::PodNotTrusted { pod: pod.name_any(), reason });
        }
        let look_again = if name.is_some() { until.min(Instant::now() + SCHEDULED_WITHIN) } else { until };
        if tokio::time::timeout_at(look_again.into(), changes.changed()).await.is_ok() {
            continue;
        }
        let Some(pod) = name else {
            return Err(PublishError::NotAttached { volume: volume_name.clone(), pod_uid: pod_uid.clone() });
        };
        if let Some(reason) = context.cache.unscheduled_failure(&pod).await {
            let namespace = context.installation.mountpoint_namespace.clone();
            return Err(PublishError::PodCannotStart { pod, namespace, reason });
        }
        if Instant::now() >= until {
            return Err(PublishError::PodMissing(pod));
        }
    }
}

/// The right to write attachments must not be enough to have descriptors and keys sent to any pod.
fn trusted(pod: &SlimPod, node: &str, volume_name: &str) -> Result<MountpointPod, &'static str> {
    let pod = MountpointPod::of(pod).ok_or("it does not have the driver's labels")?;
    if pod.node.as_deref() != Some(node) {
        Err("it is not on this node")
    } else if pod.volume_name.as_ref().is_some_and(|name| name != volume_name) {
        Err("it belongs to another volume")
    } else {
        Ok(pod)
    }
}

/// Waits until the mounter listens, or until the pod's status says why it never will.
pub(crate) async fn wait_for_mounter(
    context: &Context,
    pod: &MountpointPod,
    until: Instant,
) -> Result<(), PublishError> {
    let (name, namespace) = (|| pod.name.clone(), || context.installation.mountpoint_namespace.clone());
    let mut changes = context.cache.changes();
    let listening = comm::wait_for_mounter(&context.kubelet, &pod.uid);
    tokio::pin!(listening);
    loop {
        changes.borrow_and_update();
        let current = context.cache.pod(&pod.name).filter(|current| current.uid == pod.uid);
        if let Some(reason) = current.as_ref().and_then(|current| current.start_failure.clone()) {
            return Err(PublishError::PodCannotStart { pod: name(), namespace: namespace(), reason });
        }
        if current.is_none_or(|current| current.has_ended()) {
            return Err(PublishError::PodEnded(name()));
        }
        tokio::select! {
            listens = &mut listening => {
                return listens.map_err(kernel_error("watch", &comm::path(&context.kubelet, &pod.uid)));
            }
            _ = changes.changed() => {}
            () = tokio::time::sleep_until(until.into()) => {
                return Err(PublishError::MounterNotListening { pod: name(), namespace: namespace() });
            }
        }
    }
}
