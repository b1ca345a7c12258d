//! How long to wait before something that failed is tried again: longer each time, and not all at the same moment.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A dropped connection is soon over; a missing Secret lasts until somebody makes it, who then waits for us.
const FIRST: Duration = Duration::from_millis(250);
const LAST: Duration = Duration::from_mins(1);
/// Whoever is due is looked at within this long, unless it is gone.
const FORGET_AFTER: Duration = Duration::from_mins(5);
/// Of the wait, at most, in one hundredth: claims that failed together come back apart.
const SPREAD_PERCENT: u32 = 30;

/// What is tried again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// A claim, by UID: one that is made again under its name need not wait for what kept the first one.
    Provision(String),
    /// A claim, by UID: to go, it need not wait for what kept it from being provisioned, but for its own failures.
    Settle(String),
    /// A volume, by name.
    Reclaim(String),
}

#[derive(Default)]
pub struct Patience(Mutex<HashMap<Task, (u32, Instant)>>);

impl Patience {
    /// How long it still has to wait, whatever news there is of it.
    pub fn left(&self, task: &Task, now: Instant) -> Option<Duration> {
        let (_, due) = *self.waits().get(task)?;
        due.checked_duration_since(now).filter(|left| !left.is_zero())
    }

    /// It is done, and what follows is up to others: not again before this long.
    pub fn rest(&self, task: &Task, now: Instant, rest: Duration) {
        self.still_waiting(now).insert(task.clone(), (0, now + rest));
    }

    /// It failed: how long to wait.
    pub fn lose(&self, task: &Task, now: Instant) -> Duration {
        let mut waits = self.still_waiting(now);
        let failures = waits.get(task).map_or(0, |(failures, _)| *failures);
        let wait = wait(task, failures);
        waits.insert(task.clone(), (failures.saturating_add(1), now + wait));
        wait
    }

    pub fn regain(&self, task: &Task) {
        self.waits().remove(task);
    }

    /// Without those that are no more.
    fn still_waiting(&self, now: Instant) -> MutexGuard<'_, HashMap<Task, (u32, Instant)>> {
        let mut waits = self.waits();
        waits.retain(|_, (_, due)| *due + FORGET_AFTER > now);
        waits
    }

    fn waits(&self) -> MutexGuard<'_, HashMap<Task, (u32, Instant)>> {
        self.0.lock().expect("nobody panics while counting")
    }
}

fn wait(task: &Task, failures: u32) -> Duration {
    let mut hasher = DefaultHasher::new();
    (task, failures).hash(&mut hasher);
    let spread = u32::try_from(hasher.finish() % u64::from(SPREAD_PERCENT)).unwrap_or_default();
    let wait = FIRST.saturating_mul(1 << failures.min(16)).min(LAST);
    wait * (100 - spread) / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_differ() {
        let task = |name: &str| Task::Reclaim(name.to_owned());
        let (patience, now) = (Patience::default(), Instant::now());
        let waits: Vec<Duration> = (0..20).map(|_| patience.lose(&task("a"), now)).collect();
        assert!(waits[0] <= FIRST && waits[0] >= FIRST * 7 / 10, "{waits:?}");
        assert!(waits[4] > waits[2] && waits[2] > waits[0], "{waits:?}");
        assert!(waits[19] <= LAST && waits[19] >= LAST * 7 / 10, "{waits:?}");
        let others: std::collections::BTreeSet<Duration> =
            (0..20).map(|number| patience.lose(&task(&format!("b{number}")), now)).collect();
        assert!(others.len() > 5, "{others:?}");
        assert!(patience.left(&task("a"), now).is_some());
        assert_eq!(patience.left(&task("a"), now + LAST), None);
        patience.lose(&task("c"), now + LAST + FORGET_AFTER);
        assert_eq!(patience.waits().len(), 1, "the others are no more");
        patience.rest(&task("a"), now, FIRST);
        assert_eq!(patience.left(&task("a"), now), Some(FIRST));
        patience.regain(&task("a"));
        assert_eq!(patience.left(&task("a"), now), None);
    }

    #[test]
    fn a_claim_that_goes_waits_for_its_own_failures_only() {
        let (patience, now) = (Patience::default(), Instant::now());
        let (make, undo) = (Task::Provision("1".to_owned()), Task::Settle("1".to_owned()));
        patience.lose(&make, now);
        assert_eq!(patience.left(&undo, now), None);
        patience.lose(&undo, now);
        assert!(patience.left(&undo, now).is_some());
    }

    #[test]
    fn those_that_rest_and_are_no_more_are_forgotten() {
        let task = |name: &str| Task::Reclaim(name.to_owned());
        let (patience, now) = (Patience::default(), Instant::now());
        patience.rest(&task("a"), now, FIRST);
        patience.rest(&task("b"), now + FIRST + FORGET_AFTER, FIRST);
        assert_eq!(patience.waits().keys().cloned().collect::<Vec<_>>(), [task("b")]);
    }
}
