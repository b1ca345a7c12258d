//! Continues the mounts of Mountpoint Pods whose container has ended and was started again, for example because it ran out
//! of memory: the new mounter gets the descriptor of the same mount.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use contract::mountpoint_pod::MountpointPod;
use mounter::handover::client::Fetched;
use mounter::handover::{MountRequest, Purpose, is_disconnected};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::comm;
use crate::context::Context;
use crate::descriptors::{Kept, MounterId};
use crate::mounter_client;
use crate::publish::relocate;

/// A mounter listens a moment after the kubelet has reported its container, and nothing reports that.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// For the kubelet's report of why the container has ended.
const REASON_WITHIN: Duration = Duration::from_secs(10);

/// What is going on with Mountpoint Pods, by their UIDs.
#[derive(Debug, Default)]
struct Progress {
    /// Those whose mounter is being spoken to. A slow one keeps no other waiting.
    underway: HashSet<String>,
    /// Mounters that have said whether they have a descriptor: once is enough.
    asked: HashMap<String, MounterId>,
}

pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    tokio::select! {
        // With empty caches, every mount looks abandoned.
        () = context.cache.wait_until_synced() => {}
        () = stop.cancelled() => return,
    }
    let mut changes = context.cache.changes();
    let progress: Arc<Mutex<Progress>> = Arc::default();
    loop {
        changes.borrow_and_update();
        let pods: Vec<_> = context.cache.pods().into_iter().filter(|pod| !pod.has_ended()).collect();
        let table = context.mounts.table().unwrap_or_default();
        context.descriptors.retain(|uid, kept| {
            // The descriptor of a pod that has ended waits for another pod, as long as workloads use the mount.
            let is_used = || table.copies(&context.source(&kept.pod)).next().is_some();
            pods.iter().any(|pod| pod.uid == uid) || (kept.can_continue() && is_used())
        });
        progress.lock().asked.retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));
        for pod in pods {
            look_at(&context, &progress, pod);
        }
        tokio::select! {
            _ = changes.changed() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Begins what there is to do with a pod, unless that is under way.
fn look_at(context: &Arc<Context>, progress: &Arc<Mutex<Progress>>, pod: MountpointPod) {
    let Some(mounter) = mounter(context, &pod) else { return };
    let kept = context.descriptors.get(&pod.uid);
    if let Some(kept) = &kept
        && !has_journal(context, &pod)
    {
        tracing::warn!(mountpoint_pod = pod.name, "the mount ends with its mount process: it has no journal");
        return context.descriptors.drop_this(&pod.uid, kept);
    }
    {
        let mut progress = progress.lock();
        let is_done = match &kept {
            Some(kept) => kept.mounter == mounter,
            None => progress.asked.get(&pod.uid) == Some(&mounter),
        };
        if is_done || !progress.underway.insert(pod.uid.clone()) {
            return;
        }
    }
    let (context, progress) = (Arc::clone(context), Arc::clone(progress));
    tokio::spawn(async move {
        let uid = pod.uid.clone();
        let has_answered = match kept {
            Some(kept) => {
                continue_mount(&context, pod, kept, mounter).await;
                false
            }
            None => fetch_descriptor(&context, pod, mounter).await,
        };
        let mut progress = progress.lock();
        progress.underway.remove(&uid);
        if has_answered {
            progress.asked.insert(uid, mounter);
        }
    });
}

fn mounter(context: &Context, pod: &MountpointPod) -> Option<MounterId> {
    comm::mounter(&comm::open(&context.kubelet, &pod.uid).ok()?)
}

fn has_journal(context: &Context, pod: &MountpointPod) -> bool {
    comm::open(&context.kubelet, &pod.uid).is_ok_and(|comm| comm::has_journal(&comm))
}

/// Fetches the descriptor of a mount that an earlier node service has made. `false` if the mounter has to be asked again.
async fn fetch_descriptor(context: &Context, pod: MountpointPod, mounter: MounterId) -> bool {
    let source = context.source(&pod.name);
    if !context.mounts.table().is_ok_and(|table| table.top_bucket(&source).is_some()) {
        return true;
    }
    match mounter_client::fetch(&context.kubelet, &pod.uid).await {
        Ok(Fetched { descriptor, is_served }) => {
            // Without one, no other process can continue the mount, or one in another pod already does.
            if has_journal(context, &pod) {
                let _lock = context.locks.mountpoint_pod(&pod.name).await;
                // A publish may have made another mount meanwhile.
                if context.descriptors.get(&pod.uid).is_none() {
                    context.keep_descriptor(&pod, Arc::new(descriptor), Some(mounter));
                }
            }
            tracing::info!(mountpoint_pod = pod.name, is_served, "descriptor fetched");
            if !is_served {
                relocate::resume(context, &pod).await;
            }
        }
        Err(error) if error.is_busy() => return false,
        Err(error) => tracing::debug!(%error, mountpoint_pod = pod.name, "no descriptor to keep"),
    }
    true
}

async fn continue_mount(context: &Arc<Context>, pod: MountpointPod, kept: Kept, mounter: MounterId) {
    let _lock = context.locks.mountpoint_pod(&pod.name).await;
    // A publish may have made another mount while this waited for the lock.
    if context.descriptors.get(&pod.uid).is_none_or(|now| !now.is_same(&kept)) {
        return;
    }
    if is_disconnected(&*kept.descriptor) {
        tracing::debug!(mountpoint_pod = pod.name, "the mount has ended");
        return context.descriptors.drop_this(&pod.uid, &kept);
    }
    let (request, descriptor) = (MountRequest::only(Purpose::Continue), Arc::clone(&kept.descriptor));
    match mounter_client::hand_over(&context.kubelet, &pod.uid, request, descriptor).await {
        Ok(serving) => {
            context.keep_descriptor(&pod, kept.descriptor, Some(mounter));
            tracing::info!(mountpoint_pod = pod.name, version = serving.version, "serving again");
            context.metrics.deaths.inc();
            tokio::spawn(report(Arc::clone(context), pod));
        }
        Err(error) if error.is_busy() => {}
        Err(error) => {
            tracing::warn!(%error, mountpoint_pod = pod.name, "cannot continue the mount, retrying");
        }
    }
}

/// Reports the death to the workloads, with the kubelet's reason.
async fn report(context: Arc<Context>, pod: MountpointPod) {
    let mut changes = context.cache.changes();
    let reason = async {
        loop {
            changes.borrow_and_update();
            let now = context.cache.pod(&pod.name).filter(|now| now.uid == pod.uid);
            if let Some(reason) = now.and_then(|now| now.last_end) {
                return reason;
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    };
    let reason = tokio::time::timeout(REASON_WITHIN, reason).await;
    let reason = reason.unwrap_or_else(|_| "the kubelet reports no reason".to_owned());
    let reason = format!("the container of Mountpoint Pod `{}` ended: {reason}", pod.name);
    let Ok(table) = context.mounts.table() else { return };
    let source = context.source(&pod.name);
    for target in table.copies(&source).filter_map(|copy| context.published.get(&copy.point)) {
        context.events.survived(&target, &reason);
    }
}
