//! Continues the mounts of Mountpoint Pods whose container has ended and was started again, for example because it ran out
//! of memory: the new mounter gets the descriptor of the same mount.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use contract::mountpoint_pod::{ContainerEnd, MountpointPod};
use k8s_openapi::jiff::Timestamp;
use mounter::handover::client::{Fetched, listens};
use mounter::handover::is_disconnected;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::comm;
use crate::context::Context;
use crate::descriptors::{KeptDescriptors, MounterId, SurvivingMount};
use crate::mount_table::MountTable;
use crate::mounter_client::{self, MounterError};
use crate::publish::resume::resume;

/// A mounter listens a moment after the kubelet has reported its container, and nothing reports that.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// For the kubelet's report of why the container has ended.
const REASON_WITHIN: Duration = Duration::from_secs(10);

/// What is going on with Mountpoint Pods, by their UIDs.
#[derive(Debug, Default)]
struct Progress {
    /// Those whose mounter is being spoken to. A slow one keeps no other waiting.
    underway: HashSet<String>,
    /// Mounters that have said whether they have a descriptor: once is enough.
    asked: HashMap<String, MounterId>,
}

pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    tokio::select! {
        // With empty caches, every mount looks abandoned.
        () = context.cache.wait_until_synced() => {}
        () = stop.cancelled() => return,
    }
    let mut changes = context.cache.changes();
    let progress: Arc<Mutex<Progress>> = Arc::default();
    loop {
        changes.borrow_and_update();
        let pods: Vec<_> = context.cache.pods().into_iter().filter(|pod| !pod.has_ended()).collect();
        let is_running = |uid: &str| pods.iter().any(|pod| pod.uid == uid);
        drop_unused(&context.descriptors, context.mounts.table(), is_running, |pod| context.source(pod));
        progress.lock().asked.retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));
        for pod in pods {
            look_at(&context, &progress, pod);
        }
        tokio::select! {
            _ = changes.changed() => {}
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// The descriptor of a pod that has ended waits for another pod, as long as workloads use the mount.
fn drop_unused(
    descriptors: &KeptDescriptors,
    table: io::Result<Arc<MountTable>>,
    is_running: impl Fn(&str) -> bool,
    source_of: impl Fn(&str) -> PathBuf,
) {
    match table {
        Ok(table) => descriptors.retain(|uid, kept| {
            let is_used = || table.copies(&source_of(&kept.pod)).next().is_some();
            is_running(uid) || (kept.can_continue() && is_used())
        }),
        // Without a table, every mount looks unused. Its programs would lose it for good.
        Err(error) => tracing::warn!(%error, "cannot read the mount table: every descriptor is kept"),
    }
}

/// Begins what there is to do with a pod, unless that is under way.
fn look_at(context: &Arc<Context>, progress: &Arc<Mutex<Progress>>, pod: MountpointPod) {
    let Some(mounter) = comm::mounter_of(&context.kubelet, &pod.uid) else { return };
    let kept = context.descriptors.get(&pod.uid);
    if let Some(kept) = &kept
        && !has_journal(context, &pod)
    {
        tracing::warn!(mountpoint_pod = pod.name, "the mount ends with its mount process: it has no journal");
        return context.descriptors.drop_this(&pod.uid, kept);
    }
    {
        let mut progress = progress.lock();
        let is_done = match &kept {
            Some(kept) => kept.mounter == mounter,
            None => progress.asked.get(&pod.uid) == Some(&mounter),
        };
        if is_done || !progress.underway.insert(pod.uid.clone()) {
            return;
        }
    }
    let (context, progress) = (Arc::clone(context), Arc::clone(progress));
    tokio::spawn(async move {
        let uid = pod.uid.clone();
        let has_answered = match kept {
            Some(kept) => {
                continue_mount(&context, pod, kept, mounter).await;
                false
            }
            None => fetch_descriptor(&context, pod, mounter).await,
        };
        let mut progress = progress.lock();
        progress.underway.remove(&uid);
        if has_answered {
            progress.asked.insert(uid, mounter);
        }
    });
}

fn has_journal(context: &Context, pod: &MountpointPod) -> bool {
    comm::open(&context.kubelet, &pod.uid).is_ok_and(|comm| comm::has_journal(&comm))
}

/// Fetches the descriptor of a mount that an earlier node service has made. `false` if the mounter has to be asked again.
async fn fetch_descriptor(context: &Context, pod: MountpointPod, mounter: MounterId) -> bool {
    let source = context.source(&pod.name);
    match context.mounts.table() {
        Ok(table) if table.top_bucket(&source).is_none() => return true,
        Ok(_) => {}
        Err(error) => {
            tracing::warn!(%error, mountpoint_pod = pod.name, "cannot read the mount table, retrying");
            return false;
        }
    }
    match mounter_client::fetch(&context.kubelet, &pod.uid).await {
        Ok(Fetched { descriptor, is_served }) => {
            // Without one, no other process can continue the mount, or one in another pod already does.
            if has_journal(context, &pod) {
                let _lock = context.locks.mountpoint_pod(&pod.name).await;
                // A publish may have made another mount meanwhile.
                if context.descriptors.get(&pod.uid).is_none() {
                    context.keep_descriptor(&pod, Arc::new(descriptor), Some(mounter));
                }
            }
            tracing::info!(mountpoint_pod = pod.name, is_served, "descriptor fetched");
            if !is_served && let Err(error) = resume(context, &pod).await {
                tracing::warn!(%error, mountpoint_pod = pod.name, "cannot resume a move, retrying");
                // The mounter has a copy, and is asked for it again only if there is none here.
                context.descriptors.drop(&pod.uid);
                return false;
            }
        }
        Err(error) if error.is_busy() => return false,
        Err(error) => tracing::debug!(%error, mountpoint_pod = pod.name, "no descriptor to keep"),
    }
    true
}

async fn continue_mount(
    context: &Arc<Context>,
    pod: MountpointPod,
    kept: SurvivingMount,
    mounter: MounterId,
) {
    let _lock = context.locks.mountpoint_pod(&pod.name).await;
    // A publish may have made another mount while this waited for the lock.
    if context.descriptors.get(&pod.uid).is_none_or(|now| !now.is_same(&kept)) {
        return;
    }
    if is_disconnected(&*kept.descriptor) {
        tracing::debug!(mountpoint_pod = pod.name, "the mount has ended");
        return context.descriptors.drop_this(&pod.uid, &kept);
    }
    let descriptor = Arc::clone(&kept.descriptor);
    let reply = mounter_client::continue_mount(&context.kubelet, &pod.uid, descriptor).await;
    let served = match reply {
        Ok(_) => Ok(Some(Arc::clone(&kept.descriptor))),
        Err(error) if error.is_busy() => served(context, &pod).await,
        Err(error) => Err(error),
    };
    match served {
        Ok(Some(descriptor)) => {
            context.keep_descriptor(&pod, descriptor, Some(mounter));
            tracing::info!(mountpoint_pod = pod.name, "serving again");
            context.metrics.deaths.inc();
            tokio::spawn(report(Arc::clone(context), pod, kept.served_since));
        }
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(%error, mountpoint_pod = pod.name, "cannot continue the mount, retrying");
        }
    }
}

/// The descriptor of the mount that a busy mounter serves: it has the mount already if its reply to an earlier hand-over was
/// lost. `None` while it starts a mount process.
async fn served(context: &Context, pod: &MountpointPod) -> Result<Option<Arc<OwnedFd>>, MounterError> {
    match mounter_client::fetch(&context.kubelet, &pod.uid).await {
        Ok(fetched) => Ok(fetched.is_served.then(|| Arc::new(fetched.descriptor))),
        Err(error) if error.is_busy() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reports the death to the workloads, with the kubelet's reason and the mounter's own words. The container has served the
/// mount since `served_since`.
async fn report(context: Arc<Context>, pod: MountpointPod, served_since: Timestamp) {
    let mut changes = context.cache.changes();
    let reason = async {
        loop {
            changes.borrow_and_update();
            let now = context.cache.pod(&pod.name).filter(|now| now.uid == pod.uid);
            if let Some(end) = now.and_then(|now| now.last_end).filter(|end| is_of(end, served_since)) {
                return end.to_string();
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    };
    let reason = tokio::time::timeout(REASON_WITHIN, reason).await;
    let reason = reason.unwrap_or_else(|_| "the kubelet reports no reason".to_owned());
    let reason = format!("the container of Mountpoint Pod `{}` ended: {reason}", pod.name);
    let Ok(table) = context.mounts.table() else { return };
    let source = context.source(&pod.name);
    for target in table.copies(&source).filter_map(|copy| context.published.get(&copy.point)) {
        context.events.survived(&target, &reason);
    }
}

/// Whether this is how the container ended that has served since then, and not an earlier one.
fn is_of(end: &ContainerEnd, served_since: Timestamp) -> bool {
    end.at.0.as_second() >= served_since.as_second()
}

/// Waits until no mount depends on this process: with it, a descriptor ends of which no mounter has a copy at the moment.
pub async fn wait_until_served(context: &Context) {
    let is_served = |uid: &str, kept: &SurvivingMount| {
        listens(&comm::path(&context.kubelet, uid))
            && comm::mounter_of(&context.kubelet, uid) == Some(kept.mounter)
    };
    loop {
        let mut alone = context.descriptors.all();
        alone.retain(|(uid, kept)| !is_disconnected(&*kept.descriptor) && !is_served(uid, kept));
        let Some((_, kept)) = alone.first() else { return };
        tracing::info!(
            mountpoint_pod = kept.pod,
            mounts = alone.len(),
            "waiting for mounts to be served again"
        );
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::SignedDuration;
    use std::fs::File;

    #[test]
    fn a_descriptor_is_dropped_only_if_its_mount_is_known_to_be_unused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(mounter::JOURNAL), "").unwrap();
        let open = |path: &std::path::Path| Arc::new(OwnedFd::from(File::open(path).unwrap()));
        let (descriptor, successor_folder) = (open("/dev/null".as_ref()), open(folder.path()));
        let descriptors = KeptDescriptors::default();
        let (mounter, pod, served_since) = (MounterId(1), "mp".to_owned(), Timestamp::UNIX_EPOCH);
        let kept = SurvivingMount { descriptor, mounter, pod, served_since, successor_folder };
        descriptors.keep("uid", kept);
        let is_kept_after = |table, is_running| {
            drop_unused(&descriptors, table, |_| is_running, |_| "/source".into());
            descriptors.get("uid").is_some()
        };
        assert!(is_kept_after(Err(io::ErrorKind::OutOfMemory.into()), false), "unknown");
        assert!(is_kept_after(Ok(Arc::default()), true), "its pod runs");
        assert!(!is_kept_after(Ok(Arc::default()), false), "unused");
    }

    /// The kubelet has not reported this end yet, and its last report is of an earlier one.
    #[test]
    fn the_reason_of_an_earlier_end_is_not_taken_for_that_of_this_one() {
        let second = |second: i64| Timestamp::from_second(second).unwrap();
        let end = |at: i64| ContainerEnd {
            at: Time(second(at)),
            reason: "OOMKilled".to_owned(),
            message: String::new(),
        };
        let served_since = second(100) + SignedDuration::from_millis(700);
        assert!(!is_of(&end(99), served_since));
        assert!(is_of(&end(100), served_since), "the kubelet leaves out fractions of a second");
        assert!(is_of(&end(500), served_since));
    }
}
