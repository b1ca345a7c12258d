//! Drains a Mountpoint Pod: when no workload uses its source mount any more, unmounts it and lets the mounter exit.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::mountpoint_pod::MountpointPod;
use parking_lot::Mutex;
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;

use crate::comm;
use crate::context::Context;
use crate::credentials;
use crate::kernel;
use crate::mount_table::{Mount, MountTable};
use crate::mounts::NextChange;

/// How often to look whether the pod ended meanwhile, which no change of the mounts reports.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Drains the Mountpoint Pods that are marked for it or have ended.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    // UIDs of the pods that are being drained: the next pod of the same name is another one.
    let draining: Arc<Mutex<HashSet<String>>> = Arc::default();
    let mut changes = context.cache.changes();
    loop {
        changes.borrow_and_update();
        for pod in context.cache.pods() {
            if (pod.needs_unmount || pod.has_ended()) && draining.lock().insert(pod.uid.clone()) {
                let (context, draining) = (Arc::clone(&context), Arc::clone(&draining));
                tokio::spawn(async move {
                    drain(&context, &pod).await;
                    draining.lock().remove(&pod.uid);
                });
            }
        }
        tokio::select! {
            _ = changes.changed() => {}
            () = stop.cancelled() => return,
        }
    }
}

async fn drain(context: &Context, pod: &MountpointPod) {
    let source = context.source(&pod.name);
    let observe = || observe(context, pod, &source);
    loop {
        if let Err(error) = wait_while_in_use(observe).await {
            tracing::warn!(%error, mountpoint_pod = pod.name, "cannot tell whether the mount is in use");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let _lock = context.locks.mountpoint_pod(&pod.name).await;
        // A workload may have joined while this waited for the lock.
        match observe() {
            Ok(Next::Unmount) => return kernel::blocking_unmount(|| unmount(context, pod, &source)),
            Ok(Next::Leave) => return,
            Ok(Next::Wait) | Err(_) => {}
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Wait,
    Unmount,
    /// The source belongs to the next pod of the same name, which may serve the mount.
    Leave,
}

fn observe(context: &Context, pod: &MountpointPod, source: &Path) -> io::Result<Next> {
    let current = context.cache.pod(&pod.name);
    let survives = context.descriptors.of_pod(&pod.name).is_some();
    let pods = context.kubelet.path().join("pods");
    next(&pod.uid, current.as_ref(), survives, |is_leaving| {
        Ok(in_use(&*context.mounts.table()?, source, &pods, is_leaving))
    })
}

/// `current` is the pod that has the name now. `survives` says whether a mount of that name waits for another pod.
fn next(
    pod_uid: &str,
    current: Option<&MountpointPod>,
    survives: bool,
    in_use: impl FnOnce(bool) -> io::Result<bool>,
) -> io::Result<Next> {
    if current.is_some_and(|current| current.uid != pod_uid) {
        return Ok(Next::Leave);
    }
    let has_ended = current.is_none_or(MountpointPod::has_ended);
    let is_leaving = has_ended || current.is_some_and(|current| current.terminating);
    // A dead mount is unmounted even if workloads still have it.
    let is_dead = has_ended && !survives;
    Ok(if is_dead || !in_use(is_leaving)? { Next::Unmount } else { Next::Wait })
}

/// Whether it is at any target. A workload that was mounted from another Mountpoint Pod instead still has it below, and its
/// programs may have files open there: that counts, unless the pod is leaving anyway.
fn in_use(table: &MountTable, source: &Path, pods: &Path, is_leaving: bool) -> bool {
    let is_used = |copy: &Mount| copy.point.starts_with(pods) && (!is_leaving || table.is_on_top(copy));
    table.copies(source).any(is_used)
}

async fn wait_while_in_use(observe: impl Fn() -> io::Result<Next>) -> io::Result<()> {
    let until = Instant::now() + POLL_INTERVAL;
    loop {
        // Before observing, so that no change in between is missed.
        let change = NextChange::watch()?;
        if observe()? != Next::Wait || timeout_at(until.into(), change.happened()).await.is_err() {
            return Ok(());
        }
    }
}

fn unmount(context: &Context, pod: &MountpointPod, source: &Path) {
    let comm = comm::open(&context.kubelet, &pod.uid);
    if let Ok(comm) = &comm
        // Before the unmount: without the request, the mounter takes the end of its mount for a failure.
        && let Err(error) = comm::request_exit(comm)
    {
        tracing::warn!(%error, mountpoint_pod = pod.name, "cannot ask the mounter to exit");
    }
    match kernel::remove_mount_point(&context.mounts, &context.kubelet, source) {
        Ok(true) => tracing::info!(mountpoint_pod = pod.name, "unmounted"),
        Ok(false) => {}
        Err(error) => tracing::warn!(%error, mountpoint_pod = pod.name, "cannot unmount the source"),
    }
    if let Ok(comm) = &comm
        && let Err(error) = credentials::remove(comm)
    {
        tracing::warn!(%error, mountpoint_pod = pod.name, "cannot remove the credentials");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::names::label;
    use serde_json::json;

    fn pod(uid: &str, phase: &str) -> MountpointPod {
        let metadata = json!({"name": "mp-1", "uid": uid, "labels": {label::DRIVER_VERSION: "1"}});
        let pod = json!({"metadata": metadata, "spec": {"containers": []}, "status": {"phase": phase}});
        MountpointPod::of(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    #[test]
    fn a_dead_mount_is_unmounted_and_never_that_of_the_next_pod_of_the_same_name() {
        let (running, failed, other) = (pod("1", "Running"), pod("1", "Failed"), pod("2", "Running"));
        for (current, survives, in_use, expected) in [
            (Some(&running), true, true, Next::Wait),
            (Some(&running), true, false, Next::Unmount),
            (Some(&failed), true, true, Next::Wait),
            (Some(&failed), false, true, Next::Unmount),
            (None, true, true, Next::Wait),
            (None, false, true, Next::Unmount),
            // It has taken the mount over, or mounts another one.
            (Some(&other), true, true, Next::Leave),
            (Some(&other), false, true, Next::Leave),
            (Some(&other), false, false, Next::Leave),
        ] {
            let found = next("1", current, survives, |_| Ok(in_use)).unwrap();
            assert_eq!(found, expected, "{current:?} {survives} {in_use}");
        }
    }

    #[test]
    fn a_source_is_in_use_while_it_is_at_a_target() {
        let (source, pods) = (Path::new("/k/plugins/mp-1"), Path::new("/k/pods"));
        let mount = |device: u32, point: &str| Mount {
            device: (0, device),
            point: point.into(),
            read_only: false,
            bucket: true,
        };
        let mut table = MountTable(vec![mount(1, "/k/plugins/mp-1"), mount(1, "/k/pods/a")]);
        assert!(in_use(&table, source, pods, false) && in_use(&table, source, pods, true));
        table.0.push(mount(2, "/k/pods/a"));
        assert!(!in_use(&table, source, pods, true), "the workload has another mount");
        assert!(in_use(&table, source, pods, false), "its programs may still use this one");
        assert!(!in_use(&MountTable::default(), source, pods, false));
    }
}
