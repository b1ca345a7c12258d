//! Decides which mounts are dead, which have been unresponsive for too long, and when to check again. Pure.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mounter::deadlines::CHECK;
use service::backoff::Backoff;

use super::reports::Reports;
use crate::liveness::{Liveness, REPLACED_AFTER};
use crate::mount_table::{Device, MountTable};

/// Reported after this long: less may be a busy node.
const REPORTED_AFTER: Duration = Duration::from_secs(10);
/// Nothing reports that a mount process stopped answering.
const POLL_INTERVAL: Duration = Duration::from_secs(15);
/// Between checks although a deadline is nearer.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
/// While a mount is dead: its Mountpoint Pod is being restarted or replaced.
const FIRST_RETRY: Duration = Duration::from_secs(2);
/// The longest delay between retries: during an attempt, the kubelet's own calls for the target get ABORTED.
const MAX_RETRY: Duration = Duration::from_secs(30);

/// One file system at the targets of published volumes.
#[derive(Clone, Debug)]
pub struct ObservedMount {
    pub device: Device,
    /// `None` if its source mount is gone.
    pub source: Option<PathBuf>,
    pub targets: Vec<PathBuf>,
    pub liveness: Liveness,
    /// Why its temporary keys have expired, if they have.
    pub expired_keys: Option<String>,
    /// How many of its mount processes have died, and why the last one did. `None` if unknown.
    pub deaths: Option<(u64, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Targets to remount.
    pub dead: Vec<PathBuf>,
    /// Number of targets whose mount process does not answer.
    pub unresponsive: usize,
    /// Those of them that have been unresponsive long enough for an Event.
    pub report_unresponsive: Vec<PathBuf>,
    pub abort: Vec<Abort>,
    /// Targets whose mount process answers, with the reason why its keys have expired, if they have.
    pub keys: Vec<(PathBuf, Option<String>)>,
    pub deaths: Vec<Deaths>,
    pub next_check: Duration,
}

/// Deaths of mount processes since the last check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deaths {
    /// Those that another mount process continues to serve.
    pub targets: Vec<PathBuf>,
    pub count: u64,
    /// Of the last one.
    pub reason: String,
}

/// A source mount that has been unresponsive for too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abort {
    pub source: PathBuf,
    pub device: Device,
}

/// What is remembered from one check to the next.
#[derive(Debug)]
pub struct Healing {
    unresponsive_since: HashMap<Device, Instant>,
    reports: Reports,
    backoff: Backoff<()>,
}

impl Default for Healing {
    fn default() -> Self {
        let backoff = Backoff::new(FIRST_RETRY, MAX_RETRY);
        Self { unresponsive_since: HashMap::new(), reports: Reports::default(), backoff }
    }
}

impl Healing {
    /// With the mounts that an earlier node service has left.
    pub fn inheriting(table: &MountTable) -> Self {
        Self { reports: Reports::inheriting(table), ..Self::default() }
    }

    pub fn forget_ended(&mut self, table: &MountTable) {
        self.reports.forget_ended(table);
    }

    /// `began` is when the mounts were asked, `now` when the last one had answered, or had not in time.
    pub fn plan(&mut self, observed: Vec<ObservedMount>, began: Instant, now: Instant) -> Plan {
        let before = std::mem::take(&mut self.unresponsive_since);
        let (mut dead, mut unresponsive) = (Vec::new(), 0);
        let (mut report_unresponsive, mut abort) = (Vec::new(), Vec::new());
        let (mut keys, mut deaths) = (Vec::new(), Vec::new());
        for ObservedMount { device, source, targets, liveness, expired_keys, deaths: reported } in observed {
            match liveness {
                Liveness::Dead(_) => {
                    deaths.extend(self.new_deaths(device, Vec::new(), reported));
                    dead.extend(targets);
                }
                Liveness::Unresponsive => {
                    let since = before.get(&device).copied().unwrap_or(began);
                    self.unresponsive_since.insert(device, since);
                    unresponsive += targets.len();
                    if now - since >= REPORTED_AFTER {
                        report_unresponsive.extend(targets);
                    }
                    // Without a source, its Mountpoint Pod is gone or replaced, and the next publish covers it.
                    if let Some(source) = source.filter(|_| now - since >= REPLACED_AFTER) {
                        abort.push(Abort { source, device });
                    }
                }
                Liveness::Alive if self.reports.take(device, now) => {
                    deaths.extend(self.new_deaths(device, targets.clone(), reported));
                    keys.extend(targets.into_iter().map(|target| (target, expired_keys.clone())));
                }
                Liveness::Alive | Liveness::NotMounted => {}
            }
        }
        // A mount that is aborted is dead soon, and nothing reports that either.
        let regular = if dead.is_empty() && abort.is_empty() {
            self.backoff.record_success(&());
            POLL_INTERVAL
        } else {
            self.backoff.record_failure(&(), now)
        };
        let next_check =
            self.next_deadline(now).map_or(regular, |until| until.max(SHORTEST_WAIT).min(regular));
        Plan { dead, unresponsive, report_unresponsive, abort, keys, deaths, next_check }
    }

    /// How long until a check, which takes its whole time then, finds that a mount has been unresponsive for long enough to be
    /// reported or replaced.
    fn next_deadline(&self, now: Instant) -> Option<Duration> {
        let deadlines = self
            .unresponsive_since
            .values()
            .flat_map(|since| [REPORTED_AFTER, REPLACED_AFTER].map(|after| *since + after));
        let ahead = deadlines.filter_map(|deadline| deadline.checked_duration_since(now));
        ahead.filter(|ahead| !ahead.is_zero()).min().map(|ahead| ahead.saturating_sub(CHECK))
    }

    fn new_deaths(
        &mut self,
        device: Device,
        targets: Vec<PathBuf>,
        reported: Option<(u64, String)>,
    ) -> Option<Deaths> {
        let (count, reason) = reported?;
        let count = self.reports.count_deaths(device, count);
        (count > 0).then_some(Deaths { targets, count, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount_table::Mount;
    use std::slice;

    fn mount(device: u32, liveness: Liveness) -> ObservedMount {
        let path = |kind: &str| PathBuf::from(format!("/{kind}/{device}"));
        ObservedMount {
            device: (0, device),
            source: Some(path("source")),
            targets: vec![path("target")],
            liveness,
            expired_keys: None,
            deaths: None,
        }
    }

    fn unresponsive(device: u32) -> ObservedMount {
        mount(device, Liveness::Unresponsive)
    }

    #[test]
    fn a_mount_is_aborted_when_it_was_unresponsive_without_interruption() {
        let (start, mut healing) = (Instant::now(), Healing::default());
        let mut at = |seconds: u64, observed: &[ObservedMount]| {
            let now = start + Duration::from_secs(seconds);
            let plan = healing.plan(observed.to_vec(), now, now);
            assert!(plan.dead.is_empty());
            (plan.unresponsive, plan.report_unresponsive.len(), plan.abort)
        };
        let abort = |device: u32| Abort { source: format!("/source/{device}").into(), device: (0, device) };
        let (one, other) = (unresponsive(1), unresponsive(2));
        assert_eq!(at(0, slice::from_ref(&one)), (1, 0, vec![]));
        assert_eq!(at(30, &[one.clone(), other.clone()]), (2, 1, vec![]));
        assert_eq!(at(60, &[one.clone(), other.clone()]), (2, 2, vec![abort(1)]));
        assert_eq!(at(70, &[mount(1, Liveness::Alive), other.clone()]), (1, 1, vec![]));
        assert_eq!(at(120, &[one, other]), (2, 1, vec![abort(2)]), "the first answered meanwhile");
        let gone = ObservedMount { source: None, ..unresponsive(2) };
        assert_eq!(at(130, &[gone]), (1, 1, vec![]), "there is no connection to abort");
    }

    /// As docs/failures.md says. A check of such a mount takes its whole time.
    #[test]
    fn an_unresponsive_mount_is_reported_and_replaced_on_time() {
        let (mut now, mut healing) = (Instant::now(), Healing::default());
        let stopped = now;
        now += POLL_INTERVAL;
        let (mut reported, mut replaced) = (None, None);
        let mut checks = 0;
        while replaced.is_none() {
            let began = now;
            now += CHECK;
            let plan = healing.plan(vec![unresponsive(1)], began, now);
            let elapsed = now - stopped;
            reported = reported.or((!plan.report_unresponsive.is_empty()).then_some(elapsed));
            replaced = (!plan.abort.is_empty()).then_some(elapsed);
            assert!(plan.next_check >= SHORTEST_WAIT);
            assert!(replaced.is_none() || plan.next_check <= FIRST_RETRY, "it is dead soon");
            now += plan.next_check;
            checks += 1;
        }
        assert_eq!(reported, Some(POLL_INTERVAL + REPORTED_AFTER));
        assert_eq!(replaced, Some(POLL_INTERVAL + REPLACED_AFTER));
        assert!(checks < 8, "{checks} checks");
    }

    #[test]
    fn a_death_is_reported_where_another_mount_process_continues_and_counted_everywhere() {
        let (now, mut healing) = (Instant::now(), Healing::default());
        let mut targets_at = |seconds: u64, liveness: Liveness, count: u64| {
            let deaths = Some((count, "signal: 9".to_owned()));
            let (observed, now) =
                (ObservedMount { deaths, ..mount(1, liveness) }, now + Duration::from_secs(seconds));
            let mut deaths = healing.plan(vec![observed], now, now).deaths;
            assert!(deaths.len() < 2);
            deaths.pop().map(|it| (it.count, it.targets.len()))
        };
        assert_eq!(targets_at(0, Liveness::Alive, 1), Some((1, 1)));
        assert_eq!(targets_at(1, Liveness::Alive, 2), None, "again at once");
        assert_eq!(targets_at(15, Liveness::Unresponsive, 2), None, "nothing has continued yet");
        assert_eq!(targets_at(30, Liveness::Alive, 2), Some((1, 1)));
        assert_eq!(targets_at(31, Liveness::Dead("ENOTCONN".into()), 3), Some((1, 0)), "nothing continues");
    }

    fn mounted(source: &str) -> MountTable {
        let (device, point) = ((0, 1), PathBuf::from(source));
        MountTable(vec![Mount { device, point, read_only: false, bucket: true }])
    }

    /// The kubelet publishes its targets later than the first check.
    #[test]
    fn a_death_that_an_earlier_node_service_has_reported_is_not_reported_again() {
        let (now, mut healing) = (Instant::now(), Healing::inheriting(&mounted("/source/1")));
        assert_eq!(healing.plan(Vec::new(), now, now).deaths, []);
        let mut at = |seconds: u64, count: u64| {
            let (deaths, now) = (Some((count, "signal: 9".to_owned())), now + Duration::from_secs(seconds));
            healing.plan(vec![ObservedMount { deaths, ..mount(1, Liveness::Alive) }], now, now).deaths
        };
        assert_eq!((at(0, 5).len(), at(15, 5).len(), at(30, 6)[0].count), (0, 0, 1));
    }

    #[test]
    fn dead_mounts_are_retried_with_backoff() {
        let (now, mut healing) = (Instant::now(), Healing::default());
        let dead = || vec![mount(1, Liveness::Dead("ENOTCONN".into()))];
        let delays: Vec<Duration> = (0..6).map(|_| healing.plan(dead(), now, now).next_check).collect();
        assert!(delays[0] <= FIRST_RETRY && delays[2] > delays[0] && delays[5] <= MAX_RETRY, "{delays:?}");
        assert_eq!(healing.plan(dead(), now, now).dead, [PathBuf::from("/target/1")]);
        assert_eq!(healing.plan(Vec::new(), now, now).next_check, POLL_INTERVAL);
        assert_eq!(healing.plan(dead(), now, now).next_check, delays[0]);
    }
}
