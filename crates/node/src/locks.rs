//! Locks: one operation at a time per Mountpoint Pod and per target.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

#[derive(Clone, Debug, Default)]
pub struct Locks(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    mountpoint_pods: HashMap<String, Weak<AsyncMutex<()>>>,
    targets: HashSet<PathBuf>,
}

/// Unlocks the target when dropped.
#[derive(Debug)]
pub struct TargetGuard {
    locks: Locks,
    path: PathBuf,
}

impl Locks {
    /// Waits until the Mountpoint Pod is free.
    pub async fn mountpoint_pod(&self, name: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut state = self.0.lock();
            // Mountpoint Pods come and go: locks that are not in use must not pile up.
            state.mountpoint_pods.retain(|_, lock| lock.strong_count() > 0);
            let lock = state.mountpoint_pods.get(name).and_then(Weak::upgrade).unwrap_or_default();
            state.mountpoint_pods.insert(name.to_owned(), Arc::downgrade(&lock));
            lock
        };
        lock.lock_owned().await
    }

    /// `None` while another operation has the target: CSI wants ABORTED then, not a wait.
    pub fn try_target(&self, path: &Path) -> Option<TargetGuard> {
        let free = self.0.lock().targets.insert(path.to_owned());
        free.then(|| TargetGuard { locks: self.clone(), path: path.to_owned() })
    }
}

impl Drop for TargetGuard {
    fn drop(&mut self) {
        self.locks.0.lock().targets.remove(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_mountpoint_pod_is_locked_by_one_operation_at_a_time() {
        let locks = Locks::default();
        let first = locks.mountpoint_pod("mp-1").await;
        let _other = locks.mountpoint_pod("mp-2").await;
        let waiting = tokio::spawn({
            let locks = locks.clone();
            async move { drop(locks.mountpoint_pod("mp-1").await) }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        waiting.await.unwrap();
    }

    #[test]
    fn a_target_is_locked_until_its_guard_is_dropped() {
        let locks = Locks::default();
        let path = Path::new("/t");
        let guard = locks.try_target(path).unwrap();
        assert!(locks.try_target(path).is_none());
        assert!(locks.try_target(Path::new("/u")).is_some());
        drop(guard);
        assert!(locks.try_target(path).is_some());
    }
}
