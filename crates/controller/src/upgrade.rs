//! Whether the next mount of a node may move to this version. They move one after the other, so that a version that cannot start
//! or cannot take a mount over meets one mount of the node, and the node needs room for one more Mountpoint Pod. Pure.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::observed::{MountpointPod, Phase};

/// How long the others wait for a mount whose next pod runs. A move takes less than a second. A node service that is restarted
/// meanwhile needs some more, and one that does not learn whether the next pod serves, up to 80 s. After this, the mount cannot move
/// now: a program is writing a large file, perhaps for hours, or the kernel is too old. It moves when it can, beside the others.
const MOVES_WITHIN: SignedDuration = SignedDuration::from_mins(2);

/// The Mountpoint Pods of one attachment.
#[derive(Clone, Debug)]
pub struct Assigned<'a> {
    /// Those that it names; `None` for one that is not created yet.
    pub named: Vec<Option<&'a MountpointPod>>,
    /// Those that were created for it and that no attachment names any more.
    pub unnamed: Vec<&'a MountpointPod>,
}

/// The state of the upgrade on one node.
#[derive(Clone, Debug)]
pub struct NodeUpgrade<'a> {
    pub now: &'a Time,
    pub driver_version: &'a str,
    /// All of the node.
    pub attachments: Vec<Assigned<'a>>,
}

impl NodeUpgrade<'_> {
    pub fn may_go_on(&self) -> bool {
        !self.attachments.iter().any(|assigned| self.starts(assigned) || self.moves(assigned))
    }

    /// Whether a pod of this version does not run yet: perhaps it never will.
    fn starts(&self, assigned: &Assigned<'_>) -> bool {
        let mut named = assigned.named.iter().flatten();
        named.any(|pod| pod.phase == Phase::Pending && self.is_current(pod))
    }

    /// Whether a mount has not left its old pod, which ends then, although it may have.
    fn moves(&self, assigned: &Assigned<'_>) -> bool {
        let is_left = |pod: &&MountpointPod| pod.movable && pod.started && !pod.has_ended();
        let mut left = assigned.unnamed.iter().filter(|pod| is_left(pod));
        let mut next = assigned.named.iter().filter(|pod| pod.is_none_or(|pod| self.is_current(pod)));
        left.any(|pod| !self.is_current(pod)) && next.any(|pod| pod.is_none_or(|pod| self.is_new(pod)))
    }

    fn is_current(&self, pod: &MountpointPod) -> bool {
        pod.driver_version == self.driver_version
    }

    /// A pod may wait for room or its image for long before it runs. If its container ended, it counts from its creation: one that
    /// ends again and again is not new each time.
    fn is_new(&self, pod: &MountpointPod) -> bool {
        let since = pod.running_since.as_ref().filter(|_| pod.last_end.is_none()).or(pod.created.as_ref());
        // The clock of a node may be ahead.
        since.is_some_and(|since| self.now.0.duration_since(since.0).abs() < MOVES_WITHIN)
    }
}

#[cfg(test)]
mod tests {
    use contract::mountpoint_pod::ContainerEnd;
    use jiff::Timestamp;

    use super::*;
    use crate::observed::created;

    const NOW: i64 = 10_000;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    /// One whose mount is to leave it, or has left it when it has ended.
    fn old(phase: Phase) -> MountpointPod {
        let driver_version = "1".to_owned();
        MountpointPod { phase, started: true, needs_unmount: true, driver_version, ..created("old") }
    }

    /// Created an hour ago, for want of room.
    fn next(running_for: i64) -> MountpointPod {
        MountpointPod {
            phase: Phase::Running,
            started: true,
            created: Some(at(NOW - 3600)),
            running_since: Some(at(NOW - running_for)),
            driver_version: "2".to_owned(),
            ..created("next")
        }
    }

    fn may_go_on(unnamed: &MountpointPod, named: Option<&MountpointPod>) -> bool {
        let other = MountpointPod { needs_unmount: false, ..old(Phase::Running) };
        let attachments = vec![
            Assigned { named: vec![Some(&other)], unnamed: vec![] },
            Assigned { named: vec![named], unnamed: vec![unnamed] },
        ];
        NodeUpgrade { now: &at(NOW), driver_version: "2", attachments }.may_go_on()
    }

    #[test]
    fn the_next_mount_moves_when_the_one_before_it_has_left_its_old_pod() {
        assert!(!may_go_on(&old(Phase::Running), None), "the next pod is to be created");
        let starts = MountpointPod { phase: Phase::Pending, started: false, ..next(0) };
        assert!(!may_go_on(&old(Phase::Running), Some(&starts)));
        assert!(!may_go_on(&old(Phase::Running), Some(&next(1))), "it runs, and the mount is not there yet");
        assert!(may_go_on(&old(Phase::Succeeded), Some(&next(1))));
        assert!(
            !may_go_on(&old(Phase::Succeeded), Some(&starts)),
            "a new pod of any mount may fail to start"
        );
    }

    #[test]
    fn a_mount_that_cannot_move_holds_up_the_others_for_two_minutes() {
        assert!(!may_go_on(&old(Phase::Running), Some(&next(119))));
        assert!(may_go_on(&old(Phase::Running), Some(&next(120))));
        let end = ContainerEnd { at: at(NOW - 2), reason: "Error".to_owned(), message: String::new() };
        let crashing = |since| MountpointPod { last_end: Some(end.clone()), created: since, ..next(1) };
        assert!(!may_go_on(&old(Phase::Running), Some(&crashing(Some(at(NOW - 119))))));
        assert!(may_go_on(&old(Phase::Running), Some(&crashing(Some(at(NOW - 120))))));
        assert!(may_go_on(&old(Phase::Running), Some(&next(-3600))), "the clock of the node is wrong");
    }

    #[test]
    fn what_is_no_move_to_this_version_holds_up_no_mount() {
        let current = MountpointPod { driver_version: "2".to_owned(), ..old(Phase::Running) };
        assert!(may_go_on(&current, Some(&next(1))), "an eviction");
        let fixed = MountpointPod { movable: false, ..old(Phase::Running) };
        assert!(may_go_on(&fixed, Some(&next(1))));
        let unmounted = MountpointPod { driver_version: "1".to_owned(), ..next(1) };
        assert!(
            may_go_on(&old(Phase::Running), Some(&unmounted)),
            "its workloads are gone, and others are to move"
        );
    }
}
