//! What Mountpoint Pods report about their mounts, as far as the node service takes it: a pod that was taken over can write
//! anything, at any time.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::mount_table::{Device, MountTable};

/// Between two reports of one mount that are taken: each can become an Event with the pod's words.
const INTERVAL: Duration = Duration::from_secs(15);
/// Deaths of one mount that are counted at once: a mounter starts no more processes than that in a minute.
const MOST_DEATHS: u64 = 300;

/// By mount, because its deaths are counted from its beginning.
#[derive(Debug, Default)]
pub struct Reports {
    /// As counted by its mounter. `None` until the first report of one that this process did not mount: an earlier node
    /// service has reported those.
    deaths: HashMap<Device, Option<u64>>,
    taken: HashMap<Device, Instant>,
}

impl Reports {
    /// With the mounts that an earlier node service has left.
    pub fn inheriting(table: &MountTable) -> Self {
        let buckets = table.0.iter().filter(|mount| mount.bucket);
        Self { deaths: buckets.map(|mount| (mount.device, None)).collect(), ..Self::default() }
    }

    /// Forgets mounts that have ended. The deaths of others count on while no target of them is published.
    pub fn forget_ended(&mut self, table: &MountTable) {
        let devices: HashSet<Device> = table.0.iter().map(|mount| mount.device).collect();
        self.deaths.retain(|device, _| devices.contains(device));
        self.taken.retain(|device, _| devices.contains(device));
    }

    /// Whether to take the report of this mount now.
    pub fn take(&mut self, mount: Device, now: Instant) -> bool {
        let is_due = self.taken.get(&mount).is_none_or(|at| now.duration_since(*at) >= INTERVAL);
        if is_due {
            self.taken.insert(mount, now);
        }
        is_due
    }

    /// Deaths since the last report. `count` is what its mounter reports.
    pub fn count_deaths(&mut self, mount: Device, count: u64) -> u64 {
        let before = match self.deaths.insert(mount, Some(count)) {
            Some(Some(before)) => before,
            Some(None) => return 0,
            None => 0,
        };
        // The next mounter of the pod counts from the beginning.
        count.checked_sub(before).unwrap_or(count).min(MOST_DEATHS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount_table::Mount;
    use std::path::PathBuf;

    const ONE: Device = (0, 1);
    const OTHER: Device = (0, 2);

    fn mounted(device: Device) -> MountTable {
        MountTable(vec![Mount { device, point: PathBuf::from("/source"), read_only: false, bucket: true }])
    }

    #[test]
    fn every_death_is_counted_once() {
        let table = mounted(ONE);
        let mut reports = Reports::inheriting(&table);
        let mut deaths = |mount: Device, count: u64| {
            reports.forget_ended(&table);
            reports.count_deaths(mount, count)
        };
        assert_eq!(deaths(OTHER, 1), 1, "of a mount that this node service has made");
        assert_eq!(deaths(ONE, 2), 0, "before this node service started");
        assert_eq!(deaths(ONE, 3), 1);
        assert_eq!(deaths(ONE, 3), 0);
        assert_eq!(deaths(ONE, 7), 4);
        assert_eq!(deaths(ONE, 1), 1, "another mounter counts");
        assert_eq!(deaths(ONE, 1), 0);
        assert_eq!(deaths(OTHER, 1), 1, "another mount, as the earlier one has ended");
    }

    /// It can report anything, and whenever the node service looks.
    #[test]
    fn a_mountpoint_pod_can_report_only_so_many_deaths_and_only_so_often() {
        let (now, mut reports) = (Instant::now(), Reports::default());
        assert_eq!(reports.count_deaths(ONE, u64::MAX), MOST_DEATHS);
        assert_eq!(reports.count_deaths(ONE, 0), 0);
        assert_eq!(reports.count_deaths(ONE, u64::MAX), MOST_DEATHS);
        let taken = (0..60).filter(|second| reports.take(ONE, now + Duration::from_secs(*second))).count();
        assert_eq!(taken, 4, "in a minute");
        assert!(reports.take(OTHER, now), "that of another pod");
    }
}
