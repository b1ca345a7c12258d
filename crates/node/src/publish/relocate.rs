//! Moves a mount to another Mountpoint Pod, live: the pod that it is leaving may be evicted, deleted, or of another version.
//! It is the same mount with another process behind it, so that programs notice no more than a pause, and there is nothing to
//! propagate into containers.
//!
//! Each step may be the last one of this process. Until the new pod serves, the old one can continue; after that, all that is
//! left is to detach the old source.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use contract::mountpoint_pod::MountpointPod;
use mounter::handover::{Code, Purpose};

use super::error::{PublishError, kernel_error};
use super::serving::{Serves, serves, wait_until_known};
use super::source;
use crate::comm;
use crate::context::Context;
use crate::credentials::MountCredentials;
use crate::descriptors::{MounterId, SurvivingMount};
use crate::kernel;
use crate::mount_table::{Device, MountTable};
use crate::mounter_client::{self, MounterError};
use crate::request::PublishRequest;
use crate::safe_path::SafePath;

/// A mount that another Mountpoint Pod serves, or has served.
#[derive(Debug)]
pub(crate) struct MovableMount {
    uid: String,
    kept: SurvivingMount,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum MoveOutcome {
    Moved,
    /// The mount is served where it is, and cannot leave now. It is asked again later.
    StaysForNow,
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
pub(crate) fn movable(
    context: &Context,
    table: &MountTable,
    target: &Path,
    to: &str,
) -> Option<MovableMount> {
    let top = table.top_bucket(target)?;
    let from = pod_of(context, table, top.device).filter(|from| from != to)?;
    let (uid, kept) = context.descriptors.of_pod(&from)?;
    Some(MovableMount { uid, kept })
}

/// The mount of a Mountpoint Pod that is gone, if this one has its name and with that its source: the controller creates
/// a pod that was deleted by force again.
pub(crate) fn orphaned(context: &Context, pod: &MountpointPod) -> Option<MovableMount> {
    let (uid, kept) = context.descriptors.of_pod(&pod.name)?;
    (uid != pod.uid).then_some(MovableMount { uid, kept })
}

/// Moves the mount of another pod to this one, whose source is `safe_source`. The caller has locked this pod.
pub(super) async fn relocate(
    context: &Context,
    request: &PublishRequest,
    movable: &MovableMount,
    pod: &MountpointPod,
    safe_source: &SafePath,
    credentials: &MountCredentials,
) -> Result<MoveOutcome, PublishError> {
    let kept = &movable.kept;
    let _lock = context.locks.mountpoint_pod(&kept.pod).await;
    let old = context.source(&kept.pod);
    // Before the mount is left: after a failure, nothing would serve it.
    let safe_old = context.kubelet.locate(&old).map_err(kernel_error("locate", &old))?;
    if !can_take_over(context, pod).await {
        return Ok(MoveOutcome::StaysForNow);
    }
    let began = Instant::now();
    if let Err(outcome) = depart(context, request, movable).await {
        return Ok(outcome);
    }
    let bound = kernel::bind(&safe_old, safe_source, false);
    let arrived = match bound.map_err(kernel_error("bind", &context.source(&pod.name))) {
        Ok(()) => arrive(context, request, movable, pod, credentials, began).await,
        Err(error) => Err((error, Serves::No)),
    };
    if let Err((error, serves)) = arrived {
        if serves == Serves::No {
            undo(context, movable, pod, safe_source).await;
        }
        return Err(error);
    }
    detach_left(kept, &safe_old);
    Ok(MoveOutcome::Moved)
}

/// Completes or undoes an earlier move to this pod whose outcome was not known then: the mount is bound to the sources of both
/// pods. Until that is known it stays so, because none but the new pod may serve it. The caller has locked this pod.
pub(super) async fn settle(
    context: &Context,
    request: &PublishRequest,
    movable: &MovableMount,
    pod: &MountpointPod,
    safe_source: &SafePath,
) -> Result<(), PublishError> {
    let kept = &movable.kept;
    let _lock = context.locks.mountpoint_pod(&kept.pod).await;
    let old = context.source(&kept.pod);
    let safe_old = context.kubelet.locate(&old).map_err(kernel_error("locate", &old))?;
    match wait_until_known(context, pod).await {
        Serves::Yes => {
            record_arrival(context, movable, pod, comm::mounter_of(&context.kubelet, &pod.uid));
            detach_left(kept, &safe_old);
            let (volume_id, from, to) = (&request.volume_id, &kept.pod, &pod.name);
            tracing::info!(volume_id, from, mountpoint_pod = to, "mount moved, although the reply was lost");
        }
        Serves::No => undo(context, movable, pod, safe_source).await,
        Serves::Unknown => {}
    }
    Ok(())
}

/// Whether the mount is bound to this pod's source, too.
pub(super) fn is_unsettled(table: &MountTable, target: &Path, source: &Path) -> bool {
    let device = |point: &Path| table.top_bucket(point).map(|top| top.device);
    device(source).is_some() && device(source) == device(target)
}

/// After a move that has failed: the new pod does not serve the mount.
async fn undo(context: &Context, movable: &MovableMount, pod: &MountpointPod, safe_source: &SafePath) {
    if let Err(error) = kernel::detach(safe_source) {
        tracing::warn!(%error, mountpoint_pod = pod.name, "failed to unmount after a failed move");
    }
    go_back_or_wait(context, movable).await;
}

fn detach_left(kept: &SurvivingMount, safe_old: &SafePath) {
    if let Err(error) = kernel::detach(safe_old) {
        // Draining the old pod does it, too.
        tracing::warn!(%error, mountpoint_pod = kept.pod, "cannot detach the source after a move");
    }
}

/// Moves the mount of a pod that is gone to the one that has its name. They share source and lock: only the process behind
/// the mount changes. If that is not possible, the mount stays as it is.
pub(super) async fn adopt(
    context: &Context,
    request: &PublishRequest,
    orphaned: &MovableMount,
    pod: &MountpointPod,
    credentials: &MountCredentials,
) -> Result<(), PublishError> {
    if !can_take_over(context, pod).await {
        return Ok(());
    }
    let began = Instant::now();
    if depart(context, request, orphaned).await.is_err() {
        return Ok(());
    }
    let arrived = arrive(context, request, orphaned, pod, credentials, began).await;
    if let Err((_, Serves::No)) = arrived {
        go_back_or_wait(context, orphaned).await;
    }
    arrived.map_err(|(error, _)| error)
}

/// Whether this pod answers and serves no mount. If it serves one, it is another: it could not take this one over, and its
/// answer that it serves must not be taken for an arrival.
async fn can_take_over(context: &Context, pod: &MountpointPod) -> bool {
    let serves = serves(context, pod).await;
    if serves != Serves::No {
        tracing::warn!(
            mountpoint_pod = pod.name,
            ?serves,
            "the mount stays: this Mountpoint Pod cannot take it over"
        );
    }
    serves == Serves::No
}

/// Ends the mount process of the old pod, if it has not ended with the pod. Otherwise the mount does not move.
async fn depart(
    context: &Context,
    request: &PublishRequest,
    MovableMount { uid, kept }: &MovableMount,
) -> Result<(), MoveOutcome> {
    let (volume_id, mountpoint_pod, trace_id) = (&request.volume_id, &kept.pod, request.trace_id());
    match mounter_client::leave(&context.kubelet, uid).await {
        Ok(()) => Ok(()),
        Err(error) if error.has_ended() => Ok(()),
        Err(MounterError::Refused(refused)) if !matches!(refused.code, Code::Busy | Code::TimedOut) => {
            tracing::warn!(%refused, volume_id, mountpoint_pod, trace_id, "the mount cannot move");
            Err(MoveOutcome::Impossible)
        }
        Err(MounterError::Refused(refused)) => {
            tracing::debug!(%refused, volume_id, mountpoint_pod, trace_id, "the mount stays for now");
            Err(MoveOutcome::StaysForNow)
        }
        // It may still serve the mount.
        Err(error) => {
            tracing::warn!(
                %error,
                volume_id,
                mountpoint_pod,
                trace_id,
                "no reply from the mounter of a mount that is to move"
            );
            Err(MoveOutcome::StaysForNow)
        }
    }
}

/// The mount process of the new pod continues. If not, says whether it may do so later: two mount processes must never serve
/// one mount, so the old one continues only if the new one certainly does not.
async fn arrive(
    context: &Context,
    request: &PublishRequest,
    movable: &MovableMount,
    pod: &MountpointPod,
    credentials: &MountCredentials,
    began: Instant,
) -> Result<(), (PublishError, Serves)> {
    let mount_request = source::mount_request_of(context, request, pod, credentials, Purpose::TakeOver).await;
    let mounter = comm::mounter_of(&context.kubelet, &pod.uid);
    let kept = movable.kept.clone();
    let reply = mounter_client::take_over(&context.kubelet, &pod.uid, mount_request, kept).await;
    if let Err(error) = reply.map_err(source::failed(context, pod)) {
        match wait_until_known(context, pod).await {
            Serves::Yes => {
                tracing::warn!(%error, mountpoint_pod = pod.name, "reply lost, but the pod serves the mount");
            }
            serves => return Err((error, serves)),
        }
    }
    record_arrival(context, movable, pod, mounter);
    let milliseconds = began.elapsed().as_millis();
    let (volume_id, from, to) = (&request.volume_id, &movable.kept.pod, &pod.name);
    let trace_id = request.trace_id();
    tracing::info!(volume_id, from, mountpoint_pod = to, trace_id, milliseconds, "mount moved");
    Ok(())
}

fn record_arrival(
    context: &Context,
    MovableMount { uid, kept }: &MovableMount,
    pod: &MountpointPod,
    mounter: Option<MounterId>,
) {
    context.keep_descriptor(pod, Arc::clone(&kept.descriptor), mounter);
    context.descriptors.drop(uid);
    context.metrics.moves.inc();
}

/// The old pod serves the mount again, if it still can. Otherwise programs wait for the next attempt.
async fn go_back_or_wait(context: &Context, MovableMount { uid, kept }: &MovableMount) {
    if let Err(error) = go_back(context, uid, kept).await {
        tracing::warn!(%error, mountpoint_pod = kept.pod, "the mount is not served, retrying");
    }
}

/// The pod that a mount has left serves it again.
pub(super) async fn go_back(context: &Context, uid: &str, kept: &SurvivingMount) -> Result<(), MounterError> {
    mounter_client::continue_mount(&context.kubelet, uid, Arc::clone(&kept.descriptor)).await?;
    tracing::info!(mountpoint_pod = kept.pod, "the mount did not move and is served again");
    Ok(())
}
