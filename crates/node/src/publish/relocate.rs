//! Moves a mount to another Mountpoint Pod, live: the pod that it is leaving may be evicted, deleted, or of another version.
//! It is the same mount with another process behind it, so that programs notice no more than a pause, and there is nothing to
//! propagate into containers.
//!
//! Each step may be the last one of this process. Until the new pod serves, the old one can continue; after that, all that is
//! left is to detach the old source.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::mountpoint_pod::MountpointPod;
use contract::names::sources_on_node;
use mounter::deadlines;
use mounter::handover::{Code, MountRequest, Purpose};

use super::error::{PublishError, kernel_error};
use super::source;
use crate::comm;
use crate::context::Context;
use crate::credentials::MountCredentials;
use crate::descriptors::Kept;
use crate::kernel;
use crate::mount_table::{Device, MountTable};
use crate::mounter_client::{self, MounterError};
use crate::request::PublishRequest;
use crate::safe_path::SafePath;

/// Between two requests to a mounter that is starting its mount process, which takes up to nine seconds.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A mount that another Mountpoint Pod serves, or has served.
#[derive(Debug)]
pub(crate) struct Movable {
    uid: String,
    kept: Kept,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Moved {
    Done,
    /// The mount is served where it is, and cannot leave now. It is asked again later.
    Stays,
    /// Only another mount can serve the workload.
    Impossible,
}

/// Names of the Mountpoint Pods whose sources are mounted at the target, the lowest first.
pub(super) fn serving(context: &Context, table: &MountTable, target: &Path) -> impl Iterator<Item = String> {
    let buckets = table.at(target).filter(|mount| mount.bucket);
    buckets.filter_map(|mount| pod_of(context, table, mount.device)).collect::<Vec<_>>().into_iter()
}

/// Name of the Mountpoint Pod with this source.
fn pod_of(context: &Context, table: &MountTable, device: Device) -> Option<String> {
    Some(context.source_of(table, device)?.file_name()?.to_str()?.to_owned())
}

/// The mount at the target, if it is not that of `to` and could be moved there.
pub(crate) fn movable(context: &Context, table: &MountTable, target: &Path, to: &str) -> Option<Movable> {
    let top = table.top_bucket(target)?;
    let from = pod_of(context, table, top.device).filter(|from| from != to)?;
    let (uid, kept) = context.descriptors.of_pod(&from)?;
    Some(Movable { uid, kept })
}

/// The mount of a Mountpoint Pod that is gone, if this one has its name and with that its source: the controller creates
/// a pod that was deleted by force again.
pub(crate) fn orphaned(context: &Context, pod: &MountpointPod) -> Option<Movable> {
    let (uid, kept) = context.descriptors.of_pod(&pod.name)?;
    (uid != pod.uid).then_some(Movable { uid, kept })
}

/// Moves the mount of another pod to this one, whose source is `safe_source`. The caller has locked this pod.
pub(super) async fn relocate(
    context: &Context,
    request: &PublishRequest,
    movable: &Movable,
    pod: &MountpointPod,
    safe_source: &SafePath,
    credentials: &MountCredentials,
) -> Result<Moved, PublishError> {
    let Movable { uid, kept } = movable;
    let _lock = context.locks.mountpoint_pod(&kept.pod).await;
    let old = context.source(&kept.pod);
    // Before the mount is left: after a failure, nothing would serve it.
    let safe_old = context.kubelet.locate(&old).map_err(kernel_error("locate", &old))?;
    let began = Instant::now();
    if let Err(outcome) = depart(context, uid).await {
        return Ok(outcome);
    }
    let bound = kernel::bind(&safe_old, safe_source, false);
    let arrived = match bound.map_err(kernel_error("bind", &context.source(&pod.name))) {
        Ok(()) => arrive(context, request, movable, pod, credentials, began).await,
        Err(error) => Err((error, Serves::No)),
    };
    if let Err((error, serves)) = arrived {
        if serves == Serves::No {
            if let Err(error) = kernel::detach(safe_source) {
                tracing::warn!(%error, mountpoint_pod = pod.name, "failed to unmount after a failed move");
            }
            go_back(context, uid, kept).await;
        }
        return Err(error);
    }
    if let Err(error) = kernel::detach(&safe_old) {
        // Draining the old pod does it, too.
        tracing::warn!(%error, mountpoint_pod = kept.pod, "cannot detach the source after a move");
    }
    Ok(Moved::Done)
}

/// Moves the mount of a pod that is gone to the one that has its name. They share source and lock: only the process behind
/// the mount changes. If that is not possible, the mount stays as it is.
pub(super) async fn adopt(
    context: &Context,
    request: &PublishRequest,
    orphaned: &Movable,
    pod: &MountpointPod,
    credentials: &MountCredentials,
) -> Result<(), PublishError> {
    let Movable { uid, kept } = orphaned;
    let began = Instant::now();
    if depart(context, uid).await.is_err() {
        return Ok(());
    }
    let arrived = arrive(context, request, orphaned, pod, credentials, began).await;
    if let Err((_, Serves::No)) = arrived {
        go_back(context, uid, kept).await;
    }
    arrived.map_err(|(error, _)| error)
}

/// Ends the mount process of the old pod, if it has not ended with the pod. Otherwise the mount does not move.
async fn depart(context: &Context, uid: &str) -> Result<(), Moved> {
    match mounter_client::leave(&context.kubelet, uid).await {
        Ok(()) => Ok(()),
        Err(error) if error.has_ended() => Ok(()),
        Err(MounterError::Refused(refused)) if !matches!(refused.code, Code::Busy | Code::TimedOut) => {
            tracing::warn!(%refused, "the mount cannot move");
            Err(Moved::Impossible)
        }
        Err(MounterError::Refused(refused)) => {
            tracing::debug!(%refused, "the mount stays for now");
            Err(Moved::Stays)
        }
        // It may still serve the mount.
        Err(error) => {
            tracing::warn!(%error, "no reply from the mounter of a mount that is to move");
            Err(Moved::Stays)
        }
    }
}

/// The mount process of the new pod continues. If not, says whether it may do so later: two mount processes must never serve
/// one mount, so the old one continues only if the new one certainly does not.
async fn arrive(
    context: &Context,
    request: &PublishRequest,
    Movable { uid, kept }: &Movable,
    pod: &MountpointPod,
    credentials: &MountCredentials,
    began: Instant,
) -> Result<(), (PublishError, Serves)> {
    let mount_request = source::mount_request_of(context, request, pod, credentials, Purpose::TakeOver).await;
    let mounter = comm::open(&context.kubelet, &pod.uid).ok().as_ref().and_then(comm::mounter);
    let reply = mounter_client::take_over(&context.kubelet, &pod.uid, mount_request, kept.clone()).await;
    if let Err(error) = reply.map_err(source::failed(context, pod)) {
        match settled(context, pod).await {
            // Of this hand-over or of an earlier one.
            Serves::Yes => {
                tracing::warn!(%error, mountpoint_pod = pod.name, "reply lost, but the pod serves the mount");
            }
            serves => return Err((error, serves)),
        }
    }
    context.keep_descriptor(pod, Arc::clone(&kept.descriptor), mounter);
    context.descriptors.drop(uid);
    context.metrics.moves.inc();
    let milliseconds = began.elapsed().as_millis();
    let (volume_id, from, to) = (&request.volume_id, &kept.pod, &pod.name);
    let trace_id = request.trace_id();
    tracing::info!(volume_id, from, mountpoint_pod = to, trace_id, milliseconds, "mount moved");
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Serves {
    Yes,
    No,
    /// It may be starting.
    Unknown,
}

/// Whether a mount process of this pod serves a mount.
async fn serves(context: &Context, pod: &MountpointPod) -> Serves {
    match mounter_client::fetch(&context.kubelet, &pod.uid).await {
        Ok(fetched) if fetched.is_served => Serves::Yes,
        Ok(_) => Serves::No,
        Err(error) if error.has_ended() => Serves::No,
        Err(error @ MounterError::Refused(_)) if !error.is_busy() => Serves::No,
        Err(_) => Serves::Unknown,
    }
}

/// The old pod serves the mount again, if it still can. Otherwise programs wait for the next attempt.
async fn go_back(context: &Context, uid: &str, kept: &Kept) {
    let (request, descriptor) = (MountRequest::only(Purpose::Continue), Arc::clone(&kept.descriptor));
    match mounter_client::hand_over(&context.kubelet, uid, request, descriptor).await {
        Ok(_) => tracing::info!(mountpoint_pod = kept.pod, "the mount did not move and is served again"),
        Err(error) => {
            tracing::warn!(%error, mountpoint_pod = kept.pod, "the mount is not served, retrying");
        }
    }
}

/// An earlier node service has ended while it moved the mount of this pod, which has left it. Either the next pod serves it
/// already, or this one continues. Does nothing without a mount table: it could end what the next pod serves.
pub(crate) async fn resume(context: &Context, pod: &MountpointPod) -> io::Result<()> {
    let _lock = context.locks.mountpoint_pod(&pod.name).await;
    let (source, sources) = (context.source(&pod.name), sources_on_node(context.kubelet.path()));
    let table = context.mounts.table()?;
    let others = table.copies(&source).filter(|copy| copy.point.starts_with(&sources));
    for other in others.map(|copy| copy.point.clone()).collect::<Vec<_>>() {
        let is_served = match settled_at(context, &other).await {
            Serves::Yes => true,
            Serves::No => false,
            Serves::Unknown => {
                tracing::warn!(mountpoint_pod = pod.name, "a move was interrupted; outcome unknown");
                return Ok(());
            }
        };
        let leftover = if is_served { &source } else { &other };
        if let Err(error) = context.kubelet.locate(leftover).and_then(|path| kernel::detach(&path)) {
            tracing::warn!(%error, source = %leftover.display(), "cannot detach what a move has left");
        }
        if is_served {
            tracing::info!(mountpoint_pod = pod.name, "an interrupted move is complete");
            context.descriptors.drop(&pod.uid);
            return Ok(());
        }
    }
    if let Some((uid, kept)) = context.descriptors.of_pod(&pod.name) {
        go_back(context, &uid, &kept).await;
    }
    Ok(())
}

/// Whether the Mountpoint Pod with this source serves a mount.
async fn settled_at(context: &Context, source: &Path) -> Serves {
    match source.file_name().and_then(|name| context.cache.pod(name.to_str()?)) {
        Some(pod) => settled(context, &pod).await,
        None => Serves::No,
    }
}

/// Waits until it is known, as long as a mounter may take to give up a mount process that does not report.
async fn settled(context: &Context, pod: &MountpointPod) -> Serves {
    let until = Instant::now() + deadlines::HAND_OVER;
    loop {
        match serves(context, pod).await {
            Serves::Unknown if Instant::now() < until => tokio::time::sleep(POLL_INTERVAL).await,
            known => return known,
        }
    }
}
