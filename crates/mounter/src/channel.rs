//! The node's end of the hand-over: one message with one descriptor, one reply, each within a deadline.

use std::fs::File;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, sendmsg, socket_with,
};
use thiserror::Error;

use crate::SOCKET;
use crate::frame::{self, FrameError, HEADER};
use crate::order::Order;
use crate::reply::Reply;

/// More than one descriptor is refused; room for several, or the kernel would drop them unseen.
pub(crate) const DESCRIPTORS: usize = 8;

/// Why the node did not get a reply.
#[derive(Debug, Error)]
pub enum HandOverError {
    #[error("cannot reach the mounter: {0}")]
    Connect(#[source] io::Error),
    #[error("cannot send the order: {0}")]
    Send(#[source] io::Error),
    #[error("no reply from the mounter: {0}")]
    Receive(#[source] io::Error),
    #[error("the mounter's reply: {0}")]
    Reply(FrameError),
    #[error("the order: {0}")]
    Order(FrameError),
}

/// The node's side: hands the descriptor to the mounter that listens in this folder, and waits for its reply.
pub fn hand_over(
    folder: &Path,
    order: &Order,
    descriptor: BorrowedFd<'_>,
    until: Instant,
) -> Result<Reply, HandOverError> {
    let message = frame::encode(order).map_err(HandOverError::Order)?;
    let mut stream = connect(folder, until).map_err(HandOverError::Connect)?;
    // A mounter that refuses without reading has hung up and left its reason.
    let sent = send(&stream, &message, &[descriptor], until);
    let mut header = [0; HEADER];
    if let Err(error) = read_exact(&mut stream, &mut header, until) {
        return Err(sent.map_or_else(HandOverError::Send, |()| HandOverError::Receive(error)));
    }
    let mut body = vec![0; frame::body_length(header).map_err(HandOverError::Reply)?];
    read_exact(&mut stream, &mut body, until).map_err(HandOverError::Receive)?;
    frame::decode(&body).map_err(HandOverError::Reply)
}

/// Whether somebody listens in the folder. Does not wait: a queue that is full is somebody's, too.
pub fn listens(folder: &Path) -> bool {
    match reach(folder, SocketFlags::NONBLOCK, |_| Ok(())) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

pub fn connect(folder: &Path, until: Instant) -> io::Result<UnixStream> {
    // A mounter that hangs and a queue that is full would keep us waiting for ever.
    reach(folder, SocketFlags::empty(), |socket| {
        Ok(set_socket_timeout(socket, Timeout::Send, Some(left(until)?))?)
    })
}

/// Through a descriptor of the socket: kubelet's paths are about as long as an address may be, and a link that somebody in
/// the pod has put there would lead to another one's socket.
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

/// Descriptors travel with the first byte.
pub fn send(
    mut stream: &UnixStream,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
    until: Instant,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    stream.set_write_timeout(Some(left(until)?))?;
    let mut sent = sendmsg(stream, &[IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL)?;
    while sent < message.len() {
        stream.set_write_timeout(Some(left(until)?))?;
        sent += stream.write(&message[sent..])?;
    }
    Ok(())
}

fn read_exact(stream: &mut UnixStream, mut buffer: &mut [u8], until: Instant) -> io::Result<()> {
    while !buffer.is_empty() {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => buffer = &mut buffer[read..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(crate) fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Opens the device whose descriptor is handed over.
pub fn open_fuse() -> io::Result<File> {
    File::options().read(true).write(true).open("/dev/fuse")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_longest_folder_is_reached_and_no_link_followed() {
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
        assert!(!listens(&folder), "the file alone is nobody");
    }
}
