//! The part of the kill matrix that a suite has time for.

use super::matrix::{Fault, How, Moment, Part, faults};

/// With this order, each part is killed once, while it has something to do, and every moment is hit.
const SEED: u64 = 325_903;
/// Each lasts 20 s: programs wait, and go on without an error.
const STOPS: [(Part, Moment); 2] =
    [(Part::MountProcess, Moment::Writing), (Part::NodeService, Moment::Mounting)];

/// One kill of each part, about 10 s each, and the stops. Power cuts have stories of their own.
pub fn selection() -> Vec<Fault> {
    let all = faults(SEED);
    let mut killed = Vec::new();
    let kills = all.iter().filter(|fault| fault.how == How::Kill && fault.part != Part::WholeNode);
    let kills = kills.filter(|fault| {
        let is_first = !killed.contains(&fault.part);
        killed.push(fault.part);
        is_first
    });
    let is_stop = |fault: &&Fault| fault.how == How::Stop && STOPS.contains(&(fault.part, fault.moment));
    kills.chain(all.iter().filter(is_stop)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_killed_once_while_it_has_something_to_do_and_every_moment_is_hit() {
        let seen: Vec<String> =
            selection().iter().map(|it| format!("{:?} {:?} {:?}", it.how, it.part, it.moment)).collect();
        let expected = [
            "Kill Controller Deleting",
            "Kill ApiServer Provisioning",
            "Kill Containerd Mounting",
            "Kill NodeService Unmounting",
            "Kill S3Server Reading",
            "Kill Etcd Provisioning",
            "Kill Kubelet Unmounting",
            "Kill Mounter Writing",
            "Kill MountProcess Idle",
            "Stop MountProcess Writing",
            "Stop NodeService Mounting",
        ];
        assert_eq!(seen, expected);
    }
}
