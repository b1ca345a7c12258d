//! How long a request waits for an S3 server that sends nothing. What counts is the time without any byte, not the
//! duration: a large upload over a slow line may take hours.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use mountpoint_s3_client::S3RequestError;
use mountpoint_s3_client::error::ObjectClientError;
use mountpoint_s3_client::types::ObjectClientResult;
use mountpoint_s3_crt::s3::client::RequestMetrics;
use parking_lot::{Condvar, Mutex};
use thiserror::Error;

/// What the S3 client returns for a request.
pub(crate) type Answer<T, E> = ObjectClientResult<T, E, S3RequestError>;

/// How late a request may notice that its time is over.
const CHECK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Error)]
#[error("the S3 server has not responded for {} s (`server-timeout`)", .0.as_secs())]
pub(crate) struct ServerTimedOut(Duration);

/// Whether a request has failed because of that.
pub(crate) fn has_timed_out(error: &S3RequestError) -> bool {
    matches!(error, S3RequestError::InternalError(reason) if reason.is::<ServerTimedOut>())
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// A response of some kilobytes, which comes at once if it comes.
    Answer,
    /// Contents, sent or received: they arrive here in parts of megabytes, but the client sees every byte, and ends an
    /// attempt when none has moved for 30 s.
    Transfer,
}

/// When the server was last heard, by all requests together.
#[derive(Debug, Default)]
struct Activity {
    /// It answered an attempt, if only with an error.
    answered: Option<Instant>,
    /// An attempt ended without an answer.
    unanswered: Option<Instant>,
    /// A timeout was logged, and nothing was heard since.
    reported: bool,
}

impl Activity {
    fn has_timed_out(&self, awaited: Awaited, since: Instant, now: Instant, limit: Duration) -> bool {
        let since = self.answered.map_or(since, |answered| answered.max(since));
        let stalled = self.unanswered.is_some_and(|unanswered| unanswered >= since);
        now.duration_since(since) >= limit && (awaited == Awaited::Answer || stalled)
    }
}

#[derive(Debug)]
pub(crate) struct ServerTimeout {
    limit: Duration,
    activity: Mutex<Activity>,
    waits: Mutex<HashMap<u64, Waker>>,
    waited_for: Condvar,
    next: AtomicU64,
}

impl ServerTimeout {
    pub(crate) fn new(limit: Duration) -> std::io::Result<Arc<Self>> {
        let timeout = Arc::new(Self {
            limit,
            activity: Mutex::default(),
            waits: Mutex::default(),
            waited_for: Condvar::new(),
            next: AtomicU64::new(0),
        });
        let clock = Arc::clone(&timeout);
        thread::Builder::new().name("server-timeout".to_owned()).spawn(move || clock.tick())?;
        Ok(timeout)
    }

    /// Wakes everything that waits, because nothing else does when the server sends nothing.
    fn tick(&self) {
        loop {
            self.waited_for.wait_while(&mut self.waits.lock(), |waits| waits.is_empty());
            thread::sleep(CHECK_EVERY);
            let waits = std::mem::take(&mut *self.waits.lock());
            waits.into_values().for_each(Waker::wake);
        }
    }

    /// The result of the work, unless the server sends nothing for too long meanwhile.
    pub(crate) async fn limit<T>(
        &self,
        awaited: Awaited,
        work: impl Future<Output = T>,
    ) -> Result<T, ServerTimedOut> {
        let mut work = pin!(work);
        let wait = Wait::begin(self, awaited);
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Pending => wait.check(context).map(Err),
            Poll::Ready(done) => Poll::Ready(Ok(done)),
        })
        .await
    }

    /// The same for a request, which then fails.
    pub(crate) async fn limit_request<T, E>(
        &self,
        awaited: Awaited,
        request: impl Future<Output = Answer<T, E>>,
    ) -> Answer<T, E> {
        self.limit(awaited, request).await.unwrap_or_else(|timed_out| {
            Err(ObjectClientError::ClientError(S3RequestError::InternalError(Box::new(timed_out))))
        })
    }
}

impl ServerTimeout {
    /// An attempt at a request has ended.
    pub(crate) fn attempted(&self, attempt: &RequestMetrics) {
        if attempt.is_canceled() {
            return;
        }
        // A response that breaks off has a status, too.
        let answered = attempt.status_code().is_some_and(|status| status >= 300 || !attempt.error().is_err());
        let mut activity = self.activity.lock();
        if !answered {
            activity.unanswered = Some(Instant::now());
            return;
        }
        activity.answered = Some(Instant::now());
        if std::mem::take(&mut activity.reported) {
            tracing::info!("the S3 server is responding again");
        }
    }
}

/// One wait for the server.
struct Wait<'a> {
    timeout: &'a ServerTimeout,
    awaited: Awaited,
    number: u64,
    since: Instant,
}

impl<'a> Wait<'a> {
    fn begin(timeout: &'a ServerTimeout, awaited: Awaited) -> Self {
        let number = timeout.next.fetch_add(1, Ordering::Relaxed);
        Self { timeout, awaited, number, since: Instant::now() }
    }

    /// Ready if the server has timed out; otherwise the context is woken again to check.
    fn check(&self, context: &Context<'_>) -> Poll<ServerTimedOut> {
        let ServerTimeout { limit, activity, waits, waited_for, .. } = self.timeout;
        let mut activity = activity.lock();
        if activity.has_timed_out(self.awaited, self.since, Instant::now(), *limit) {
            if !std::mem::replace(&mut activity.reported, true) {
                tracing::warn!(seconds = limit.as_secs(), "the S3 server is not responding; requests fail");
            }
            return Poll::Ready(ServerTimedOut(*limit));
        }
        drop(activity);
        waits.lock().insert(self.number, context.waker().clone());
        waited_for.notify_one();
        Poll::Pending
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.timeout.waits.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;
    use mountpoint_s3_client::error::HeadObjectError;

    const LIMIT: Duration = Duration::from_secs(100);

    fn times_out(awaited: Awaited, answered: Option<u64>, unanswered: Option<u64>, now: u64) -> bool {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let activity =
            Activity { answered: answered.map(at), unanswered: unanswered.map(at), reported: false };
        // The request began in the 50th second.
        activity.has_timed_out(awaited, at(50), at(now), LIMIT)
    }

    #[test]
    fn a_request_waits_for_an_answer_up_to_the_limit() {
        assert!(!times_out(Awaited::Answer, None, None, 149));
        assert!(times_out(Awaited::Answer, None, None, 150));
        assert!(
            times_out(Awaited::Answer, Some(20), None, 150),
            "an answer before the request does not count"
        );
    }

    #[test]
    fn a_server_that_answers_with_errors_is_responding() {
        assert!(!times_out(Awaited::Answer, Some(140), None, 200));
        assert!(times_out(Awaited::Answer, Some(140), None, 240));
    }

    #[test]
    fn a_transfer_may_take_any_time_while_bytes_move() {
        assert!(!times_out(Awaited::Transfer, None, None, 100_000));
        assert!(!times_out(Awaited::Transfer, None, Some(40), 100_000), "unanswered before it began");
        assert!(!times_out(Awaited::Transfer, Some(90), Some(80), 100_000), "answered since");
        assert!(times_out(Awaited::Transfer, Some(90), Some(120), 190));
        assert!(!times_out(Awaited::Transfer, Some(90), Some(120), 189));
    }

    #[test]
    fn a_request_that_nothing_wakes_ends() {
        let timeout = ServerTimeout::new(Duration::from_millis(10)).unwrap();
        let never = std::future::pending::<Answer<(), HeadObjectError>>();
        let error = block_on(timeout.limit_request(Awaited::Answer, never)).unwrap_err();
        let ObjectClientError::ClientError(error) = error else { panic!() };
        assert!(has_timed_out(&error) && !has_timed_out(&S3RequestError::NoSigningCredentials));
        let S3RequestError::InternalError(error) = error else { panic!() };
        assert!(error.to_string().contains("`server-timeout`"), "{error}");
        assert!(timeout.waits.lock().is_empty());
    }
}
