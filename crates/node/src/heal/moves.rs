//! Moves mounts to the Mountpoint Pods that their workloads are assigned to.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mounter::deadlines::MOUNTER_LISTENS_AGAIN;
use parking_lot::Mutex;
use service::backoff::Backoff;
use tokio::task::JoinSet;

use crate::context::Context;
use crate::mount_table::MountTable;
use crate::publish::{ensure_mounted, relocate};
use crate::request::PublishRequest;

/// Before a mount that could not move is asked again: programs that write wait meanwhile.
const MOVE_AGAIN: Duration = Duration::from_secs(5);
const MOVE_AGAIN_LONGEST: Duration = Duration::from_mins(1);

pub(super) struct Moves {
    underway: JoinSet<()>,
    /// By target.
    delays: Arc<Mutex<Backoff<PathBuf>>>,
}

impl Default for Moves {
    fn default() -> Self {
        let delays = Arc::new(Mutex::new(Backoff::new(MOVE_AGAIN, MOVE_AGAIN_LONGEST)));
        Self { underway: JoinSet::new(), delays }
    }
}

impl Moves {
    /// Begins those that are due, and waits for none.
    pub(super) fn begin(&mut self, context: &Arc<Context>) {
        for target in reassigned(context) {
            if self.delays.lock().remaining(&target, Instant::now()).is_some() {
                continue;
            }
            let (context, delays) = (Arc::clone(context), Arc::clone(&self.delays));
            self.underway.spawn(async move {
                let attempt = move_mount(&context, &target).await;
                record(&mut delays.lock(), &target, attempt, Instant::now());
            });
        }
        while self.underway.try_join_next().is_some() {}
    }

    pub(super) async fn finish(mut self) {
        while self.underway.join_next().await.is_some() {}
    }
}

/// Targets whose workload is assigned to another Mountpoint Pod, to which the mount can be moved.
fn reassigned(context: &Context) -> Vec<PathBuf> {
    let Ok(table) = context.mounts.table() else { return Vec::new() };
    let published = context.published.targets().into_iter();
    published.filter(|target| is_reassigned(context, &table, target)).collect()
}

fn is_reassigned(context: &Context, table: &MountTable, target: &Path) -> bool {
    let pod = context.published.get(target).and_then(|request| {
        let PublishRequest { volume_name, volume_id, pod_uid, .. } = &*request;
        context.cache.pod(&context.cache.assignment(volume_name, volume_id, pod_uid)?)
    });
    pod.is_some_and(|pod| {
        let is_mounted = || table.top_bucket(target).is_some();
        relocate::movable(context, table, target, &pod.name).is_some()
            || (is_mounted() && relocate::orphaned(context, &pod).is_some())
    })
}

#[derive(Clone, Copy)]
enum Attempt {
    Done,
    /// It cannot move now.
    Pending,
    /// Another operation has the target: an earlier attempt, or the kubelet's own publish, which does the same.
    Busy,
}

fn record(delays: &mut Backoff<PathBuf>, target: &PathBuf, attempt: Attempt, now: Instant) {
    match attempt {
        Attempt::Done => delays.record_success(target),
        Attempt::Pending => drop(delays.record_failure(target, now)),
        Attempt::Busy => {}
    }
}

async fn move_mount(context: &Context, target: &Path) -> Attempt {
    let Some(_guard) = context.locks.try_target(target) else { return Attempt::Busy };
    let Some(request) = context.published.get(target) else { return Attempt::Done };
    if let Err(error) = ensure_mounted(context, &request, Instant::now() + MOUNTER_LISTENS_AGAIN).await {
        tracing::warn!(%error, target = %target.display(), "cannot move the mount, retrying");
    }
    let table = context.mounts.table().unwrap_or_default();
    if is_reassigned(context, &table, target) { Attempt::Pending } else { Attempt::Done }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_cannot_move_is_asked_less_and_less_often_whatever_else_is_under_way() {
        let (now, target) = (Instant::now(), PathBuf::from("/target"));
        let mut delays = Backoff::new(MOVE_AGAIN, MOVE_AGAIN_LONGEST);
        let mut after = |attempt: Attempt| {
            record(&mut delays, &target, attempt, now);
            delays.remaining(&target, now)
        };
        let first = after(Attempt::Pending);
        assert!(first <= Some(MOVE_AGAIN) && first.is_some());
        assert_eq!(after(Attempt::Busy), first);
        assert!(after(Attempt::Pending) > first);
        assert_eq!(after(Attempt::Done), None);
    }
}
