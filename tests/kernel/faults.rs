//! What happens to a mount process at some of the steps of a random test.

use std::thread;
use std::time::Duration;

use mounter::handover::MountReply;
use s3_csi_tests::folder::Random;
use s3_csi_tests::killer::between_requests;
use s3_csi_tests::mountpoint_pod::MountpointPod;
use s3_csi_tests::relocation::{Kept, leaves};

/// One fault in so many steps.
const STEPS: usize = 8;
/// So that it hits a request at any of its stages: most take a few milliseconds.
const DELAYS: [Duration; 6] = [
    Duration::ZERO,
    Duration::ZERO,
    Duration::from_millis(1),
    Duration::from_millis(3),
    Duration::from_millis(8),
    Duration::from_millis(20),
];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    kind: Kind,
    pub(crate) after: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Dies,
    /// To another Mountpoint Pod.
    Moves,
}

pub(crate) struct Faults {
    here: MountpointPod,
    there: MountpointPod,
    bucket: String,
    options: &'static [&'static str],
    random: Random,
    pub(crate) deaths: u32,
    pub(crate) moves: u32,
}

impl Faults {
    /// The mount has these options in both pods.
    pub(crate) fn new(
        [here, there]: [MountpointPod; 2],
        random: Random,
        bucket: String,
        options: &'static [&'static str],
    ) -> Self {
        Self { here, there, bucket, options, random, deaths: 0, moves: 0 }
    }

    pub(crate) fn log(&self) -> String {
        format!("{}\n{}", self.here.log(), self.there.log())
    }

    pub(crate) fn next(&mut self) -> Option<Fault> {
        let happens = self.random.below(STEPS) == 0;
        let kind = *self.random.of(&[Kind::Dies, Kind::Dies, Kind::Moves]);
        let after = *self.random.of(&DELAYS);
        happens.then_some(Fault { kind, after })
    }

    pub(crate) fn happen(&mut self, fault: Fault) {
        thread::sleep(fault.after);
        match fault.kind {
            // There may be none yet that could die.
            Kind::Dies => {
                if let Some(process) = self.here.mount_process() {
                    between_requests(process);
                    self.deaths += 1;
                }
            }
            Kind::Moves => self.relocate(),
        }
    }

    fn relocate(&mut self) {
        let kept = Kept::of(&self.here);
        if leaves(&self.here) == MountReply::Left {
            let reply = kept.arrives_at(&self.there, &self.bucket, self.options);
            assert!(matches!(reply, MountReply::Serving(_)), "{reply:?}\n{}", self.log());
            std::mem::swap(&mut self.here, &mut self.there);
            self.moves += 1;
        }
    }
}
