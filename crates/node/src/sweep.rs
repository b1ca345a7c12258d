//! Removes what an earlier process left and no watch reported: targets of workloads that are gone, and source mounts whose
//! Mountpoint Pod is gone.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use contract::names::sources_on_node;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::kernel;
use crate::liveness::Liveness;
use crate::target::Target;

/// What a sweep removes harms no workload meanwhile, and each one looks at every mount.
const SWEEP_EVERY: Duration = Duration::from_mins(2);

pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    tokio::select! {
        // With empty caches, every mount looks abandoned.
        () = context.cache.wait_until_synced() => {}
        () = stop.cancelled() => return,
    }
    let mut rounds = tokio::time::interval(SWEEP_EVERY);
    loop {
        tokio::select! {
            _ = rounds.tick() => {
                context.metrics.sweeps.inc();
                execute(&context, plan(observe(&context).await)).await;
            }
            () = stop.cancelled() => return,
        }
    }
}

#[derive(Default)]
struct Observed {
    targets: Vec<ObservedTarget>,
    /// Names of Mountpoint Pods with a source mount, and whether the pod exists, or its mount waits for another one.
    sources: Vec<(String, bool)>,
}

struct ObservedTarget {
    target: Target,
    attached: bool,
    /// Whether a Mountpoint Pod exists for it. A target without a source mount has none: there, the mount process counts.
    served: bool,
}

struct Plan {
    targets: Vec<Target>,
    /// Names of Mountpoint Pods.
    sources: Vec<String>,
}

async fn observe(context: &Context) -> Observed {
    let mut observed = Observed::default();
    let table = context.mounts.table().unwrap_or_default();
    for mount in table.0.iter().filter(|mount| mount.bucket && table.is_on_top(mount)) {
        let Some(target) = Target::of_mount(&mount.point, context.kubelet.path()) else { continue };
        let attached = context.cache.is_attached(&target.pod_uid);
        let source = context.source_of(&table, mount.device).and_then(Path::file_name);
        let served = match source.and_then(OsStr::to_str) {
            Some(mountpoint_pod) => is_kept(context, mountpoint_pod),
            // Mounted by a driver from before Mountpoint Pods, or left behind. A check can take seconds.
            None => attached || !matches!(context.liveness.check(&target.path).await, Liveness::Dead(_)),
        };
        observed.targets.push(ObservedTarget { target, attached, served });
    }
    let entries = fs::read_dir(sources_on_node(context.kubelet.path())).into_iter().flatten().flatten();
    for mountpoint_pod in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        let is_kept = is_kept(context, &mountpoint_pod);
        observed.sources.push((mountpoint_pod, is_kept));
    }
    observed
}

fn is_kept(context: &Context, mountpoint_pod: &str) -> bool {
    context.cache.pod_exists(mountpoint_pod) || context.descriptors.of_pod(mountpoint_pod).is_some()
}

/// A target that is served is left to the kubelet, even without an attachment: an attachment that is missing by mistake
/// must not take the bucket from a workload that uses it.
fn plan(observed: Observed) -> Plan {
    let targets = observed.targets.into_iter().filter(|it| !it.attached && !it.served);
    let sources = observed.sources.into_iter().filter(|(_, is_kept)| !is_kept);
    Plan { targets: targets.map(|it| it.target).collect(), sources: sources.map(|(name, _)| name).collect() }
}

/// Looks again under each lock: observing took a while.
async fn execute(context: &Context, plan: Plan) {
    for Target { path, pod_uid, .. } in plan.targets {
        let Some(_guard) = context.locks.try_target(&path) else { continue };
        if context.cache.is_attached(&pod_uid) {
            continue;
        }
        context.forget(&path);
        // The seal stays: if the attachment is missing by mistake, a container that restarts must not write to the disk.
        let safe_path = context.kubelet.locate(&path);
        let unmount = |safe_path| kernel::unmount_buckets(&context.mounts, &safe_path, &path);
        match kernel::blocking_unmount(|| safe_path.and_then(unmount)) {
            Ok(_) => {
                tracing::info!(pod_uid, target = %path.display(), "unmounted target of deleted workload")
            }
            Err(error) => tracing::warn!(%error, target = %path.display(), "cannot unmount target"),
        }
    }
    for mountpoint_pod in plan.sources {
        let _lock = context.locks.mountpoint_pod(&mountpoint_pod).await;
        if is_kept(context, &mountpoint_pod) {
            continue;
        }
        let source = context.source(&mountpoint_pod);
        let remove = || kernel::remove_mount_point(&context.mounts, &context.kubelet, &source);
        match kernel::blocking_unmount(remove) {
            Ok(_) => tracing::info!(mountpoint_pod, "removed source mount of deleted Mountpoint Pod"),
            Err(error) => tracing::warn!(%error, mountpoint_pod, "cannot remove source mount"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_neither_attached_nor_served_is_removed() {
        let target = |pod_uid: &str, attached, served| ObservedTarget {
            target: Target { path: "/t".into(), pod_uid: pod_uid.into(), volume_name: "pv".into() },
            attached,
            served,
        };
        let swept = plan(Observed {
            targets: vec![
                target("attached", true, false),
                target("served", false, true),
                target("gone", false, false),
            ],
            sources: vec![("mp-exists".into(), true), ("mp-gone".into(), false)],
        });
        assert_eq!(swept.targets.iter().map(|target| target.pod_uid.as_str()).collect::<Vec<_>>(), ["gone"]);
        assert_eq!(swept.sources, ["mp-gone"]);
    }
}
