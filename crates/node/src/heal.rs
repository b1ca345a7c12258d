//! A dead mount is mounted again without waiting for kubelet, which publishes the volumes of a running pod anew only every
//! minute or two; one that does not answer is made a dead one when it has had its time.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use contract::names::sources_on_node;
use futures::future::join_all;
use service::csi::NodePublishVolumeRequest;
use tokio_util::sync::CancellationToken;

use crate::failure::PublishError;
use crate::kernel::Pulse;
use crate::publish::Publisher;
use crate::silence::{Device, REPLACED_AFTER, Silences, TOLD_AFTER};

/// Whatever has changed on the node, looking is not cheap with many mounts.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// Nothing tells of a mount process that has stopped answering.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// While something is dead: its Mountpoint Pod is being started again or replaced.
const TRY_AGAIN: Duration = Duration::from_secs(2);
/// Longer and longer up to this: while it is tried, kubelet's own calls for the target are turned away.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// For the Mountpoint Pod of a dead mount. Short, because a workload that is being deleted waits for its target's turn.
const WAIT_AT_MOST: Duration = Duration::from_secs(5);

/// What workloads have asked for, as long as they have it. Lost with the process: then kubelet's own calls heal.
#[derive(Default)]
pub struct Asked(Mutex<HashMap<PathBuf, NodePublishVolumeRequest>>);

impl Asked {
    pub fn remember(&self, target: &Path, request: NodePublishVolumeRequest) {
        self.held().insert(target.to_owned(), request);
    }

    /// For a target that is known already.
    pub fn update(&self, target: &Path, request: &NodePublishVolumeRequest) {
        if let Some(known) = self.held().get_mut(target) {
            known.clone_from(request);
        }
    }

    pub fn forget(&self, target: &Path) {
        self.held().remove(target);
    }

    pub fn get(&self, target: &Path) -> Option<NodePublishVolumeRequest> {
        self.held().get(target).cloned()
    }

    fn targets(&self) -> Vec<PathBuf> {
        self.held().keys().cloned().collect()
    }

    fn held(&self) -> std::sync::MutexGuard<'_, HashMap<PathBuf, NodePublishVolumeRequest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks after every change of a Mountpoint Pod or an attachment, as the death of a mount process is one, and now and then,
/// until `stop`.
pub async fn run(publisher: Arc<Publisher>, stop: CancellationToken) {
    let mut changes = publisher.known.changes();
    let mut silences = Silences::default();
    let mut wait: Option<Duration> = None;
    loop {
        let Found { dead, silent } = look(&publisher).await;
        let count = |targets: usize| i64::try_from(targets).unwrap_or(i64::MAX);
        publisher.metrics.dead.set(count(dead.len()));
        publisher.metrics.unresponsive.set(count(silent.values().map(|mount| mount.targets.len()).sum()));
        wait = if dead.is_empty() {
            None
        } else {
            Some(wait.map_or(TRY_AGAIN, |wait| LONGEST_WAIT.min(wait * 2)))
        };
        let now = Instant::now();
        silences.hear(silent.keys().copied(), now);
        for device in silences.longer_than(TOLD_AFTER, now) {
            for target in &silent[&device].targets {
                publisher.tell_silence(target);
            }
        }
        for device in silences.longer_than(REPLACED_AFTER, now) {
            let (publisher, source) = (Arc::clone(&publisher), silent[&device].source.clone());
            tokio::spawn(async move { publisher.end_silence(&source, device).await });
        }
        for target in dead {
            let publisher = Arc::clone(&publisher);
            tokio::spawn(async move {
                match publisher.publish_again(&target, Instant::now() + WAIT_AT_MOST).await {
                    // An earlier attempt, or kubelet's own call, is still at it.
                    Ok(()) | Err(PublishError::Busy) => {}
                    Err(error) => tracing::warn!(%error, target = %target.display(), "not mounted again yet"),
                }
            });
        }
        tokio::select! {
            _ = changes.changed() => tokio::time::sleep(LOOK_AT_MOST_EVERY).await,
            () = tokio::time::sleep(wait.unwrap_or(LOOK_EVERY)) => {}
            () = stop.cancelled() => return,
        }
    }
}

#[derive(Default)]
struct Found {
    /// Targets whose mount process is gone.
    dead: Vec<PathBuf>,
    silent: HashMap<Device, Served>,
}

/// What one mount process serves.
struct Served {
    source: PathBuf,
    targets: Vec<PathBuf>,
}

async fn look(publisher: &Publisher) -> Found {
    let Ok(table) = publisher.mounts.table() else { return Found::default() };
    let sources = sources_on_node(publisher.kubelet.path());
    // One that is not mounted is kubelet's to publish or to forget.
    let mut mounts: HashMap<Device, Served> = HashMap::new();
    for target in publisher.asked.targets() {
        let Some(top) = table.top(&target) else { continue };
        let source = table.copies(&target).find(|copy| copy.point.starts_with(&sources));
        // If there is none, it was replaced, and whoever did so was cut off before moving the target over.
        let source = source.map_or_else(|| target.clone(), |copy| copy.point.clone());
        let mount = mounts.entry(top.device).or_insert_with(|| Served { source, targets: Vec::new() });
        mount.targets.push(target);
    }
    // Each is asked once, and all at the same time: one that hangs takes seconds.
    let asked = mounts.into_iter().map(async |(device, mount)| {
        let pulse = publisher.pulses.feel(&mount.source).await;
        (device, mount, pulse)
    });
    let mut found = Found::default();
    for (device, mount, pulse) in join_all(asked).await {
        match pulse {
            Pulse::Dead(_) => found.dead.extend(mount.targets),
            Pulse::Silent => drop(found.silent.insert(device, mount)),
            Pulse::Alive | Pulse::Nobody => {}
        }
    }
    found
}
