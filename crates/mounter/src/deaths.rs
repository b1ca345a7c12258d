//! Whether a mount process that died gets a successor, and when.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Mount processes in a row that die before they serve, after which there is no other: programs get errors instead of
/// waiting forever.
const MOST_FAILED_STARTS: u32 = 5;
/// Before the next start, as what is wrong may pass.
const PAUSE: Duration = Duration::from_secs(1);
/// Deaths in [`PERIOD`] after which there is no other, although each has served: they die as fast as they are started.
const MOST_DEATHS: usize = 300;
const PERIOD: Duration = Duration::from_mins(1);

#[derive(Debug, Default)]
pub(crate) struct Deaths {
    /// All of them, since the mount began.
    pub(crate) count: u64,
    recent: VecDeque<Instant>,
    failed_starts: u32,
}

impl Deaths {
    /// When the successor of a process that has died now is to be started; `None` if never.
    pub(crate) fn next_start(&mut self, has_served: bool, now: Instant) -> Option<Instant> {
        self.count += 1;
        self.recent.push_back(now);
        self.recent.retain(|death| now.duration_since(*death) < PERIOD);
        self.failed_starts = if has_served { 0 } else { self.failed_starts + 1 };
        let pause = if has_served { Duration::ZERO } else { PAUSE };
        let is_of_use = self.failed_starts < MOST_FAILED_STARTS && self.recent.len() <= MOST_DEATHS;
        is_of_use.then_some(now + pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mounter::deadlines::MOUNT_PROCESS_REPLY;

    #[test]
    fn a_process_that_has_served_gets_a_successor_at_once() {
        let (mut deaths, mut now) = (Deaths::default(), Instant::now());
        for _ in 0..1000 {
            assert_eq!(deaths.next_start(true, now), Some(now));
            now += Duration::from_millis(210);
        }
        let mut died = 0;
        while deaths.next_start(true, now).is_some() {
            died += 1;
        }
        assert!(died < MOST_DEATHS, "{died} died at once");
    }

    /// As docs/failures.md says: programs wait for no longer than that.
    #[test]
    fn successors_that_do_not_report_are_given_up_within_a_minute() {
        let (mut deaths, begin) = (Deaths::default(), Instant::now());
        let mut start = deaths.next_start(true, begin);
        let mut given_up = begin;
        while let Some(started) = start {
            given_up = started + MOUNT_PROCESS_REPLY;
            start = deaths.next_start(false, given_up);
        }
        let waited = given_up - begin;
        assert!(waited >= MOUNT_PROCESS_REPLY * MOST_FAILED_STARTS && waited < Duration::from_mins(1));
    }

    #[test]
    fn starts_that_fail_are_repeated_a_few_times() {
        let (mut deaths, begin) = (Deaths::default(), Instant::now());
        let mut now = begin;
        for _ in 1..MOST_FAILED_STARTS {
            now = deaths.next_start(false, now).unwrap();
        }
        assert_eq!(now - begin, PAUSE * 4);
        assert_eq!(deaths.next_start(true, now), Some(now), "one of them has served");
        for _ in 1..MOST_FAILED_STARTS {
            now = deaths.next_start(false, now).unwrap();
        }
        assert_eq!(deaths.next_start(false, now), None);
    }
}
