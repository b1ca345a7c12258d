//! When temporary keys are renewed: well before they expire, and after a failure again and again. Once they have expired, a
//! file tells the node why.

use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::sync::Weak;
use std::thread;
use std::time::{Duration, SystemTime};

use exchange::renew_at;
use mounter::EXPIRED;

use crate::meter::METER;

const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Also how long new keys may take after the kubelet has renewed an expired token.
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// How often the clock is read: it may be set while this process sleeps.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Renews keys for as long as their owner lives. `renew` returns when the new ones expire. `folder` is the one shared with
/// the node, `identity` says whose keys they are.
pub(crate) fn keep_renewed<T, E: Display>(
    owner: &Weak<T>,
    mut expires: SystemTime,
    identity: &str,
    folder: &Path,
    renew: impl Fn(&T) -> Result<SystemTime, E>,
) {
    // An earlier process may have left the file.
    report(folder, None);
    METER.keys_expire(expires);
    let mut renewal = Renewal::of_keys(SystemTime::now(), expires);
    while let Some(owner) = owner.upgrade() {
        let now = SystemTime::now();
        if renewal.is_due(now) {
            match renew(&owner) {
                Ok(until) => {
                    expires = until;
                    METER.keys_expire(expires);
                    renewal = Renewal::of_keys(SystemTime::now(), expires);
                    report(folder, None);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot renew the temporary keys; the old ones stay in use");
                    renewal.failed(SystemTime::now());
                    if expires <= now {
                        let why = format!("the temporary keys of {identity} have expired: {error}");
                        report(folder, Some(&why));
                    }
                }
            }
        }
        drop(owner);
        thread::sleep(renewal.pause(SystemTime::now()));
    }
}

/// Replaces the file by renaming, so that the node never sees half of it.
fn report(folder: &Path, failure: Option<&str>) {
    let file = folder.join(EXPIRED);
    let Some(why) = failure else {
        // Most often there is none.
        let _ = fs::remove_file(file);
        return;
    };
    let draft = folder.join(format!(".{EXPIRED}"));
    if let Err(error) = fs::write(&draft, why).and_then(|()| fs::rename(&draft, file)) {
        tracing::warn!(%error, "cannot write {EXPIRED}");
    }
}

#[derive(Debug)]
struct Renewal {
    due: SystemTime,
    failures: u32,
}

impl Renewal {
    /// For keys that were obtained `now`.
    fn of_keys(now: SystemTime, expires: SystemTime) -> Self {
        Self { due: renew_at(now, expires).max(now + FIRST_RETRY), failures: 0 }
    }

    fn failed(&mut self, now: SystemTime) {
        let delay = FIRST_RETRY * 2_u32.saturating_pow(self.failures.min(16));
        self.failures += 1;
        self.due = now + delay.min(LONGEST_RETRY);
    }

    fn is_due(&self, now: SystemTime) -> bool {
        self.due <= now
    }

    /// How long to sleep before the next look.
    fn pause(&self, now: SystemTime) -> Duration {
        self.due.duration_since(now).unwrap_or_default().min(LOOK_EVERY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Instant;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn keys_that_expire_at_once_are_not_renewed_without_pause() {
        for (life, due) in [(3600, 3300), (1, 1), (0, 1)] {
            let renewal = Renewal::of_keys(NOW, NOW + seconds(life));
            assert!(!renewal.is_due(NOW + seconds(due) - Duration::from_millis(1)), "{life}");
            assert!(renewal.is_due(NOW + seconds(due)), "{life}");
        }
    }

    #[test]
    fn the_node_reads_why_keys_have_expired_until_they_are_renewed() {
        let folder = tempfile::tempdir().unwrap();
        let reported = || fs::read_to_string(folder.path().join(EXPIRED)).ok();
        let owner = Arc::new(AtomicBool::new(false));
        let (weak, path) = (Arc::downgrade(&owner), folder.path().to_owned());
        let renewed = thread::spawn(move || {
            keep_renewed(&weak, SystemTime::now(), "role r", &path, |is_back: &AtomicBool| {
                if is_back.load(Relaxed) { Ok(SystemTime::now() + seconds(3600)) } else { Err("STS is away") }
            });
        });
        let until = Instant::now() + seconds(60);
        let wait = |for_it: bool| {
            while reported().is_some() != for_it && Instant::now() < until {
                thread::sleep(Duration::from_millis(10));
            }
        };
        wait(true);
        assert_eq!(reported().as_deref(), Some("the temporary keys of role r have expired: STS is away"));
        owner.store(true, Relaxed);
        wait(false);
        assert_eq!(reported(), None);
        drop(owner);
        renewed.join().unwrap();
    }

    #[test]
    fn failures_are_retried_more_and_more_slowly() {
        let mut renewal = Renewal::of_keys(NOW, NOW);
        let delays = [1, 2, 4, 8, 16, 30, 30];
        for delay in delays {
            renewal.failed(NOW);
            assert!(!renewal.is_due(NOW + seconds(delay - 1)) && renewal.is_due(NOW + seconds(delay)));
        }
        (0..100).for_each(|_| renewal.failed(NOW));
        assert_eq!(renewal.pause(NOW), LOOK_EVERY);
    }
}
