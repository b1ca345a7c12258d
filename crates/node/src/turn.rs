//! Who may act on what: one at a time per Mountpoint Pod, and never two on one target.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    pods: HashMap<String, Weak<AsyncMutex<()>>>,
    targets: HashSet<PathBuf>,
}

/// The right to act on a target, given back when dropped.
#[derive(Debug)]
pub struct Target {
    turns: Turns,
    path: PathBuf,
}

impl Turns {
    /// Waits for its turn with the Mountpoint Pod.
    pub async fn of(&self, mountpoint_pod: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut state = self.state();
            // Those that nobody waits for are forgotten on the way.
            state.pods.retain(|_, turn| turn.strong_count() > 0);
            let turn = state.pods.get(mountpoint_pod).and_then(Weak::upgrade).unwrap_or_default();
            state.pods.insert(mountpoint_pod.to_owned(), Arc::downgrade(&turn));
            turn
        };
        turn.lock_owned().await
    }

    /// `None` while another call acts on the target.
    pub fn target(&self, path: &Path) -> Option<Target> {
        let free = self.state().targets.insert(path.to_owned());
        free.then(|| Target { turns: self.clone(), path: path.to_owned() })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.turns.state().targets.remove(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_at_a_time() {
        let turns = Turns::default();
        let first = turns.of("mp-1").await;
        let _other = turns.of("mp-2").await;
        let waiting = tokio::spawn({
            let turns = turns.clone();
            async move { drop(turns.of("mp-1").await) }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        waiting.await.unwrap();
    }

    #[test]
    fn a_target_is_taken_until_it_is_given_back() {
        let turns = Turns::default();
        let path = Path::new("/t");
        let held = turns.target(path).unwrap();
        assert!(turns.target(path).is_none());
        assert!(turns.target(Path::new("/u")).is_some());
        drop(held);
        assert!(turns.target(path).is_some());
    }
}
