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

/// A pod of a volume that is mounted for the first time runs after about two seconds, and a claim is bound after less.
const LONGEST_DELAY_MS: usize = 2000;

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
        fault.after_ms = u64::try_from(random.below(LONGEST_DELAY_MS)).unwrap();
    }
    all
}

impl Fault {
    /// The errors (`errno`) that docs/failures.md and docs/semantics.md announce for it. A program must see no others.
    pub fn documented_errors(self) -> &'static [i32] {
        const EIO: i32 = 5;
        const ECONNABORTED: i32 = 103;
        const ENOTCONN: i32 = 107;
        match (self.part, self.how) {
            // A node that loses its power aborts its FUSE connections first: otherwise some processes could not be killed.
            (Part::Mounter | Part::MountProcess | Part::WholeNode, How::Kill) => &[ENOTCONN, ECONNABORTED],
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
}
