//! Continues the mounts of Mountpoint Pods whose container has ended and was started again, for example because it ran out
//! of memory: the new mounter gets the descriptor of the same mount.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::mountpoint_pod::MountpointPod;
use mounter::deadlines;
use mounter::handover::client::{Fetched, fetch, hand_over};
use mounter::handover::{Code, MountReply, MountRequest, Purpose, Refused, is_disconnected};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::comm;
use crate::context::Context;
use crate::descriptors::{Kept, MounterId};
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
            // That of a pod that has ended waits for another pod, as long as workloads use it.
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

/// Of a mount that an earlier node service has made. `false` if the mounter has to be asked again.
async fn fetch_descriptor(context: &Context, pod: MountpointPod, mounter: MounterId) -> bool {
    let source = context.source(&pod.name);
    let is_mounted =
        context.mounts.table().is_ok_and(|table| table.top(&source).is_some_and(|top| top.bucket));
    if !is_mounted {
        return true;
    }
    let folder = comm::path(&context.kubelet, &pod.uid);
    let until = Instant::now() + deadlines::HAND_OVER;
    match tokio::task::spawn_blocking(move || fetch(&folder, until)).await {
        Ok(Ok(Ok(Fetched { descriptor, is_served }))) => {
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
        // It starts another mount process at this moment.
        Ok(Ok(Err(refused))) if refused.code == Code::Busy => return false,
        Ok(Ok(Err(refused))) => tracing::debug!(%refused, mountpoint_pod = pod.name, "no descriptor to keep"),
        Ok(Err(error)) => tracing::debug!(%error, mountpoint_pod = pod.name, "no descriptor to keep"),
        Err(panic) => tracing::warn!(%panic, mountpoint_pod = pod.name, "cannot fetch a descriptor"),
    }
    true
}

async fn continue_mount(context: &Arc<Context>, pod: MountpointPod, kept: Kept, mounter: MounterId) {
    let _lock = context.locks.mountpoint_pod(&pod.name).await;
    // A publish may have mounted anew while this waited for the lock.
    if context.descriptors.get(&pod.uid).is_none_or(|now| !now.is_same(&kept)) {
        return;
    }
    if is_disconnected(&*kept.descriptor) {
        tracing::debug!(mountpoint_pod = pod.name, "the mount has ended");
        return context.descriptors.drop_this(&pod.uid, &kept);
    }
    let folder = comm::path(&context.kubelet, &pod.uid);
    let (descriptor, until) = (Arc::clone(&kept.descriptor), Instant::now() + deadlines::HAND_OVER);
    let request = MountRequest::only(Purpose::Continue);
    let reply =
        tokio::task::spawn_blocking(move || hand_over(&folder, &request, descriptor.as_fd(), until)).await;
    match reply {
        Ok(Ok(MountReply::Serving(serving))) => {
            context.keep_descriptor(&pod, kept.descriptor, Some(mounter));
            tracing::info!(mountpoint_pod = pod.name, version = serving.version, "serving again");
            context.metrics.deaths.inc();
            tokio::spawn(report(Arc::clone(context), pod));
        }
        // It starts another mount process at this moment.
        Ok(Ok(MountReply::Refused(Refused { code: Code::Busy, .. }) | MountReply::Left)) => {}
        Ok(Ok(MountReply::Refused(refused))) => {
            tracing::warn!(%refused, mountpoint_pod = pod.name, "cannot continue the mount, retrying");
        }
        Ok(Err(error)) => {
            tracing::warn!(%error, mountpoint_pod = pod.name, "cannot continue the mount, retrying");
        }
        Err(panic) => {
            tracing::warn!(%panic, mountpoint_pod = pod.name, "cannot continue the mount, retrying")
        }
    }
}

/// To the workloads, with the kubelet's reason.
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
