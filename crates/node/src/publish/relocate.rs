//! Moves a mount to another Mountpoint Pod, live: the pod that it is leaving may be evicted, deleted, or of another version. It is
//! the same mount with another process behind it, so that programs notice no more than a pause, and there is nothing to
//! propagate into containers.
//!
//! Each step may be the last one of this process. Until the new pod serves, the old one can go on; after that, all that is
//! left is to detach the old source.

use std::io::ErrorKind;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::mountpoint_pod::MountpointPod;
use contract::names::sources_on_node;
use mounter::deadlines;
use mounter::handover::client::{Fetched, HandOverError, fetch, hand_over, leave, take_over};
use mounter::handover::{Code, MountReply, MountRequest, Purpose};

use super::error::{PublishError, kernel_error};
use super::source;
use crate::comm;
use crate::context::Context;
use crate::credentials::MountCredentials;
use crate::descriptors::Kept;
use crate::kernel;
use crate::mount_table::{Device, MountTable};
use crate::request::PublishRequest;
use crate::safe_path::SafePath;

/// Between looks whether a mounter has started its mount process.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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
    let sources = sources_on_node(context.kubelet.path());
    let source = table.0.iter().find(|mount| mount.device == device && mount.point.starts_with(&sources));
    Some(source?.point.file_name()?.to_str()?.to_owned())
}

/// The mount at the target, if it is not that of `to` and could be moved there.
pub(crate) fn movable(context: &Context, table: &MountTable, target: &Path, to: &str) -> Option<Movable> {
    let top = table.top(target).filter(|top| top.bucket)?;
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

/// Hands that mount over. It stays where it is. The caller has locked the name of both.
pub(super) async fn inherit(
    context: &Context,
    request: &PublishRequest,
    Movable { uid, kept }: &Movable,
    pod: &MountpointPod,
    credentials: &MountCredentials,
) -> Result<(), PublishError> {
    match depart(context, uid).await {
        Departure::Left => {}
        Departure::Refused | Departure::Unsupported => return Ok(()),
    }
    if let Err((error, new_pod_serves)) = arrive(context, request, kept, pod, credentials).await {
        if new_pod_serves == Serves::No {
            go_back(context, uid, kept).await;
        }
        return Err(error);
    }
    context.descriptors.drop(uid);
    context.metrics.moves.inc();
    let (volume_id, mountpoint_pod) = (&request.volume_id, &pod.name);
    tracing::info!(volume_id, mountpoint_pod, "mount moved to the pod that was created again");
    Ok(())
}

/// The caller has locked the Mountpoint Pod that the mount moves to.
pub(super) async fn relocate(
    context: &Context,
    request: &PublishRequest,
    Movable { uid, kept }: &Movable,
    pod: &MountpointPod,
    safe_source: &SafePath,
    credentials: &MountCredentials,
) -> Result<Moved, PublishError> {
    let _lock = context.locks.mountpoint_pod(&kept.pod).await;
    let began = Instant::now();
    match depart(context, uid).await {
        Departure::Left => {}
        Departure::Refused => return Ok(Moved::Stays),
        Departure::Unsupported => return Ok(Moved::Impossible),
    }
    let (old, new) = (context.source(&kept.pod), context.source(&pod.name));
    let safe_old = context.kubelet.locate(&old).map_err(kernel_error("locate", &old))?;
    let bound = kernel::bind(&safe_old, safe_source, false).map_err(kernel_error("bind", &new));
    let arrived = match bound {
        Ok(()) => arrive(context, request, kept, pod, credentials).await,
        Err(error) => Err((error, Serves::No)),
    };
    let (error, new_pod_serves) = match arrived {
        Ok(()) => {
            if let Err(error) = kernel::detach(&safe_old) {
                // Draining the old pod does it, too.
                tracing::warn!(%error, mountpoint_pod = kept.pod, "cannot detach the source after a move");
            }
            context.descriptors.drop(uid);
            context.metrics.moves.inc();
            let milliseconds = began.elapsed().as_millis();
            let (volume_id, from, to) = (&request.volume_id, &kept.pod, &pod.name);
            tracing::info!(volume_id, from, mountpoint_pod = to, milliseconds, "mount moved");
            return Ok(Moved::Done);
        }
        Err(failed) => failed,
    };
    // Two mount processes must never serve one mount: the old one goes on only if the new one certainly does not.
    if new_pod_serves == Serves::No {
        if let Err(error) = kernel::detach(safe_source) {
            tracing::warn!(%error, mountpoint_pod = pod.name, "failed to unmount after a failed move");
        }
        go_back(context, uid, kept).await;
    }
    Err(error)
}

enum Departure {
    /// Nothing serves the mount.
    Left,
    Refused,
    Unsupported,
}

/// The mount process of the old pod ends, if it has not ended with the pod.
async fn depart(context: &Context, uid: &str) -> Departure {
    let (folder, until) = (comm::path(&context.kubelet, uid), Instant::now() + deadlines::HAND_OVER);
    match tokio::task::spawn_blocking(move || leave(&folder, until)).await {
        Ok(Ok(MountReply::Left)) => Departure::Left,
        Ok(Err(error)) if has_ended(&error) => Departure::Left,
        Ok(Ok(MountReply::Refused(refused))) if matches!(refused.code, Code::Busy | Code::TimedOut) => {
            tracing::debug!(%refused, "the mount stays for now");
            Departure::Refused
        }
        Ok(Ok(MountReply::Refused(refused))) => {
            tracing::warn!(%refused, "the mount cannot move");
            Departure::Unsupported
        }
        // It may still serve the mount.
        reply => {
            tracing::warn!(?reply, "no reply from the mounter of a mount that is to move");
            Departure::Refused
        }
    }
}

/// Whether nothing listens there, so that no mounter and no mount process of the pod is left.
fn has_ended(error: &HandOverError) -> bool {
    let HandOverError::Connect(error) = error else { return false };
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

/// The mount process of the new pod continues. If not, says whether it may do so later.
async fn arrive(
    context: &Context,
    request: &PublishRequest,
    kept: &Kept,
    pod: &MountpointPod,
    credentials: &MountCredentials,
) -> Result<(), (PublishError, Serves)> {
    let mount_request = source::mount_request(context, request, pod, credentials, Purpose::TakeOver).await;
    let mounter = comm::open(&context.kubelet, &pod.uid).ok().as_ref().and_then(comm::mounter);
    let folder = comm::path(&context.kubelet, &pod.uid);
    let (descriptor, survival) = (Arc::clone(&kept.descriptor), Arc::clone(&kept.survival));
    let until = Instant::now() + deadlines::HAND_OVER;
    let reply = tokio::task::spawn_blocking(move || {
        take_over(&folder, &mount_request, descriptor.as_fd(), survival.as_fd(), until)
    });
    if let Err(error) = source::serving(context, pod, reply.await) {
        match settled(context, pod).await {
            // The reply was lost, of this hand-over or of an earlier one.
            Serves::Yes => {
                tracing::warn!(%error, mountpoint_pod = pod.name, "the mount is served nevertheless");
            }
            serves => return Err((error, serves)),
        }
    }
    context.keep_descriptor(pod, Arc::clone(&kept.descriptor), mounter);
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
    let (folder, until) = (comm::path(&context.kubelet, &pod.uid), Instant::now() + deadlines::HAND_OVER);
    match tokio::task::spawn_blocking(move || fetch(&folder, until)).await {
        Ok(Ok(Ok(Fetched { is_served: true, .. }))) => Serves::Yes,
        Ok(Ok(Ok(Fetched { is_served: false, .. }))) => Serves::No,
        Ok(Ok(Err(refused))) if refused.code != Code::Busy => Serves::No,
        Ok(Err(error)) if has_ended(&error) => Serves::No,
        Ok(Ok(Err(_)) | Err(_)) | Err(_) => Serves::Unknown,
    }
}

/// The old pod serves the mount again, if it still can. Otherwise programs wait for the next attempt.
async fn go_back(context: &Context, uid: &str, kept: &Kept) {
    let (folder, until) = (comm::path(&context.kubelet, uid), Instant::now() + deadlines::HAND_OVER);
    let (descriptor, request) = (Arc::clone(&kept.descriptor), MountRequest::only(Purpose::Continue));
    let reply =
        tokio::task::spawn_blocking(move || hand_over(&folder, &request, descriptor.as_fd(), until)).await;
    match reply {
        Ok(Ok(MountReply::Serving(_))) => {
            tracing::info!(mountpoint_pod = kept.pod, "the mount did not move and is served again");
        }
        reply => tracing::warn!(?reply, mountpoint_pod = kept.pod, "the mount is not served, retrying"),
    }
}

/// An earlier node service has ended while it moved the mount of this pod, which has left it. Either the next pod serves it
/// already, or this one goes on.
pub(crate) async fn resume(context: &Context, pod: &MountpointPod) {
    let _lock = context.locks.mountpoint_pod(&pod.name).await;
    let (source, sources) = (context.source(&pod.name), sources_on_node(context.kubelet.path()));
    let table = context.mounts.table().unwrap_or_default();
    let others = table.copies(&source).filter(|copy| copy.point.starts_with(&sources));
    for other in others.map(|copy| copy.point.clone()).collect::<Vec<_>>() {
        let is_served = match settled_at(context, &other).await {
            Serves::Yes => true,
            Serves::No => false,
            Serves::Unknown => {
                tracing::warn!(mountpoint_pod = pod.name, "a move was interrupted, and its end is not known");
                return;
            }
        };
        let leftover = if is_served { &source } else { &other };
        if let Err(error) = context.kubelet.locate(leftover).and_then(|path| kernel::detach(&path)) {
            tracing::warn!(%error, source = %leftover.display(), "cannot detach what a move has left");
        }
        if is_served {
            tracing::info!(mountpoint_pod = pod.name, "an interrupted move is complete");
            return context.descriptors.drop(&pod.uid);
        }
    }
    if let Some((uid, kept)) = context.descriptors.of_pod(&pod.name) {
        go_back(context, &uid, &kept).await;
    }
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
            Serves::Unknown if Instant::now() < until => tokio::time::sleep(LOOK_EVERY).await,
            known => return known,
        }
    }
}
