//! The faults: which part fails, how, and what is happening at that moment. The same seed gives the same faults in the same
//! order.

use std::fmt;

use crate::folder::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Controller,
    NodeService,
    Mounter,
    MountProcess,
    Kubelet,
    Containerd,
    ApiServer,
    Etcd,
    S3Server,
    WholeNode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Idle,
    Mounting,
    Reading,
    Writing,
    Unmounting,
    Provisioning,
    Deleting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// SIGKILL, and a power cut for a node. A supervisor starts it again.
    Kill,
    /// SIGSTOP, and SIGCONT after [`super::inject::STOPPED_FOR`].
    Stop,
}

const PARTS: [Part; 10] = [
    Part::Controller,
    Part::NodeService,
    Part::Mounter,
    Part::MountProcess,
    Part::Kubelet,
    Part::Containerd,
    Part::ApiServer,
    Part::Etcd,
    Part::S3Server,
    Part::WholeNode,
];
const MOMENTS: [Moment; 7] = [
    Moment::Idle,
    Moment::Mounting,
    Moment::Reading,
    Moment::Writing,
    Moment::Unmounting,
    Moment::Provisioning,
    Moment::Deleting,
];

/// A fault, and how long after the beginning of the moment it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub part: Part,
    pub moment: Moment,
    pub how: How,
    pub after_ms: u64,
}

impl Moment {
    /// Milliseconds after its beginning in which it lasts, on an idle machine: a later fault would come after the fact.
    fn longest_delay(self) -> usize {
        match self {
            // They go on all the time.
            Self::Idle | Self::Reading | Self::Writing => 2000,
            // A bucket is mounted half a second after its pod was created.
            Self::Mounting => 450,
            // A Mountpoint Pod's container ends 0.2 s after the last of its workloads was deleted.
            Self::Unmounting => 200,
            // Of twenty claims; a part of their 0.3 s has passed when the last one has been created.
            Self::Provisioning | Self::Deleting => 150,
        }
    }
}

/// All faults, in an order and with delays that depend on the seed.
pub fn faults(seed: u64) -> Vec<Fault> {
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    for part in PARTS {
        for moment in MOMENTS {
            for how in [How::Kill, How::Stop] {
                all.push(Fault { part, moment, how, after_ms: 0 });
            }
        }
    }
    for last in (1..all.len()).rev() {
        all.swap(last, random.below(last + 1));
    }
    for fault in &mut all {
        fault.after_ms = u64::try_from(random.below(fault.moment.longest_delay())).unwrap();
    }
    all
}

impl Fault {
    /// What serves a volume that is being unmounted ends by itself. Everything else is there at every moment, or starts again.
    pub fn may_come_too_late(self) -> bool {
        matches!(self.part, Part::Mounter | Part::MountProcess) && self.moment == Moment::Unmounting
    }

    /// Whether each of these words is one of its description.
    pub fn is_described_by(self, words: &str) -> bool {
        let description = self.to_string();
        words.split_whitespace().all(|word| description.split(' ').any(|own| own == word))
    }

    /// The errors (`errno`) that docs/failures.md and docs/semantics.md announce for it, to a program that reads or to one
    /// that writes a file of so many bytes. It must see no others.
    pub fn documented_errors(self, written: Option<usize>) -> &'static [i32] {
        /// Bytes of a file that the next mount process can upload again; what was sent of a larger one is lost.
        const KEPT: usize = 8 << 20;
        const EIO: i32 = 5;
        const ECONNABORTED: i32 = 103;
        const ENOTCONN: i32 = 107;
        let is_lost = written.is_some_and(|length| length > KEPT);
        match (self.part, self.how) {
            (Part::Mounter | Part::MountProcess, How::Kill) if is_lost => &[EIO],
            // A node that loses its power aborts its FUSE connections first: otherwise some processes could not be killed.
            (Part::WholeNode, How::Kill) => &[ENOTCONN, ECONNABORTED],
            (Part::S3Server, _) => &[EIO],
            _ => &[],
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, moment, how, after_ms } = self;
        write!(formatter, "{how:?} {part:?} {after_ms} ms into {moment:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_orders_all_faults_in_its_own_way() {
        let same = |a: &Fault, b: &Fault| (a.part, a.moment, a.how) == (b.part, b.moment, b.how);
        let (one, other) = (faults(1), faults(2));
        assert_eq!(one, faults(1));
        assert_ne!(one, other);
        assert_eq!(one.len(), 140);
        assert!(one.iter().all(|fault| other.iter().any(|it| same(it, fault))));
    }

    #[test]
    fn words_of_the_description_select_faults() {
        let selected =
            |words: &str| faults(1).into_iter().filter(|fault| fault.is_described_by(words)).count();
        assert_eq!(["", "Kill Etcd", "Etcd Kill Writing", "Mount"].map(selected), [140, 7, 1, 0]);
    }

    /// The medians of docs/performance.md: 755 ms until a container starts, 229 ms of which after the bucket was mounted; 217 ms
    /// until a Mountpoint Pod's container has exited; 3.1 s for 200 claims.
    #[test]
    fn faults_happen_while_their_moment_lasts_and_not_only_at_its_beginning() {
        let lasts = [
            (Moment::Idle, u64::MAX),
            (Moment::Mounting, 755 - 229),
            (Moment::Reading, u64::MAX),
            (Moment::Writing, u64::MAX),
            (Moment::Unmounting, 217),
            (Moment::Provisioning, 3100 * 20 / 200),
            (Moment::Deleting, 3100 * 20 / 200),
        ];
        assert_eq!(lasts.map(|(moment, _)| moment), MOMENTS);
        for (moment, end) in lasts {
            let delays = (0..100).flat_map(faults).filter(|fault| fault.moment == moment);
            let delays: Vec<u64> = delays.map(|fault| fault.after_ms).collect();
            let latest = *delays.iter().max().unwrap();
            assert!(latest < end, "{latest} ms is after {moment:?}");
            let middle =
                delays.iter().filter(|delay| **delay > latest / 3 && **delay < latest / 3 * 2).count();
            assert!(
                middle > delays.len() / 4,
                "{middle} of {} faults in the middle of {moment:?}",
                delays.len()
            );
        }
    }
}
