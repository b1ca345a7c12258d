//! Hands keys to workers: each key to one worker at a time, a failing one with a growing delay, and one that changed while
//! it was being handled once more.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use service::backoff::Backoff;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::time::{DelayQueue, delay_queue};

use crate::key::Key;

/// A conflict is over as soon as the watch has caught up; a refusal lasts until something is changed.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_mins(1);

/// How the handling of a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Not finished, without any fault: look again after this long.
    Again(Duration),
    /// The decision was based on an outdated object: soon again, with a growing delay.
    Conflict,
    /// Again after this long; with a growing delay where none is given.
    Failed(Option<Duration>),
}

impl Outcome {
    /// For metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done | Self::Again(_) => "done",
            Self::Conflict => "outdated",
            Self::Failed(_) => "failed",
        }
    }
}

/// What waits in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// For a worker.
    pub ready: usize,
    /// For its time: what failed, and what is only to be looked at again.
    pub retries: usize,
}

/// Runs until `stop`. `handle` is called for every key that arrives, at most `workers` at once.
pub async fn dispatch<F>(
    mut arrivals: mpsc::UnboundedReceiver<Key>,
    workers: usize,
    stop: CancellationToken,
    handle: impl Fn(Key) -> F,
    observe: impl Fn(Depth),
) where
    F: Future<Output = Outcome> + Send + 'static,
{
    let mut queue = Queue::default();
    let mut running: JoinSet<(Key, Outcome)> = JoinSet::new();
    loop {
        while running.len() < workers
            && let Some(key) = queue.next()
        {
            let handled = handle(key.clone());
            running.spawn(async move { (key, handled.await) });
        }
        observe(queue.depth());
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(finished) = running.join_next() => match finished {
                Ok((key, outcome)) => queue.finished(key, outcome),
                // Only a panic ends a task like this, and the key of the task that panicked is unknown here.
                Err(error) => panic!("a worker ended without an outcome: {error}"),
            },
            arrival = arrivals.recv() => match arrival {
                Some(key) => queue.arrive(key),
                None => break,
            },
            Some(due) = queue.retries.next(), if !queue.retries.is_empty() => queue.retry(due.into_inner()),
        }
    }
    // Running steps end by their own deadlines.
    while running.join_next().await.is_some() {}
}

struct Queue {
    ready: VecDeque<Key>,
    queued: HashSet<Key>,
    busy: HashSet<Key>,
    /// Arrived while busy: what is being decided may not have seen why.
    again: HashSet<Key>,
    retries: DelayQueue<Key>,
    due: HashMap<Key, delay_queue::Key>,
    backoff: Backoff<Key>,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            ready: VecDeque::new(),
            queued: HashSet::new(),
            busy: HashSet::new(),
            again: HashSet::new(),
            retries: DelayQueue::new(),
            due: HashMap::new(),
            backoff: Backoff::new(FIRST_RETRY, LAST_RETRY),
        }
    }
}

impl Queue {
    fn arrive(&mut self, key: Key) {
        if self.busy.contains(&key) {
            self.again.insert(key);
        } else if self.queued.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn retry(&mut self, key: Key) {
        self.due.remove(&key);
        self.arrive(key);
    }

    fn next(&mut self) -> Option<Key> {
        let key = self.ready.pop_front()?;
        self.queued.remove(&key);
        // It arrived before its retry was due.
        if let Some(due) = self.due.remove(&key) {
            self.retries.remove(&due);
        }
        self.busy.insert(key.clone());
        Some(key)
    }

    fn finished(&mut self, key: Key, outcome: Outcome) {
        self.busy.remove(&key);
        let delay = match outcome {
            Outcome::Done => {
                self.backoff.record_success(&key);
                None
            }
            Outcome::Again(delay) | Outcome::Failed(Some(delay)) => Some(delay),
            Outcome::Conflict | Outcome::Failed(None) => {
                Some(self.backoff.record_failure(&key, Instant::now()))
            }
        };
        if self.again.remove(&key) {
            self.arrive(key);
        } else if let Some(delay) = delay {
            self.due.insert(key.clone(), self.retries.insert(key, delay));
        }
    }

    fn depth(&self) -> Depth {
        Depth { ready: self.ready.len(), retries: self.due.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: Depth = Depth { ready: 0, retries: 0 };

    fn key(name: &str) -> Key {
        Key::Group(name.to_owned())
    }

    async fn retried(queue: &mut Queue) -> Option<Key> {
        let due = queue.retries.next().await?.into_inner();
        queue.retry(due);
        queue.next()
    }

    #[tokio::test]
    async fn a_key_waits_once_and_is_handled_by_one_worker() {
        let mut queue = Queue::default();
        queue.arrive(key("a"));
        queue.arrive(key("a"));
        assert_eq!(queue.next(), Some(key("a")));
        assert_eq!(queue.next(), None);
        queue.arrive(key("a"));
        assert_eq!(queue.next(), None, "a is busy");
        queue.arrive(key("b"));
        assert_eq!(queue.depth(), Depth { ready: 1, retries: 0 });
        assert_eq!(queue.next(), Some(key("b")));
        queue.finished(key("a"), Outcome::Done);
        assert_eq!(queue.next(), Some(key("a")), "it arrived while it was busy");
        queue.finished(key("a"), Outcome::Done);
        assert_eq!(queue.next(), None);
    }

    #[tokio::test]
    async fn failures_wait_longer_each_time_and_are_forgotten() {
        let mut queue = Queue::default();
        queue.arrive(key("a"));
        assert_eq!(queue.next(), Some(key("a")));
        let began = Instant::now();
        for _ in 0..4 {
            queue.finished(key("a"), Outcome::Failed(None));
            assert_eq!(queue.next(), None, "not before its time");
            assert_eq!(retried(&mut queue).await, Some(key("a")));
        }
        // 20 + 40 + 80 + 160 ms, each up to 30 % shorter.
        assert!(began.elapsed() >= FIRST_RETRY * 15 * 7 / 10, "{:?}", began.elapsed());
        queue.finished(key("a"), Outcome::Done);
        assert_eq!((queue.next(), queue.depth()), (None, EMPTY));
        assert_eq!(queue.backoff.remaining(&key("a"), began), None);
    }

    #[tokio::test]
    async fn a_key_has_one_retry_at_most() {
        let mut queue = Queue::default();
        for _ in 0..5 {
            queue.arrive(key("a"));
            assert_eq!(queue.next(), Some(key("a")));
            queue.finished(key("a"), Outcome::Failed(None));
        }
        assert_eq!((queue.depth(), queue.retries.len()), (Depth { ready: 0, retries: 1 }, 1));
        assert_eq!(retried(&mut queue).await, Some(key("a")));
        queue.finished(key("a"), Outcome::Done);
        assert_eq!((queue.next(), queue.depth()), (None, EMPTY));
    }

    #[tokio::test]
    async fn a_change_does_not_wait_for_a_retry() {
        let mut queue = Queue::default();
        queue.arrive(key("a"));
        queue.next();
        queue.arrive(key("a"));
        queue.finished(key("a"), Outcome::Failed(None));
        assert_eq!(queue.next(), Some(key("a")));
    }

    #[tokio::test]
    async fn a_given_delay_is_kept() {
        let (mut queue, began, wait) = (Queue::default(), Instant::now(), Duration::from_millis(50));
        for outcome in [Outcome::Again(wait), Outcome::Failed(Some(wait))] {
            queue.arrive(key("a"));
            queue.next();
            queue.finished(key("a"), outcome);
            assert_eq!(retried(&mut queue).await, Some(key("a")));
            queue.finished(key("a"), Outcome::Done);
        }
        assert!(began.elapsed() >= wait * 2, "{:?}", began.elapsed());
    }
}
