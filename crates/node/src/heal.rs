//! Remounts dead mounts at once, because the kubelet republishes the volumes of a running pod only every minute or two, and
//! replaces mounts that stay unresponsive.

mod moves;
pub mod plan;
pub mod reports;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use mounter::deadlines::MOUNTER_LISTENS_AGAIN;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::heal::moves::Moves;
use crate::heal::plan::{Abort, Deaths, Healing, ObservedMount, Plan};
use crate::liveness::Liveness;
use crate::mount_table::{Device, MountTable};
use crate::publish::ensure_mounted;
use crate::publish::error::PublishError;
use crate::{comm, kernel};

/// Checks of many mounts are not cheap, and one death changes several objects.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Checks after every change of an attachment or Mountpoint Pod, as the death of a mount process causes one, and
/// periodically. Ends only when no mount is being moved.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let mut changes = context.cache.changes();
    let mut healing = Healing::inheriting(&context.mounts.table().unwrap_or_default());
    let mut moves = Moves::default();
    loop {
        // First, because a check of a mount whose pod has ended takes seconds.
        moves.begin(&context);
        let began = Instant::now();
        let observed = match context.mounts.table() {
            Ok(table) => {
                healing.forget_ended(&table);
                observe(&context, &table).await
            }
            Err(_) => Vec::new(),
        };
        let plan = healing.plan(observed, began, Instant::now());
        let next_check = plan.next_check;
        execute(&context, plan);
        tokio::select! {
            _ = changes.changed() => tokio::time::sleep(MIN_INTERVAL).await,
            () = tokio::time::sleep(next_check) => {}
            () = stop.cancelled() => break,
        }
    }
    moves.finish().await;
}

/// The file systems at published targets. A target without a mount is left to the kubelet, which publishes or unpublishes
/// it.
async fn observe(context: &Context, table: &MountTable) -> Vec<ObservedMount> {
    let mut targets_of: HashMap<Device, Vec<PathBuf>> = HashMap::new();
    for target in context.published.targets() {
        if let Some(top) = table.top(&target) {
            targets_of.entry(top.device).or_default().push(target);
        }
    }
    // Each file system is checked once, and all at the same time, because an unresponsive one takes seconds.
    join_all(targets_of.into_iter().map(async |(device, targets)| {
        // Without a source mount, it was replaced, and the process died before it moved the target over.
        let source = context.source_of(table, device).map(Path::to_owned);
        let liveness = context.liveness.check(source.as_ref().unwrap_or(&targets[0])).await;
        let comm = source.as_ref().and_then(|source| context.comm_of(source));
        let expired_keys = comm.as_ref().and_then(comm::expired_keys);
        let deaths = comm.as_ref().map(|comm| comm::deaths(comm).unwrap_or_default());
        ObservedMount { device, source, targets, liveness, expired_keys, deaths }
    }))
    .await
}

fn execute(context: &Arc<Context>, plan: Plan) {
    let count = |targets: usize| i64::try_from(targets).unwrap_or(i64::MAX);
    context.metrics.dead.set(count(plan.dead.len()));
    context.metrics.unresponsive.set(count(plan.unresponsive));
    for request in plan.report_unresponsive.iter().filter_map(|target| context.published.get(target)) {
        context.events.unresponsive(&request);
    }
    for (target, expired) in plan.keys {
        if let Some(request) = context.published.get(&target) {
            context.events.keys(&request, expired.as_deref());
        }
    }
    for Deaths { targets, count, reason } in plan.deaths {
        context.metrics.deaths.inc_by(count);
        for request in targets.iter().filter_map(|target| context.published.get(target)) {
            context.events.survived(&request, &reason);
        }
    }
    for abort in plan.abort {
        let context = Arc::clone(context);
        tokio::spawn(async move { abort_unresponsive(&context, &abort).await });
    }
    for target in plan.dead {
        let context = Arc::clone(context);
        tokio::spawn(async move {
            match remount(&context, &target).await {
                // An earlier attempt or the kubelet's own publish is still running.
                Ok(()) | Err(PublishError::Busy) => {}
                Err(error) => tracing::warn!(%error, target = %target.display(), "remount failed, retrying"),
            }
        });
    }
}

/// Does nothing for a target that was unpublished meanwhile: a mount made now would never be unmounted.
async fn remount(context: &Context, target: &Path) -> Result<(), PublishError> {
    let _guard = context.locks.try_target(target).ok_or(PublishError::Busy)?;
    let Some(request) = context.published.get(target) else { return Ok(()) };
    let table = context.mounts.table().unwrap_or_default();
    context.events.lost(&request, context.reason_of_end(&table, target).as_deref());
    ensure_mounted(context, &request, Instant::now() + MOUNTER_LISTENS_AGAIN).await
}

/// Turns an unresponsive mount into a dead one, which the next check remounts.
async fn abort_unresponsive(context: &Context, Abort { source, device }: &Abort) {
    let mountpoint_pod = source.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let _lock = context.locks.mountpoint_pod(mountpoint_pod).await;
    // A publish may have replaced it while this waited for the lock.
    let table = context.mounts.table().unwrap_or_default();
    let is_same = table.top(source).is_some_and(|top| top.device == *device);
    if !is_same || context.liveness.check(source).await != Liveness::Unresponsive {
        return;
    }
    match context.kubelet.locate(source).and_then(|path| kernel::abort_connection(&path)) {
        Ok(()) => tracing::warn!(mountpoint_pod, "aborted an unresponsive mount"),
        Err(error) => tracing::warn!(%error, mountpoint_pod, "cannot abort an unresponsive mount"),
    }
}
