//! What a dead predecessor left behind, and what no watch has told.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use contract::names::sources_on_node;
use tokio_util::sync::CancellationToken;

use crate::drain::remove_source;
use crate::kernel::{self, Pulse};
use crate::publish::Publisher;
use crate::target::Target;

const SWEEP_EVERY: Duration = Duration::from_mins(2);

/// Now and then, until `stop`.
pub async fn run(publisher: Arc<Publisher>, stop: CancellationToken) {
    tokio::select! {
        // Else everything would look abandoned.
        () = publisher.known.complete() => {}
        () = stop.cancelled() => return,
    }
    let mut rounds = tokio::time::interval(SWEEP_EVERY);
    loop {
        tokio::select! {
            _ = rounds.tick() => sweep(&publisher).await,
            () = stop.cancelled() => return,
        }
    }
}

/// Targets of workloads that no longer are, and sources whose Mountpoint Pod is gone.
async fn sweep(publisher: &Publisher) {
    publisher.metrics.swept();
    for Target { path: target, pod_uid, .. } in abandoned(publisher).await {
        let Some(_turn) = publisher.turns.target(&target) else { continue };
        // Looking took a while, and others were at work.
        if publisher.known.is_attached(&pod_uid) {
            continue;
        }
        publisher.forget(&target);
        tracing::info!(target = %target.display(), "the mount of a workload that is gone is taken away");
        // The folder stays sealed: if the attachment is missing by mistake, a container that starts again finds no way in.
        let place = publisher.kubelet.place(&target);
        let outcome = place.and_then(|place| kernel::clear_buckets(&publisher.mounts, &place, &target));
        if let Err(error) = outcome {
            tracing::warn!(%error, target = %target.display(), "cannot unmount");
        }
    }
    let sources = sources_on_node(publisher.kubelet.path());
    let Ok(entries) = fs::read_dir(&sources) else { return };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        if publisher.known.pod(&name).is_some() {
            continue;
        }
        let _turn = publisher.turns.of(&name).await;
        if publisher.known.pod(&name).is_some() {
            continue;
        }
        match remove_source(publisher, &sources.join(&name)) {
            Ok(_) => tracing::info!(
                mountpoint_pod = name,
                "the source of a Mountpoint Pod that is gone is removed"
            ),
            Err(error) => tracing::warn!(%error, mountpoint_pod = name, "cannot remove a source"),
        }
    }
}

/// Targets that nobody serves any more, of workloads that no attachment names. Those that are served are kubelet's to
/// give back: an attachment that is missing by mistake must not take a bucket from a program that uses it.
async fn abandoned(publisher: &Publisher) -> Vec<Target> {
    let Ok(table) = publisher.mounts.table() else { return Vec::new() };
    let sources = sources_on_node(publisher.kubelet.path());
    let mut abandoned = Vec::new();
    for mount in table.0.iter().filter(|mount| mount.bucket && table.is_on_top(mount)) {
        let Some(target) = Target::of_mount(&mount.point, publisher.kubelet.path()) else { continue };
        if publisher.known.is_attached(&target.pod_uid) {
            continue;
        }
        let source = table.copies(&target.path).find_map(|copy| copy.point.strip_prefix(&sources).ok());
        let served = match source.and_then(Path::to_str) {
            Some(mountpoint_pod) => publisher.known.pod(mountpoint_pod).is_some(),
            // Of the time before Mountpoint Pods, or left behind.
            None => !matches!(publisher.pulses.feel(&target.path).await, Pulse::Dead(_)),
        };
        if !served {
            abandoned.push(target);
        }
    }
    abandoned
}
