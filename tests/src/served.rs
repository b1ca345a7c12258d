//! Touching a path that a FUSE server answers for. If that server is dead or stuck, the one who touches waits for ever
//! and cannot be killed: so it must never be the test itself.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Runs `touch` on a thread of its own. Panics if it has not returned within `limit`; the thread is left behind, and the
/// end of the cluster, which aborts every FUSE connection, frees it.
pub fn within<T: Send + 'static>(
    what: &str,
    limit: Duration,
    touch: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        // Nobody listens any more when the deadline has passed.
        let _ = sender.send(touch());
    });
    receiver.recv_timeout(limit).unwrap_or_else(|error| match error {
        mpsc::RecvTimeoutError::Timeout => panic!("{what}: no answer within {limit:?}"),
        mpsc::RecvTimeoutError::Disconnected => panic!("{what}: panicked"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_in_time_is_returned() {
        assert_eq!(within("a sum", Duration::from_secs(5), || 1 + 1), 2);
    }

    #[test]
    #[should_panic(expected = "a nap: no answer within 10ms")]
    fn a_late_answer_is_a_failure() {
        within("a nap", Duration::from_millis(10), || thread::sleep(Duration::from_secs(2)));
    }
}
