//! Decides what one publish does, from what is mounted and alive. Pure: the same for a first publish, for one whose
//! predecessor died half-way, for one that finds a dead mount process, and for one that moves to another Mountpoint Pod.
//!
//! A container gets its own copy of whatever is on top of the target when it starts. With `HostToContainer`, what is
//! mounted upon the original later appears upon the copy, too, as a copy of its own that in turn receives what is mounted
//! upon *its* original. So a mount upon the top reaches every such container, whichever mount it started on, while a mount
//! upon a lower one is hidden from those that started higher. Unmounting cuts: a copy whose original is gone never
//! receives anything again. Hence the rule: the next mount covers the top, dead or alive, and what lies below stays until
//! the workload ends.

use std::iter::repeat_n;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::liveness::Liveness;
use crate::mount_table::{Mount, MountTable};

/// Mounts upon each other at one target. Each is a mount process that died or was replaced during the life of one
/// workload, and keeps a few kilobytes of the kernel's memory.
pub const MAX_LAYERS: usize = 16;
/// How many of them stay when that many are reached: containers that started on one of these still see the next mount,
/// those that started on a later one must restart. Removing one at a time would cut some container after each death.
pub const LAYERS_KEPT: usize = 8;

/// The bucket mounted at `source`, and bound to the workload's `target`.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub source: &'a Path,
    pub target: &'a Path,
    /// Of the target mount.
    pub read_only: bool,
    /// `ReadWriteOncePod`.
    pub single_pod: bool,
}

#[derive(Clone, Debug)]
pub struct Observed<'a> {
    pub table: &'a MountTable,
    pub source: Liveness,
    pub target: Liveness,
    /// Whether the mount at the target belongs to another Mountpoint Pod, from which it can be moved to this one.
    pub movable: bool,
    /// Where else on this node the volume is mounted for a pod.
    pub other_targets: Vec<PathBuf>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The workload's mount has died, which it should hear about.
    pub target_is_lost: bool,
    pub steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Detaches the top mount of the source.
    UnmountSource,
    /// Mounts the source and hands its descriptor over.
    MountSource,
    /// Hands over the mount that is at the target, instead of a new one: programs do not notice.
    MoveSource,
    /// Makes the bare directory below the bucket, which is on the node's disk, unwritable.
    SealTarget,
    /// Detaches the top mount of the target.
    UnmountTarget,
    /// Binds the source on top of the target.
    BindTarget { read_only: bool },
}

/// Why nothing may be done now.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("the volume is `ReadWriteOncePod` and still mounted at {0}: wait until that pod is gone")]
    UsedByOtherPod(PathBuf),
    /// It may only be slow, and replacing it would interrupt the workloads it serves: healing decides that.
    #[error("mount {0} is not responding; see the logs of the Mountpoint Pod of the same name")]
    Unresponsive(PathBuf),
}

pub fn plan(observed: &Observed<'_>, wanted: &Wanted<'_>) -> Result<Plan, Refusal> {
    let Observed { table, source: source_liveness, target: target_liveness, movable, other_targets } =
        observed;
    let Wanted { source, target, read_only, single_pod } = *wanted;
    if let Some(other) = other_targets.first().filter(|_| single_pod) {
        return Err(Refusal::UsedByOtherPod(other.clone()));
    }
    if *source_liveness == Liveness::Unresponsive {
        return Err(Refusal::Unresponsive(source.to_owned()));
    }
    let sources: Vec<_> = table.at(source).collect();
    // Only one file system is kept, and only without others upon it: those could come from two node services at once, and
    // which of them has users is unknown. Copies of itself are what an interrupted read-only bind leaves.
    let is_kept = |lowest: &&&Mount| {
        lowest.bucket
            && *source_liveness == Liveness::Alive
            && sources.iter().all(|mount| mount.device == lowest.device)
    };
    let kept = sources.first().filter(is_kept).map(|lowest| lowest.device);
    let mut steps = vec![Step::UnmountSource; sources.len() - usize::from(kept.is_some())];
    let top = table.top_bucket(target);
    let moved = top.map(|top| top.device).filter(|_| kept.is_none() && *movable);
    match (kept, moved) {
        (Some(_), _) => {}
        (None, Some(_)) => steps.push(Step::MoveSource),
        (None, None) => steps.push(Step::MountSource),
    }
    let device = kept.or(moved);
    // After the source: if the bucket cannot be mounted, the workload keeps what it has.
    if !top.is_some_and(|top| device == Some(top.device) && top.read_only == read_only) {
        match table.at(target).count() {
            0 => steps.push(Step::SealTarget),
            layers if layers >= MAX_LAYERS => {
                steps.extend(repeat_n(Step::UnmountTarget, layers - LAYERS_KEPT));
            }
            _ => {}
        }
        steps.push(Step::BindTarget { read_only });
    }
    let target_is_lost = top.is_some() && matches!(target_liveness, Liveness::Dead(_));
    Ok(Plan { target_is_lost, steps })
}

#[cfg(test)]
mod simulation;
