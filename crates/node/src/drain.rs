//! The end of a Mountpoint Pod: when no workload needs it any more, its source is unmounted and its mounter told to go.
//! The same for sources that a dead predecessor left behind.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use contract::names::source_on_node;
use tokio_util::sync::CancellationToken;

use crate::comm;
use crate::credentials;
use crate::kernel::{self, Pulse};
use crate::known::MountpointPod;
use crate::mounts::NextChange;
use crate::publish::Publisher;
use crate::request::parse_target;

/// For what no watch has told.
const SWEEP_EVERY: Duration = Duration::from_mins(2);
/// The kernel tells of every change of its mounts; this is for one that it forgot.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Who is being drained, so that nobody is twice.
type Draining = Arc<Mutex<HashSet<String>>>;

/// Drains what is marked and sweeps what is left behind, until `stop`.
pub async fn run(publisher: Arc<Publisher>, stop: CancellationToken) {
    let draining = Draining::default();
    let mut changes = publisher.known.changes();
    let mut sweep = tokio::time::interval(SWEEP_EVERY);
    loop {
        changes.borrow_and_update();
        for pod in publisher.known.pods() {
            if (pod.needs_unmount || pod.ended) && begin(&draining, &pod.name) {
                let (publisher, draining) = (Arc::clone(&publisher), Arc::clone(&draining));
                tokio::spawn(async move {
                    drain(&publisher, &pod).await;
                    end(&draining, &pod.name);
                });
            }
        }
        tokio::select! {
            _ = changes.changed() => {}
            _ = sweep.tick() => sweep_once(&publisher, &draining).await,
            () = stop.cancelled() => return,
        }
    }
}

fn begin(draining: &Draining, name: &str) -> bool {
    draining.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned())
}

fn end(draining: &Draining, name: &str) {
    draining.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
}

async fn drain(publisher: &Publisher, pod: &MountpointPod) {
    let source = source_on_node(publisher.kubelet.path(), &pod.name);
    // Somebody may have come in while we waited for our turn.
    let _turn = loop {
        if !pod.ended
            && let Err(error) = unused(publisher, &source).await
        {
            tracing::warn!(%error, mountpoint_pod = pod.name, "cannot tell whether the mount is in use");
            return;
        }
        let turn = publisher.turns.of(&pod.name).await;
        if pod.ended || !in_use(publisher, &source).unwrap_or(false) {
            break turn;
        }
    };
    let comm = comm::open(&publisher.kubelet, &pod.uid);
    if let Ok(comm) = &comm {
        // Before the unmount: the mounter takes an end without it for a failure.
        if let Err(error) = comm::ask_to_exit(comm) {
            tracing::warn!(%error, mountpoint_pod = pod.name, "cannot ask the mounter to exit");
        }
    }
    match remove_source(publisher, &source) {
        Ok(true) => tracing::info!(mountpoint_pod = pod.name, "unmounted"),
        Ok(false) => {}
        Err(error) => tracing::warn!(%error, mountpoint_pod = pod.name, "cannot unmount the source"),
    }
    if let Ok(comm) = &comm
        && let Err(error) = credentials::remove(comm, &pod.name)
    {
        tracing::warn!(%error, mountpoint_pod = pod.name, "cannot remove the credentials");
    }
}

fn in_use(publisher: &Publisher, source: &Path) -> io::Result<bool> {
    let pods = publisher.kubelet.path().join("pods");
    Ok(publisher.mounts.table()?.copies(source).any(|copy| copy.point.starts_with(&pods)))
}

/// Waits until the source is bound nowhere below kubelet's pods.
async fn unused(publisher: &Publisher, source: &Path) -> io::Result<()> {
    loop {
        // Before looking: a change since then is told.
        let change = NextChange::watch()?;
        if !in_use(publisher, source)? {
            return Ok(());
        }
        let _ = tokio::time::timeout(LOOK_AGAIN, change.happened()).await;
    }
}

/// Unmounts the source and removes its folder; says whether it was mounted.
fn remove_source(publisher: &Publisher, source: &Path) -> io::Result<bool> {
    let place = match publisher.kubelet.place(source) {
        Ok(place) => place,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let mut mounted = false;
    while publisher.mounts.table()?.at(source).next().is_some() {
        mounted = true;
        if let Err(error) = kernel::unmount_top(&place) {
            tracing::warn!(%error, source = %source.display(), "somebody still holds the mount; it ends with them");
            kernel::detach(&place)?;
        }
    }
    place.remove_folder()?;
    Ok(mounted)
}

/// Targets of workloads that no longer are, and sources whose Mountpoint Pod is gone.
async fn sweep_once(publisher: &Publisher, draining: &Draining) {
    publisher.metrics.swept();
    for target in abandoned(publisher).await {
        let Some(_turn) = publisher.turns.target(&target) else { continue };
        publisher.forget(&target);
        tracing::info!(target = %target.display(), "the mount of a workload that is gone is taken away");
        let outcome = publisher.kubelet.place(&target).and_then(|place| kernel::detach(&place));
        if let Err(error) = outcome {
            tracing::warn!(%error, target = %target.display(), "cannot unmount");
        }
    }
    let sources = source_on_node(publisher.kubelet.path(), "");
    let Ok(entries) = fs::read_dir(&sources) else { return };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        if publisher.known.pod(&name).is_some() || !begin(draining, &name) {
            continue;
        }
        let _turn = publisher.turns.of(&name).await;
        match remove_source(publisher, &sources.join(&name)) {
            Ok(_) => tracing::info!(
                mountpoint_pod = name,
                "the source of a Mountpoint Pod that is gone is removed"
            ),
            Err(error) => tracing::warn!(%error, mountpoint_pod = name, "cannot remove a source"),
        }
        end(draining, &name);
    }
}

/// Targets that nobody serves any more, of workloads that no attachment names. Those that are served are kubelet's to
/// give back: an attachment that is missing by mistake must not take a bucket from a program that uses it.
async fn abandoned(publisher: &Publisher) -> Vec<PathBuf> {
    let Ok(table) = publisher.mounts.table() else { return Vec::new() };
    let sources = source_on_node(publisher.kubelet.path(), "");
    let mut abandoned = Vec::new();
    for mount in table.0.iter().filter(|mount| mount.bucket) {
        let parsed = mount.point.to_str().and_then(|text| parse_target(text, publisher.kubelet.path()).ok());
        let Some((target, pod_uid, _)) = parsed else { continue };
        if publisher.known.is_attached(&pod_uid) {
            continue;
        }
        let source = table.copies(&target).find_map(|copy| copy.point.strip_prefix(&sources).ok());
        let served = match source.and_then(Path::to_str) {
            Some(mountpoint_pod) => publisher.known.pod(mountpoint_pod).is_some(),
            // Of the time before Mountpoint Pods, or left behind.
            None => !matches!(publisher.pulses.feel(&target).await, Pulse::Dead(_)),
        };
        if !served {
            abandoned.push(target);
        }
    }
    abandoned
}
