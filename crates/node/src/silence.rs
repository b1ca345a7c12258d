//! Mount processes that run and do not answer: programs wait for them without end, and nothing tells of it. After a while
//! their connection is ended, and they are healed like dead ones.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use contract::names::sources_on_node;

use crate::kernel::{self, Pulse};
use crate::publish::Publisher;
use crate::request::Publish;

/// A mount process answers `statfs` itself, whatever its S3 server does. One that has not for so long is stuck.
pub const REPLACED_AFTER: Duration = Duration::from_mins(1);
/// Less may be a node that is busy.
pub const TOLD_AFTER: Duration = Duration::from_secs(10);

/// Of a file system, as in the mount table.
pub type Device = (u32, u32);

/// Since when they have been silent.
#[derive(Debug, Default)]
pub struct Silences(HashMap<Device, Instant>);

impl Silences {
    /// Whoever is silent now; all the others have answered.
    pub fn hear(&mut self, silent: impl Iterator<Item = Device>, now: Instant) {
        let before = std::mem::take(&mut self.0);
        self.0 = silent.map(|device| (device, before.get(&device).copied().unwrap_or(now))).collect();
    }

    pub fn longer_than(&self, limit: Duration, now: Instant) -> Vec<Device> {
        self.0.iter().filter(|(_, since)| now - **since >= limit).map(|(device, _)| *device).collect()
    }
}

impl Publisher {
    /// Tells the owner of the workload at this target.
    pub(crate) fn tell_silence(&self, target: &Path) {
        let request = self.asked.get(target).and_then(|it| Publish::parse(it, self.kubelet.path()).ok());
        if let Some(publish) = request {
            self.teller.silent(&publish);
        }
    }

    /// Ends the connection of a source, if it is still this one that does not answer.
    pub(crate) async fn end_silence(&self, source: &Path, device: Device) {
        // Without a source, its Mountpoint Pod is gone or replaced, and the next publish covers it.
        let Some(pod) = source.file_name().and_then(|name| name.to_str()).filter(|_| self.is_source(source))
        else {
            return;
        };
        // A publish may just be replacing it.
        let _turn = self.turns.of(pod).await;
        let table = self.mounts.table().unwrap_or_default();
        let is_same = table.top(source).is_some_and(|top| top.device == device);
        if !is_same || self.pulses.feel(source).await != Pulse::Silent {
            return;
        }
        match self.kubelet.place(source).and_then(|place| kernel::abort(&place)) {
            Ok(()) => tracing::warn!(mountpoint_pod = pod, "ended an unresponsive mount"),
            Err(error) => tracing::warn!(%error, mountpoint_pod = pod, "cannot end an unresponsive mount"),
        }
    }

    fn is_source(&self, path: &Path) -> bool {
        path.starts_with(sources_on_node(self.kubelet.path()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unbroken_silence_counts() {
        let (start, mut silences) = (Instant::now(), Silences::default());
        let mut at = |seconds: u64, silent: &[Device]| {
            let now = start + Duration::from_secs(seconds);
            silences.hear(silent.iter().copied(), now);
            silences.longer_than(REPLACED_AFTER, now)
        };
        let (one, other) = ((0, 1), (0, 2));
        assert_eq!(at(0, &[one]), []);
        assert_eq!(at(30, &[one, other]), []);
        assert_eq!(at(60, &[one, other]), [one]);
        assert_eq!(at(70, &[other]), []);
        assert_eq!(at(120, &[one, other]), [other], "the first has answered meanwhile");
    }
}
