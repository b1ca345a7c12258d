//! Requests to the mounter of a Mountpoint Pod, each with its deadline, on a thread of its own: the hand-over blocks.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use mounter::deadlines;
use mounter::handover::client::{self, Fetched, HandOverError};
use mounter::handover::{Code, MountReply, MountRequest, Purpose, Refused, Serving};
use thiserror::Error;

use crate::comm;
use crate::descriptors::SurvivingMount;
use crate::safe_path::Root;

/// Why a mounter has not done what it was asked for.
#[derive(Debug, Error)]
pub enum MounterError {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(transparent)]
    NoReply(#[from] HandOverError),
}

impl MounterError {
    /// Whether nothing listens there, so that no mounter and no mount process of the pod is left.
    pub fn has_ended(&self) -> bool {
        let Self::NoReply(HandOverError::Connect(error)) = self else { return false };
        matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
    }

    /// Whether the mounter is starting another mount process at this moment.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Refused(Refused { code: Code::Busy, .. }))
    }
}

/// Hands the descriptor to the mounter of this pod, and waits until it serves the mount.
pub async fn hand_over(
    kubelet: &Root,
    pod_uid: &str,
    request: MountRequest,
    descriptor: Arc<OwnedFd>,
) -> Result<Serving, MounterError> {
    let hand_over =
        move |folder: PathBuf, until| client::hand_over(&folder, &request, descriptor.as_fd(), until);
    serving(ask(kubelet, pod_uid, hand_over).await?)
}

/// Hands the descriptor of a mount that it has served, or another mounter of its pod, to the mounter of this pod.
pub async fn continue_mount(
    kubelet: &Root,
    pod_uid: &str,
    descriptor: Arc<OwnedFd>,
) -> Result<Serving, MounterError> {
    hand_over(kubelet, pod_uid, MountRequest::only(Purpose::Continue), descriptor).await
}

/// Hands the mount that another pod has left to the mounter of this one, with what that pod has kept for a successor.
pub async fn take_over(
    kubelet: &Root,
    pod_uid: &str,
    request: MountRequest,
    kept: SurvivingMount,
) -> Result<Serving, MounterError> {
    let take_over = move |folder: PathBuf, until| {
        client::take_over(&folder, &request, kept.descriptor.as_fd(), kept.successor_folder.as_fd(), until)
    };
    serving(ask(kubelet, pod_uid, take_over).await?)
}

/// Asks the mounter of this pod to leave its mount to another pod.
pub async fn leave(kubelet: &Root, pod_uid: &str) -> Result<(), MounterError> {
    match ask(kubelet, pod_uid, |folder, until| client::leave(&folder, until)).await? {
        MountReply::Left => Ok(()),
        MountReply::Refused(refused) => Err(refused.into()),
        MountReply::Serving(_) => Err(unexpected("the mounter still serves the mount")),
    }
}

/// The descriptor of the mount that the mounter of this pod serves or has left.
pub async fn fetch(kubelet: &Root, pod_uid: &str) -> Result<Fetched, MounterError> {
    Ok(ask(kubelet, pod_uid, |folder, until| client::fetch(&folder, until)).await??)
}

async fn ask<T: Send + 'static>(
    kubelet: &Root,
    pod_uid: &str,
    exchange: impl FnOnce(PathBuf, Instant) -> Result<T, HandOverError> + Send + 'static,
) -> Result<T, HandOverError> {
    let (folder, until) = (comm::path(kubelet, pod_uid), Instant::now() + deadlines::HAND_OVER);
    let reply = tokio::task::spawn_blocking(move || exchange(folder, until)).await;
    // A panic has ended the process: only a runtime that shuts down fails the task.
    reply.unwrap_or_else(|error| Err(HandOverError::Receive(io::Error::other(error))))
}

fn serving(reply: MountReply) -> Result<Serving, MounterError> {
    match reply {
        MountReply::Serving(serving) => Ok(serving),
        MountReply::Refused(refused) => Err(refused.into()),
        MountReply::Left => Err(unexpected("the mounter has left the mount")),
    }
}

fn unexpected(reply: &str) -> MounterError {
    HandOverError::Receive(io::Error::other(reply)).into()
}
