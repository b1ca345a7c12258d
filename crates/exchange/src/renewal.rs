//! When temporary keys are renewed.

use std::time::{Duration, SystemTime};

/// How long before their expiry keys are renewed, so that minutes without the server do no harm. Amazon's live for an hour,
/// and never less than 15 minutes.
const MARGIN: Duration = Duration::from_mins(5);

/// When keys that were obtained `now` are to be renewed.
pub fn renew_at(now: SystemTime, expires: SystemTime) -> SystemTime {
    let life = expires.duration_since(now).unwrap_or_default();
    now + life.saturating_sub(MARGIN.min(life / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_renewed_before_they_expire() {
        let (now, seconds) = (SystemTime::UNIX_EPOCH, Duration::from_secs);
        for (life, due) in [(3600, 3300), (900, 600), (60, 30), (0, 0)] {
            assert_eq!(renew_at(now, now + seconds(life)), now + seconds(due), "{life}");
        }
    }
}
