//! The node's part in a move of a mount to another Mountpoint Pod.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Instant;

use mounter::handover::client::{Fetched, fetch, hand_over, leave, take_over};
use mounter::handover::{MountReply, MountRequest, Purpose};
use node::comm;
use xtask::s3::ALICE;

use crate::mountpoint_pod::{LIMIT, MountpointPod, eventually};

pub fn until() -> Instant {
    Instant::now() + LIMIT
}

/// What the node service keeps of a mount.
pub struct Kept {
    pub descriptor: OwnedFd,
    survival: OwnedFd,
}

impl Kept {
    /// Waits while the mounter starts another mount process, because one has died.
    pub fn of(pod: &MountpointPod) -> Self {
        let mut fetched = None;
        eventually("the mount is served", || {
            fetched = fetch(pod.comm.path(), until()).unwrap().ok();
            fetched.is_some()
        });
        let Fetched { descriptor, is_served } = fetched.unwrap();
        assert!(is_served);
        let survival = comm::successor_folder(&OwnedFd::from(File::open(pod.comm.path()).unwrap())).unwrap();
        Self { descriptor, survival }
    }

    /// In the pod that it has served, after its container has started again.
    pub fn continues_at(&self, pod: &MountpointPod) -> MountReply {
        let request = MountRequest::only(Purpose::Continue);
        hand_over(pod.comm.path(), &request, self.descriptor.as_fd(), until()).unwrap()
    }

    pub fn arrives_at(&self, pod: &MountpointPod, bucket: &str, arguments: &[&str]) -> MountReply {
        self.arrives_with(pod, pod.request(ALICE, bucket, arguments))
    }

    pub fn arrives_with(&self, pod: &MountpointPod, request: MountRequest) -> MountReply {
        let request = MountRequest { purpose: Purpose::TakeOver, ..request };
        take_over(pod.comm.path(), &request, self.descriptor.as_fd(), self.survival.as_fd(), until()).unwrap()
    }
}

pub fn leaves(pod: &MountpointPod) -> MountReply {
    leave(pod.comm.path(), until()).unwrap()
}
