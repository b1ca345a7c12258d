//! Bytes and descriptors over the socket, each within a deadline.

use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// At most one is accepted. There is room for several, because the kernel silently drops what does not fit.
const MAX_DESCRIPTORS: usize = 8;

/// The kernel passes descriptors along with the first byte.
pub fn send(
    mut stream: &UnixStream,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
    until: Instant,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
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

/// Reads what there is, and adds the descriptors that came with it. `InvalidData` if there are too many of them.
pub(super) fn receive(
    stream: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    until: Instant,
) -> io::Result<usize> {
    stream.set_read_timeout(Some(left(until)?))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(stream, &mut [IoSliceMut::new(buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
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
