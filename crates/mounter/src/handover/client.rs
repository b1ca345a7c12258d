//! The node's end of the hand-over: one request with one descriptor, one reply, each within a deadline.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use thiserror::Error;

use crate::SOCKET;
use crate::handover::descriptor::is_fuse;
use crate::handover::frame::{self, FrameError, HEADER};
use crate::handover::transfer::{fill, left, send};
use crate::handover::{MountReply, MountRequest, Purpose, Refused};

/// Why the node did not get a reply.
#[derive(Debug, Error)]
pub enum HandOverError {
    #[error("cannot connect to the mounter: {0}")]
    Connect(#[source] io::Error),
    #[error("cannot send the mount request: {0}")]
    Send(#[source] io::Error),
    #[error("no reply from the mounter: {0}")]
    Receive(#[source] io::Error),
    #[error("invalid mount reply: {0}")]
    Reply(FrameError),
    #[error("invalid mount request: {0}")]
    Request(FrameError),
}

/// Hands the descriptor to the mounter that listens in this folder, and waits for its reply.
pub fn hand_over(
    folder: &Path,
    request: &MountRequest,
    descriptor: BorrowedFd<'_>,
    until: Instant,
) -> Result<MountReply, HandOverError> {
    Ok(exchange(folder, request, &[descriptor], until)?.0)
}

/// Hands the mount that another pod has left to the mounter that listens in this folder, with the folder in which that pod has
/// kept what a successor needs.
pub fn take_over(
    folder: &Path,
    request: &MountRequest,
    descriptor: BorrowedFd<'_>,
    kept: BorrowedFd<'_>,
    until: Instant,
) -> Result<MountReply, HandOverError> {
    Ok(exchange(folder, request, &[descriptor, kept], until)?.0)
}

/// Asks the mounter in this folder to leave its mount to another pod.
pub fn leave(folder: &Path, until: Instant) -> Result<MountReply, HandOverError> {
    Ok(exchange(folder, &MountRequest::only(Purpose::Leave), &[], until)?.0)
}

/// The descriptor of a mount.
#[derive(Debug)]
pub struct Fetched {
    pub descriptor: OwnedFd,
    /// Otherwise the mounter has left the mount, and nothing may serve it.
    pub is_served: bool,
}

/// The descriptor of the mount that the mounter in this folder serves or has left, or why there is none.
pub fn fetch(folder: &Path, until: Instant) -> Result<Result<Fetched, Refused>, HandOverError> {
    let (reply, descriptors) = exchange(folder, &MountRequest::only(Purpose::Fetch), &[], until)?;
    let is_served = match reply {
        MountReply::Serving(_) => true,
        MountReply::Left => false,
        MountReply::Refused(refused) => return Ok(Err(refused)),
    };
    match descriptors.into_iter().next() {
        // The pod may have sent anything.
        Some(descriptor) => Ok(is_fuse(&descriptor).map(|()| Fetched { descriptor, is_served })),
        None => Err(HandOverError::Receive(io::Error::other("the reply came without the descriptor"))),
    }
}

fn exchange(
    folder: &Path,
    request: &MountRequest,
    descriptors: &[BorrowedFd<'_>],
    until: Instant,
) -> Result<(MountReply, Vec<OwnedFd>), HandOverError> {
    let message = frame::encode(request).map_err(HandOverError::Request)?;
    let stream = connect(folder, until).map_err(HandOverError::Connect)?;
    // A mounter that refuses without reading the request fails the send, but its reply is there to be read.
    let sent = send(&stream, &message, descriptors, until);
    let (mut header, mut received) = ([0; HEADER], Vec::new());
    if let Err(error) = fill(&stream, &mut header, &mut received, until) {
        return Err(sent.map_or_else(HandOverError::Send, |()| HandOverError::Receive(error)));
    }
    let mut body = vec![0; frame::body_length(header).map_err(HandOverError::Reply)?];
    fill(&stream, &mut body, &mut received, until).map_err(HandOverError::Receive)?;
    Ok((frame::decode(&body).map_err(HandOverError::Reply)?, received))
}

/// Whether a mounter listens in this folder. Does not wait: a full backlog belongs to a mounter, too.
pub fn listens(folder: &Path) -> bool {
    match reach(folder, SocketFlags::NONBLOCK, |_| Ok(())) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

pub fn connect(folder: &Path, until: Instant) -> io::Result<UnixStream> {
    // With a full backlog and a mounter that hangs, connecting would block without end.
    reach(folder, SocketFlags::empty(), |socket| {
        Ok(set_socket_timeout(socket, Timeout::Send, Some(left(until)?))?)
    })
}

/// Through a descriptor of the socket: kubelet's paths are about as long as a socket address may be, and a symbolic link
/// that a process in the pod put there could lead to the socket of another pod.
fn reach(
    folder: &Path,
    flags: SocketFlags,
    prepare: impl FnOnce(&OwnedFd) -> io::Result<()>,
) -> io::Result<UnixStream> {
    let folder = open(folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let file = openat(&folder, SOCKET, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::Socket {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{SOCKET} is not a socket")));
    }
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | flags, None)?;
    prepare(&socket)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::time::Duration;

    #[test]
    fn a_long_path_works_and_no_symbolic_link_is_followed() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("d".repeat(200));
        fs::create_dir(&folder).unwrap();
        assert!(!listens(&folder));
        let open = File::open(&folder).unwrap();
        let path = format!("/proc/self/fd/{}/{SOCKET}", open.as_raw_fd());
        let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
        assert!(listens(&folder));
        connect(&folder, Instant::now() + Duration::from_secs(5)).unwrap();
        let elsewhere = place.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        std::os::unix::fs::symlink(folder.join(SOCKET), elsewhere.join(SOCKET)).unwrap();
        assert!(!listens(&elsewhere));
        drop(listener);
        assert!(!listens(&folder), "a socket file without a listener");
    }
}
