//! The end of a Mountpoint Pod: when no workload needs it any more, its source is unmounted and its mounter told to go.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use contract::names::source_on_node;
use tokio_util::sync::CancellationToken;

use crate::comm;
use crate::credentials;
use crate::kernel;
use crate::known::MountpointPod;
use crate::mounts::NextChange;
use crate::publish::Publisher;

/// The kernel tells of every change of its mounts; this is for one that it forgot.
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
pub(crate) fn remove_source(publisher: &Publisher, source: &Path) -> io::Result<bool> {
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
