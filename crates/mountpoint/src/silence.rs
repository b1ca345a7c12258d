//! How long a request waits for a server that sends nothing. What counts is silence and not duration: a large upload over a
//! slow line may take hours, as long as bytes move.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use mountpoint_s3_client::error::ObjectClientError;
use mountpoint_s3_client::{OnTelemetry, S3RequestError};
use mountpoint_s3_crt::s3::client::RequestMetrics;
use thiserror::Error;

use crate::client::Answer;

/// How late a request may notice that its time is over.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Error)]
#[error("the S3 server has sent nothing for {} s (`server-timeout`)", .0.as_secs())]
pub(crate) struct Silent(Duration);

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// An answer of some kilobytes, which comes at once if it comes.
    Answer,
    /// Contents, sent or received: they arrive here in parts of megabytes, but the client sees every byte of them, and
    /// gives an attempt up when none has moved for 30 s.
    Transfer,
}

/// The newest signs of the server's life, of all requests together.
#[derive(Debug, Default)]
struct Signs {
    /// It answered an attempt, were it with an error.
    answered: Option<Instant>,
    /// An attempt was given up without an answer.
    given_up: Option<Instant>,
    /// Requests have failed for it, and nothing was heard since.
    reported: bool,
}

impl Signs {
    fn is_silent(&self, awaited: Awaited, since: Instant, now: Instant, limit: Duration) -> bool {
        let since = self.answered.map_or(since, |answered| answered.max(since));
        let stalled = self.given_up.is_some_and(|given_up| given_up >= since);
        now.duration_since(since) >= limit && (awaited == Awaited::Answer || stalled)
    }
}

#[derive(Debug)]
pub(crate) struct Silence {
    limit: Duration,
    signs: Mutex<Signs>,
    waits: Mutex<HashMap<u64, Waker>>,
    waited_for: Condvar,
    next: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Silence {
    pub(crate) fn new(limit: Duration) -> std::io::Result<Arc<Self>> {
        let silence = Arc::new(Self {
            limit,
            signs: Mutex::default(),
            waits: Mutex::default(),
            waited_for: Condvar::new(),
            next: AtomicU64::new(0),
        });
        let clock = Arc::clone(&silence);
        thread::Builder::new().name("server-timeout".to_owned()).spawn(move || clock.tick())?;
        Ok(silence)
    }

    /// Wakes whatever waits, as silence makes no sound.
    fn tick(&self) {
        loop {
            let waits = lock(&self.waits);
            drop(self.waited_for.wait_while(waits, |waits| waits.is_empty()));
            thread::sleep(LOOK_EVERY);
            let waits = std::mem::take(&mut *lock(&self.waits));
            waits.into_values().for_each(Waker::wake);
        }
    }

    /// What comes of the work, unless the server is silent for too long meanwhile.
    pub(crate) async fn limit<T>(
        &self,
        awaited: Awaited,
        work: impl Future<Output = T>,
    ) -> Result<T, Silent> {
        let mut work = pin!(work);
        let wait = Wait::begin(self, awaited);
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Pending => wait.go_on(context).map(Err),
            Poll::Ready(done) => Poll::Ready(Ok(done)),
        })
        .await
    }

    /// The same for a request, whose failure it becomes.
    pub(crate) async fn end<T, E>(
        &self,
        awaited: Awaited,
        request: impl Future<Output = Answer<T, E>>,
    ) -> Answer<T, E> {
        self.limit(awaited, request).await.unwrap_or_else(|silent| {
            Err(ObjectClientError::ClientError(S3RequestError::InternalError(Box::new(silent))))
        })
    }
}

impl OnTelemetry for Silence {
    /// The client calls this after each attempt at a request.
    fn on_telemetry(&self, attempt: &RequestMetrics) {
        if attempt.is_canceled() {
            return;
        }
        // An answer that breaks off has a status, too.
        let answered = attempt.status_code().is_some_and(|status| status >= 300 || !attempt.error().is_err());
        let mut signs = lock(&self.signs);
        if !answered {
            signs.given_up = Some(Instant::now());
            return;
        }
        signs.answered = Some(Instant::now());
        if std::mem::take(&mut signs.reported) {
            tracing::info!("the S3 server answers again");
        }
    }
}

/// One wait for the server, from when it begins.
struct Wait<'a> {
    silence: &'a Silence,
    awaited: Awaited,
    number: u64,
    since: Instant,
}

impl<'a> Wait<'a> {
    fn begin(silence: &'a Silence, awaited: Awaited) -> Self {
        let number = silence.next.fetch_add(1, Ordering::Relaxed);
        Self { silence, awaited, number, since: Instant::now() }
    }

    /// To be asked whenever there is nothing yet: ready if it is not worth waiting any longer.
    fn go_on(&self, context: &Context<'_>) -> Poll<Silent> {
        let Silence { limit, signs, waits, waited_for, .. } = self.silence;
        let mut signs = lock(signs);
        if signs.is_silent(self.awaited, self.since, Instant::now(), *limit) {
            if !std::mem::replace(&mut signs.reported, true) {
                tracing::warn!(
                    seconds = limit.as_secs(),
                    "the S3 server is silent; requests end with an error"
                );
            }
            return Poll::Ready(Silent(*limit));
        }
        drop(signs);
        lock(waits).insert(self.number, context.waker().clone());
        waited_for.notify_one();
        Poll::Pending
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        lock(&self.silence.waits).remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;
    use mountpoint_s3_client::error::HeadObjectError;

    const LIMIT: Duration = Duration::from_secs(100);

    fn silent(awaited: Awaited, answered: Option<u64>, given_up: Option<u64>, now: u64) -> bool {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let signs = Signs { answered: answered.map(at), given_up: given_up.map(at), reported: false };
        // The request began in the 50th second.
        signs.is_silent(awaited, at(50), at(now), LIMIT)
    }

    #[test]
    fn an_answer_is_awaited_for_the_limit() {
        assert!(!silent(Awaited::Answer, None, None, 149));
        assert!(silent(Awaited::Answer, None, None, 150));
        assert!(silent(Awaited::Answer, Some(20), None, 150), "what was before does not count");
    }

    #[test]
    fn a_server_that_refuses_is_not_silent() {
        assert!(!silent(Awaited::Answer, Some(140), None, 200));
        assert!(silent(Awaited::Answer, Some(140), None, 240));
    }

    #[test]
    fn a_transfer_may_take_any_time_while_bytes_move() {
        assert!(!silent(Awaited::Transfer, None, None, 100_000));
        assert!(!silent(Awaited::Transfer, None, Some(40), 100_000), "given up before it began");
        assert!(!silent(Awaited::Transfer, Some(90), Some(80), 100_000), "answered since");
        assert!(silent(Awaited::Transfer, Some(90), Some(120), 190));
        assert!(!silent(Awaited::Transfer, Some(90), Some(120), 189));
    }

    #[test]
    fn a_request_that_nothing_wakes_ends() {
        let silence = Silence::new(Duration::from_millis(10)).unwrap();
        let never = std::future::pending::<Answer<(), HeadObjectError>>();
        let error = block_on(silence.end(Awaited::Answer, never)).unwrap_err();
        let ObjectClientError::ClientError(S3RequestError::InternalError(error)) = error else { panic!() };
        assert!(error.to_string().contains("`server-timeout`"), "{error}");
        assert!(lock(&silence.waits).is_empty());
    }
}
