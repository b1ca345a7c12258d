//! A dead mount is mounted again without waiting for kubelet, which publishes the volumes of a running pod anew only every
//! minute or two.

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

/// Whatever has changed on the node, looking is not cheap with many mounts.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_secs(1);
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

/// Looks after every change of a Mountpoint Pod or an attachment, until `stop`: the death of a mount process is one.
pub async fn run(publisher: Arc<Publisher>, stop: CancellationToken) {
    let mut changes = publisher.known.changes();
    let mut wait: Option<Duration> = None;
    loop {
        let dead = dead(&publisher).await;
        publisher.metrics.dead.set(i64::try_from(dead.len()).unwrap_or(i64::MAX));
        wait = if dead.is_empty() {
            None
        } else {
            Some(wait.map_or(TRY_AGAIN, |wait| LONGEST_WAIT.min(wait * 2)))
        };
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
        let again = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = changes.changed() => tokio::time::sleep(LOOK_AT_MOST_EVERY).await,
            () = again => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Targets whose source nobody answers for any more.
async fn dead(publisher: &Publisher) -> Vec<PathBuf> {
    let Ok(table) = publisher.mounts.table() else { return Vec::new() };
    let sources = sources_on_node(publisher.kubelet.path());
    let mut targets = publisher.asked.targets();
    let device_at = |target: &Path| table.top(target).map(|mount| mount.device);
    // One that is not mounted is kubelet's to publish or to forget.
    targets.retain(|target| device_at(target).is_some());
    // Each source is asked once, and all at the same time: one that hangs takes seconds.
    let mut asked = HashMap::new();
    for target in &targets {
        let source = table.copies(target).find(|copy| copy.point.starts_with(&sources));
        // If there is none, it was replaced, and whoever did so was cut off before moving the target over.
        asked.entry(device_at(target)).or_insert_with(|| source.map_or(target, |copy| &copy.point));
    }
    let pulses = asked.iter().map(async |(device, path)| (*device, publisher.pulses.feel(path).await));
    let pulses: HashMap<_, _> = join_all(pulses).await.into_iter().collect();
    let is_dead = |target: &Path| matches!(pulses.get(&device_at(target)), Some(Pulse::Dead(_)));
    targets.into_iter().filter(|target| is_dead(target)).collect()
}
