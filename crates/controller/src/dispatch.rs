//! Hands keys to workers: each key to one worker at a time, a failing one later and later, a busy one once more.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::world::Key;

/// A conflict is over as soon as the watch has caught up; a refusal lasts until somebody acts.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_mins(1);

/// How the handling of a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Not finished, without any fault: look again after this long.
    Again(Duration),
    /// Decided on old knowledge: soon again, and later and later if that does not end.
    Outdated,
    /// Again after this long; if nobody says, later and later.
    Failed(Option<Duration>),
}

impl Outcome {
    /// As it is counted.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done | Self::Again(_) => "done",
            Self::Outdated => "outdated",
            Self::Failed(_) => "failed",
        }
    }
}

/// Runs until `stop`. `handle` is called for every key that arrives, at most `workers` at once.
pub async fn dispatch<F>(
    mut arrivals: mpsc::UnboundedReceiver<Key>,
    workers: usize,
    stop: CancellationToken,
    handle: impl Fn(Key) -> F,
    observe: impl Fn(usize),
) where
    F: Future<Output = Outcome> + Send + 'static,
{
    let mut queue = Queue::default();
    let mut running: JoinSet<(Key, Outcome)> = JoinSet::new();
    loop {
        while running.len() < workers
            && let Some(key) = queue.next(Instant::now())
        {
            let handled = handle(key.clone());
            running.spawn(async move { (key, handled.await) });
        }
        observe(queue.len());
        let due = queue.next_retry();
        let waiting_for_retry = async {
            match due {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(finished) = running.join_next() => match finished {
                Ok((key, outcome)) => queue.finished(key, outcome, Instant::now()),
                // Only a panic ends a task so; whoever panicked is not busy any more, but its key is unknown here.
                Err(error) => panic!("a worker ended without an outcome: {error}"),
            },
            arrival = arrivals.recv() => match arrival {
                Some(key) => queue.arrive(key),
                None => break,
            },
            () = waiting_for_retry => {}
        }
    }
    // Running steps come to their end; each is bounded by its own deadline.
    while running.join_next().await.is_some() {}
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<Key>,
    queued: HashSet<Key>,
    busy: HashSet<Key>,
    /// Arrived while busy: what is being decided may not have seen why.
    again: HashSet<Key>,
    retries: BTreeMap<Instant, Vec<Key>>,
    /// When a key's retry is due: one that was put off or overtaken is still in the list above, and void.
    due: HashMap<Key, Instant>,
    failures: HashMap<Key, u32>,
}

impl Queue {
    fn arrive(&mut self, key: Key) {
        if self.busy.contains(&key) {
            self.again.insert(key);
        } else if self.queued.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn next(&mut self, now: Instant) -> Option<Key> {
        while let Some(entry) = self.retries.first_entry().filter(|entry| *entry.key() <= now) {
            let (at, keys) = entry.remove_entry();
            for key in keys {
                if self.due.get(&key) == Some(&at) {
                    self.arrive(key);
                }
            }
        }
        let key = self.ready.pop_front()?;
        self.queued.remove(&key);
        self.due.remove(&key);
        self.busy.insert(key.clone());
        Some(key)
    }

    fn finished(&mut self, key: Key, outcome: Outcome, now: Instant) {
        self.busy.remove(&key);
        let delay = match outcome {
            Outcome::Done => {
                self.failures.remove(&key);
                None
            }
            Outcome::Again(delay) | Outcome::Failed(Some(delay)) => Some(delay),
            Outcome::Outdated | Outcome::Failed(None) => {
                let failures = self.failures.entry(key.clone()).or_default();
                let delay = FIRST_RETRY.saturating_mul(1 << (*failures).min(20)).min(LAST_RETRY);
                *failures += 1;
                Some(delay)
            }
        };
        if self.again.remove(&key) {
            self.arrive(key);
        } else if let Some(delay) = delay {
            self.due.insert(key.clone(), now + delay);
            self.retries.entry(now + delay).or_default().push(key);
        }
    }

    fn next_retry(&self) -> Option<Instant> {
        self.retries.keys().next().copied()
    }

    fn len(&self) -> usize {
        self.ready.len() + self.due.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::Group(name.to_owned())
    }

    #[test]
    fn a_key_waits_once_and_is_handled_by_one_worker() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.arrive(key("a"));
        queue.arrive(key("a"));
        assert_eq!(queue.next(now), Some(key("a")));
        assert_eq!(queue.next(now), None);
        queue.arrive(key("a"));
        assert_eq!(queue.next(now), None, "a is busy");
        queue.finished(key("a"), Outcome::Done, now);
        assert_eq!(queue.next(now), Some(key("a")), "it arrived while it was busy");
        queue.finished(key("a"), Outcome::Done, now);
        assert_eq!(queue.next(now), None);
    }

    #[test]
    fn failures_wait_longer_each_time_and_are_forgotten() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        queue.arrive(key("a"));
        let mut waits = Vec::new();
        for _ in 0..15 {
            assert_eq!(queue.next(now), Some(key("a")));
            queue.finished(key("a"), Outcome::Failed(None), now);
            let due = queue.next_retry().unwrap();
            waits.push(due - now);
            assert_eq!(queue.next(now), None, "not before its time");
            now = due;
        }
        assert_eq!(waits[..3], [20, 40, 80].map(Duration::from_millis));
        assert_eq!(waits.last(), Some(&LAST_RETRY));
        assert_eq!(queue.next(now), Some(key("a")));
        queue.finished(key("a"), Outcome::Done, now);
        queue.arrive(key("a"));
        assert_eq!(queue.next(now), Some(key("a")));
        queue.finished(key("a"), Outcome::Failed(None), now);
        assert_eq!(queue.next_retry().unwrap() - now, FIRST_RETRY);
    }

    #[test]
    fn a_key_has_one_retry_at_most() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for _ in 0..5 {
            queue.arrive(key("a"));
            assert_eq!(queue.next(now), Some(key("a")));
            queue.finished(key("a"), Outcome::Failed(None), now);
        }
        assert_eq!(queue.len(), 1);
        let later = now + LAST_RETRY;
        assert_eq!(queue.next(later), Some(key("a")));
        queue.finished(key("a"), Outcome::Done, later);
        assert_eq!((queue.next(later), queue.len()), (None, 0));
    }

    #[test]
    fn news_does_not_wait_for_a_retry() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.arrive(key("a"));
        queue.next(now);
        queue.arrive(key("a"));
        queue.finished(key("a"), Outcome::Failed(None), now);
        assert_eq!(queue.next(now), Some(key("a")));
    }

    #[test]
    fn who_knows_when_is_asked_again_then() {
        let (mut queue, now, wait) = (Queue::default(), Instant::now(), Duration::from_secs(7));
        for outcome in [Outcome::Again(wait), Outcome::Failed(Some(wait))] {
            queue.arrive(key("a"));
            assert_eq!(queue.next(now), Some(key("a")));
            queue.finished(key("a"), outcome, now);
            assert_eq!(queue.due[&key("a")], now + wait);
        }
    }
}
