//! `NodePublishVolume`: from the kubelet's request to a bind mount. The process can die after every step; the next
//! publish continues from whatever is mounted.

mod assignment;
pub mod early;
pub mod error;
mod mount_credentials;
pub mod plan;
pub(crate) mod relocate;
pub(crate) mod resume;
mod serving;
pub mod source;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use contract::mountpoint_pod::MountpointPod;
use mounter::deadlines;

use crate::context::Context;
use crate::kernel;
use crate::liveness::Liveness;
use crate::metrics::Stage;
use crate::mount_table::MountTable;
use crate::publish::error::{PublishError, kernel_error};
use crate::publish::mount_credentials::write_credentials;
use crate::publish::plan::{Observed, Plan, Step, Wanted, plan};
use crate::publish::relocate::{MovableMount, MoveOutcome};
use crate::request::PublishRequest;
use crate::target::Target;

pub async fn publish(context: &Context, request: PublishRequest) -> Result<(), PublishError> {
    let request = Arc::new(request);
    let _guard = context.locks.try_target(&request.target).ok_or(PublishError::Busy)?;
    let until = Instant::now() + deadlines::MOUNTER_LISTENS;
    // Before, no workload seems to have an attachment. Without an API server, mounts that are served stay as they are.
    let _ = tokio::time::timeout_at(until.into(), context.cache.wait_until_synced()).await;
    if is_served_unattached(context, &request).await? {
        return Ok(());
    }
    let is_mounted = mount_table(context, &request.target)?.top_bucket(&request.target).is_some();
    context.published.refresh(&request, is_mounted);
    ensure_mounted(context, &request, until).await?;
    context.published.insert(request);
    Ok(())
}

/// A live mount without an attachment stays as it is: a driver from before Mountpoint Pods made it, or its workload is
/// being deleted, and waiting for an attachment would delay the unpublish.
async fn is_served_unattached(context: &Context, request: &PublishRequest) -> Result<bool, PublishError> {
    let PublishRequest { volume_name, volume_id, pod_uid, target, .. } = request;
    if context.cache.assignment(volume_name, volume_id, pod_uid).is_some() {
        return Ok(false);
    }
    let is_mounted = mount_table(context, target)?.top_bucket(target).is_some();
    Ok(is_mounted && context.liveness.check(target).await == Liveness::Alive)
}

/// Waits for the Mountpoint Pod, `until` at most, then mounts what is missing, or moves what another pod serves. The caller
/// has locked the target.
pub(crate) async fn ensure_mounted(
    context: &Context,
    request: &PublishRequest,
    until: Instant,
) -> Result<(), PublishError> {
    let started = Instant::now();
    renew_credentials(context, request)?;
    let pod = assignment::wait_for_mountpoint_pod(context, request, until).await?;
    context.metrics.stage(Stage::Assignment, started.elapsed());
    let stage = Instant::now();
    let liveness = wait_until_ready(context, &pod, until).await?;
    context.metrics.stage(Stage::Listening, stage.elapsed());
    let lock = tokio::time::timeout_at(until.into(), context.locks.mountpoint_pod(&pod.name)).await;
    let _lock = lock.map_err(|_| PublishError::MountpointPodBusy(pod.name.clone()))?;
    let stage = Instant::now();
    if let Some(orphaned) = relocate::orphaned(context, &pod) {
        // Until a process serves it again, a check of the mount would not be answered.
        let credentials = write_credentials(context, request, &pod)?;
        relocate::adopt(context, request, &orphaned, &pod, &credentials).await?;
    }
    let Some(plan) = mount(context, request, &pod, liveness).await? else { return Ok(()) };
    context.events.restored(request);
    context.metrics.stage(Stage::Mount, stage.elapsed());
    if !plan.steps.is_empty() {
        tracing::info!(
            volume_id = request.volume_id,
            pod_uid = request.pod_uid,
            mountpoint_pod = pod.name,
            trace_id = request.trace_id(),
            milliseconds = started.elapsed().as_secs_f64() * 1000.0,
            "published"
        );
    }
    Ok(())
}

/// Waits until the pod serves its source mount or can be given one. Returns whether the source mount is alive.
async fn wait_until_ready(
    context: &Context,
    pod: &MountpointPod,
    until: Instant,
) -> Result<Liveness, PublishError> {
    if pod.early_mount.is_some() {
        // That may be under way: until its mount process is serving, a check of the source mount would not be answered.
        drop(tokio::time::timeout_at(until.into(), context.locks.mountpoint_pod(&pod.name)).await);
    }
    let liveness = context.liveness.check(&context.source(&pod.name)).await;
    // A mounter whose mount process is alive has nothing to be waited for.
    if liveness != Liveness::Alive || relocate::orphaned(context, pod).is_some() {
        assignment::wait_for_mounter(context, pod, until).await?;
    }
    Ok(liveness)
}

/// Observes, plans and executes. `None` if the mount stays, for now, with the Mountpoint Pod that serves it.
async fn mount(
    context: &Context,
    request: &PublishRequest,
    pod: &MountpointPod,
    liveness: Liveness,
) -> Result<Option<Plan>, PublishError> {
    let source = context.source(&pod.name);
    let mut table = mount_table(context, &request.target)?;
    let mut movable = relocate::movable(context, &table, &request.target, &pod.name);
    if let Some(unsettled) = &movable
        && relocate::is_unsettled(&table, &request.target, &source)
    {
        let safe_source = context.kubelet.locate(&source).map_err(kernel_error("locate", &source))?;
        relocate::settle(context, request, unsettled, pod, &safe_source).await?;
        table = mount_table(context, &request.target)?;
        movable = relocate::movable(context, &table, &request.target, &pod.name);
    }
    let mut observed = observe(context, request, &table, &source, liveness, movable.is_some()).await;
    let wanted = Wanted {
        source: &source,
        target: &request.target,
        read_only: request.read_only || request.source_read_only,
        single_pod: request.single_pod,
    };
    loop {
        observed.movable = movable.is_some();
        let plan = plan(&observed, &wanted)?;
        match execute(context, request, pod, &table, &plan, movable.as_ref()).await? {
            Executed::Done => return Ok(Some(plan)),
            Executed::Postponed => return Ok(None),
            Executed::NeedsNewMount => movable = None,
        }
    }
}

/// Renews the keys of Mountpoint Pods that the workload is leaving: they may serve it for long, because another one does not
/// start, or because the mount cannot move yet.
fn renew_credentials(context: &Context, request: &PublishRequest) -> Result<(), PublishError> {
    let PublishRequest { volume_name, volume_id, pod_uid, target, .. } = request;
    let assigned = context.cache.assignment(volume_name, volume_id, pod_uid);
    let table = mount_table(context, target)?;
    for name in relocate::serving(context, &table, target).filter(|name| Some(name) != assigned.as_ref()) {
        let Some(pod) = context.cache.pod(&name) else { continue };
        if let Err(error) = write_credentials(context, request, &pod) {
            let trace_id = request.trace_id();
            tracing::warn!(%error, volume_id, mountpoint_pod = name, trace_id, "cannot renew credentials");
        }
    }
    Ok(())
}

fn mount_table(context: &Context, target: &Path) -> Result<Arc<MountTable>, PublishError> {
    context.mounts.table().map_err(kernel_error("read the mount table for", target))
}

/// `liveness` is that of the source mount before its Mountpoint Pod was locked.
async fn observe<'a>(
    context: &Context,
    request: &PublishRequest,
    table: &'a MountTable,
    source: &Path,
    liveness: Liveness,
    movable: bool,
) -> Observed<'a> {
    let device = table.top(source).map(|mount| mount.device);
    let source = match device {
        None => Liveness::NotMounted,
        Some(_) if liveness == Liveness::Alive => liveness,
        // Another publish may have mounted it meanwhile.
        Some(_) => context.liveness.check(source).await,
    };
    let target = match table.top_bucket(&request.target) {
        None => Liveness::NotMounted,
        Some(top) if device == Some(top.device) => source.clone(),
        // Its pod may have ended, and the next one answers.
        Some(_) if movable => Liveness::Alive,
        Some(_) => context.liveness.check(&request.target).await,
    };
    let is_other_target = |point: &Path| {
        Target::of_mount(point, context.kubelet.path())
            .is_some_and(|it| it.volume_name == request.volume_name && it.path != request.target)
    };
    let others = table.0.iter().filter(|mount| mount.bucket && is_other_target(&mount.point));
    let other_targets = others.map(|mount| mount.point.clone()).collect();
    Observed { table, source, target, movable, other_targets }
}

enum Executed {
    Done,
    /// The mount cannot move to this pod now. Its workloads use it where it is.
    Postponed,
    /// The mount can never move to this pod.
    NeedsNewMount,
}

/// `movable` is what the plan moves, if it moves a mount.
async fn execute(
    context: &Context,
    request: &PublishRequest,
    pod: &MountpointPod,
    table: &MountTable,
    plan: &Plan,
    movable: Option<&MovableMount>,
) -> Result<Executed, PublishError> {
    let (source, target) = (&context.source(&pod.name), &request.target);
    let credentials = write_credentials(context, request, pod)?;
    if plan.target_is_lost {
        context.events.lost(request, context.reason_of_end(table, target).as_deref());
    }
    let create = |path: &Path| context.kubelet.create(path).map_err(kernel_error("create", path));
    let (safe_source, safe_target) = (create(source)?, create(target)?);
    for step in &plan.steps {
        let (volume_id, pod_uid, mountpoint_pod) = (&request.volume_id, &request.pod_uid, &pod.name);
        tracing::debug!(volume_id, pod_uid, mountpoint_pod, trace_id = request.trace_id(), ?step, "mounting");
        match step {
            Step::UnmountSource => {
                kernel::blocking_unmount(|| kernel::detach(&safe_source))
                    .map_err(kernel_error("unmount", source))?;
            }
            Step::MountSource => {
                source::mount(context, request, pod, &safe_source, source, &credentials).await?;
            }
            Step::MoveSource => {
                let Some(movable) = movable else { return Ok(Executed::NeedsNewMount) };
                match relocate::relocate(context, request, movable, pod, &safe_source, &credentials).await? {
                    MoveOutcome::Moved => {}
                    MoveOutcome::StaysForNow => return Ok(Executed::Postponed),
                    MoveOutcome::Impossible => return Ok(Executed::NeedsNewMount),
                }
            }
            Step::SealTarget => kernel::seal(&safe_target).map_err(kernel_error("seal", target))?,
            Step::UnmountTarget => {
                kernel::blocking_unmount(|| kernel::detach(&safe_target))
                    .map_err(kernel_error("unmount", target))?;
            }
            Step::BindTarget { read_only } => {
                let bound = kernel::bind(&safe_source, &safe_target, *read_only);
                if bound.is_err() && plan.steps.contains(&Step::SealTarget) {
                    // The kubelet removes the directory of a failed mount without an unpublish, which the seal would
                    // prevent.
                    let _ = kernel::detach(&safe_target);
                }
                bound.map_err(kernel_error("bind", target))?;
            }
        }
    }
    Ok(Executed::Done)
}
