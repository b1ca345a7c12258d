//! The delay before something that failed is tried again: longer each time, and not the same for all that failed together.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::time::{Duration, Instant};

/// A task that is due is retried within this long, unless it no longer exists.
const FORGET_AFTER: Duration = Duration::from_mins(5);
/// The delay is shortened by less than this, by a different share for each task.
const JITTER_PERCENT: u32 = 30;

/// Delays by task. The first failure waits for `first`, each further one twice as long, up to `longest`.
#[derive(Debug)]
pub struct Backoff<K> {
    first: Duration,
    longest: Duration,
    tasks: HashMap<K, Delay>,
}

#[derive(Clone, Copy, Debug)]
struct Delay {
    failures: u32,
    until: Instant,
}

impl<K: Clone + Eq + Hash> Backoff<K> {
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, tasks: HashMap::new() }
    }

    /// The delay before the next try.
    pub fn record_failure(&mut self, task: &K, now: Instant) -> Duration {
        let failures = self.tasks.get(task).map_or(0, |delay| delay.failures);
        let delay = self.delay(task, failures);
        self.set(task, Delay { failures: failures.saturating_add(1), until: now + delay }, now);
        delay
    }

    /// Not before this long, although it did not fail.
    pub fn hold(&mut self, task: &K, now: Instant, delay: Duration) {
        self.set(task, Delay { failures: 0, until: now + delay }, now);
    }

    pub fn record_success(&mut self, task: &K) {
        self.tasks.remove(task);
    }

    /// How long the task still has to wait.
    pub fn remaining(&self, task: &K, now: Instant) -> Option<Duration> {
        self.tasks.get(task)?.until.checked_duration_since(now).filter(|left| !left.is_zero())
    }

    fn set(&mut self, task: &K, delay: Delay, now: Instant) {
        self.tasks.retain(|_, delay| delay.until + FORGET_AFTER > now);
        self.tasks.insert(task.clone(), delay);
    }

    fn delay(&self, task: &K, failures: u32) -> Duration {
        let mut hasher = DefaultHasher::new();
        (task, failures).hash(&mut hasher);
        let jitter = u32::try_from(hasher.finish() % u64::from(JITTER_PERCENT)).unwrap_or_default();
        let delay = self.first.saturating_mul(1 << failures.min(20)).min(self.longest);
        delay * (100 - jitter) / 100
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(250);
    const LONGEST: Duration = Duration::from_mins(1);

    fn backoff() -> (Backoff<String>, Instant) {
        (Backoff::new(FIRST, LONGEST), Instant::now())
    }

    #[test]
    fn delays_grow_to_a_limit_and_differ() {
        let (mut backoff, now) = backoff();
        let a = "a".to_owned();
        let delays: Vec<Duration> = (0..30).map(|_| backoff.record_failure(&a, now)).collect();
        assert!(delays[0] <= FIRST && delays[0] >= FIRST * 7 / 10, "{delays:?}");
        assert!(delays[4] > delays[2] && delays[2] > delays[0], "{delays:?}");
        assert!(delays[29] <= LONGEST && delays[29] >= LONGEST * 7 / 10, "{delays:?}");
        let others: std::collections::BTreeSet<Duration> =
            (0..20).map(|number| backoff.record_failure(&format!("b{number}"), now)).collect();
        assert!(others.len() > 5, "{others:?}");
    }

    #[test]
    fn a_task_waits_until_its_delay_is_over_or_it_succeeds() {
        let (mut backoff, now) = backoff();
        let (a, b) = ("a".to_owned(), "b".to_owned());
        let delay = backoff.record_failure(&a, now);
        assert_eq!(backoff.remaining(&a, now), Some(delay));
        assert_eq!(backoff.remaining(&a, now + delay), None);
        assert_eq!(backoff.remaining(&b, now), None);
        backoff.hold(&b, now, FIRST);
        assert_eq!(backoff.remaining(&b, now), Some(FIRST));
        backoff.record_success(&b);
        assert_eq!(backoff.remaining(&b, now), None);
    }

    #[test]
    fn tasks_that_no_longer_exist_are_forgotten() {
        let (mut backoff, now) = backoff();
        backoff.hold(&"a".to_owned(), now, FIRST);
        backoff.hold(&"b".to_owned(), now + FIRST + FORGET_AFTER, FIRST);
        assert_eq!(backoff.tasks.into_keys().collect::<Vec<_>>(), ["b"]);
    }
}
