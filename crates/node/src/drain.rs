//! The end of a Mountpoint Pod: when no workload needs it any more, its source is unmounted and its mounter told to go.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use contract::names::source_on_node;
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;

use crate::comm;
use crate::credentials;
use crate::kernel;
use crate::known::MountpointPod;
use crate::mounts::NextChange;
use crate::publish::Publisher;

/// The kernel tells of every change of its mounts; this is for what it cannot tell.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Who is being drained, so that nobody is twice.
type Draining = Arc<Mutex<HashSet<String>>>;

/// Drains what is marked, until `stop`.
pub async fn run(publisher: Arc<Publisher>, stop: CancellationToken) {
    let draining = Draining::default();
    let mut changes = publisher.known.changes();
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
    // It may end while somebody still has its mount, which then is dead.
    let ended = || publisher.known.pod(&pod.name).is_none_or(|now| now.uid != pod.uid || now.ended);
    // Somebody may have come in while we waited for our turn.
    let _turn = loop {
        if !ended()
            && let Err(error) = unused(publisher, &source).await
        {
            tracing::warn!(%error, mountpoint_pod = pod.name, "cannot tell whether the mount is in use");
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let turn = publisher.turns.of(&pod.name).await;
        if ended() || in_use(publisher, &source).is_ok_and(|used| !used) {
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

/// Whether any workload sees it. One that was moved to another Mountpoint Pod has it still, below.
fn in_use(publisher: &Publisher, source: &Path) -> io::Result<bool> {
    let pods = publisher.kubelet.path().join("pods");
    let table = publisher.mounts.table()?;
    Ok(table.copies(source).any(|copy| copy.point.starts_with(&pods) && table.is_on_top(copy)))
}

/// Waits until the source is seen nowhere below kubelet's pods, or until it is time to look whether it matters still.
async fn unused(publisher: &Publisher, source: &Path) -> io::Result<()> {
    let until = Instant::now() + LOOK_AGAIN;
    loop {
        // Before looking: a change since then is told.
        let change = NextChange::watch()?;
        if !in_use(publisher, source)? || timeout_at(until.into(), change.happened()).await.is_err() {
            return Ok(());
        }
    }
}

/// Unmounts the source and removes its folder; says whether it was mounted.
pub(crate) fn remove_source(publisher: &Publisher, source: &Path) -> io::Result<bool> {
    let place = match publisher.kubelet.place(source) {
        Ok(place) => place,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let mounted = kernel::clear(&publisher.mounts, &place, source)?;
    place.remove_folder()?;
    Ok(mounted)
}
