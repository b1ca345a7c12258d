//! Bytes and descriptors over the socket, each within a deadline.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// At most two are accepted. There is room for more, because the kernel silently drops what does not fit.
const MAX_DESCRIPTORS: usize = 8;

/// The kernel passes descriptors along with the first byte. Calls are repeated after a signal: the kernel does not restart those on
/// sockets with a timeout.
pub fn send(
    stream: &UnixStream,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
    until: Instant,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    let mut sent = 0;
    while sent < message.len() {
        stream.set_write_timeout(Some(left(until)?))?;
        match sendmsg(stream, &[IoSlice::new(&message[sent..])], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(some) => {
                sent += some;
                ancillary.clear();
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Fills the buffer, and adds the descriptors that came with it.
pub(super) fn fill(
    stream: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    until: Instant,
) -> io::Result<()> {
    match fill_if_any(stream, buffer, descriptors, until)? {
        0 if !buffer.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// The same, but returns 0 if the peer hangs up before the first byte.
pub(super) fn fill_if_any(
    stream: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    until: Instant,
) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match receive(stream, &mut buffer[filled..], descriptors, until)? {
            0 if filled == 0 => break,
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            some => filled += some,
        }
    }
    Ok(filled)
}

/// What there is. `InvalidData` if it comes with too many descriptors.
fn receive(
    stream: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    until: Instant,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        stream.set_read_timeout(Some(left(until)?))?;
        match recvmsg(stream, &mut [IoSliceMut::new(buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = message {
            descriptors.extend(sent);
        }
    }
    // A peer that keeps sending descriptors must not use up those of this process.
    if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > MAX_DESCRIPTORS {
        let message = format!("the message came with more than {MAX_DESCRIPTORS} descriptors");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(received.bytes)
}

pub(super) fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}
