//! The mounter's end of the hand-over: a request with its descriptor is received completely and in time, or refused.

use std::io::{self, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::fs::{FileType, fstat};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use crate::handover::client::left;
use crate::handover::frame::{self, HEADER};
use crate::handover::{Code, MAX_DESCRIPTORS, MountReply, MountRequest, Refused};

/// The device number of `/dev/fuse`, the same on every Linux.
const FUSE_DEVICE: (u32, u32) = (10, 229);

/// Only root, as the node service is, may hand over mounts. Its process cannot be identified: it runs in another PID
/// namespace.
pub fn check_peer(peer: &UnixStream) -> Result<(), Refused> {
    let credentials = getsockopt(peer, PeerCredentials)
        .map_err(|error| Refused::new(Code::WrongPeer, format!("cannot identify the peer: {error}")))?;
    if credentials.uid() == 0 {
        return Ok(());
    }
    let message = format!("user {} may not hand over mounts; only root may", credentials.uid());
    Err(Refused::new(Code::WrongPeer, message))
}

/// The request and its descriptor, or why it is refused; every other descriptor is closed. `None` from a peer that hangs
/// up without sending anything: that is how the node probes whether a mounter listens.
pub fn receive(stream: &UnixStream, until: Instant) -> Result<Option<(MountRequest, OwnedFd)>, Refused> {
    let mut header = [0; HEADER];
    let mut descriptors = Vec::new();
    if receive_all(stream, &mut header, &mut descriptors, until)? == 0 {
        return Ok(None);
    }
    let mut body = vec![0; frame::body_length(header).map_err(|error| Refused::from(&error))?];
    if receive_all(stream, &mut body, &mut descriptors, until)? < body.len() {
        return Err(lost(&io::ErrorKind::UnexpectedEof.into()));
    }
    let request: MountRequest = frame::decode(&body).map_err(|error| Refused::from(&error))?;
    let found = descriptors.len();
    let descriptor = descriptors.pop().filter(|_| found == 1).ok_or_else(|| {
        let message = format!("the mount request came with {found} descriptors instead of one");
        Refused::new(Code::WrongDescriptor, message)
    })?;
    is_fuse(&descriptor)?;
    Ok(Some((request, descriptor)))
}

pub fn reply(mut stream: &UnixStream, reply: &MountReply, within: Duration) -> io::Result<()> {
    let frame = frame::encode(reply).map_err(io::Error::other)?;
    stream.set_write_timeout(Some(within))?;
    stream.write_all(&frame)
}

/// Fills the buffer, unless the peer hangs up before the first byte.
fn receive_all(
    stream: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    until: Instant,
) -> Result<usize, Refused> {
    let mut filled = 0;
    while filled < buffer.len() {
        match receive_some(stream, &mut buffer[filled..], descriptors, until)? {
            0 if filled == 0 => break,
            0 => return Err(lost(&io::ErrorKind::UnexpectedEof.into())),
            some => filled += some,
        }
    }
    Ok(filled)
}

fn lost(error: &io::Error) -> Refused {
    Refused::new(Code::Late, format!("incomplete mount request: {error}"))
}

fn receive_some(
    stream: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    until: Instant,
) -> Result<usize, Refused> {
    let left = left(until).and_then(|left| stream.set_read_timeout(Some(left)));
    left.map_err(|error| lost(&error))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(stream, &mut [IoSliceMut::new(buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC);
    let received = received.map_err(|error| lost(&error.into()))?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = message {
            descriptors.extend(sent);
        }
    }
    // A peer that keeps sending descriptors must not use up the mounter's.
    if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > MAX_DESCRIPTORS {
        return Err(Refused::new(
            Code::WrongDescriptor,
            format!("the mount request came with more than {MAX_DESCRIPTORS} descriptors instead of one"),
        ));
    }
    Ok(received.bytes)
}

/// With any other file the mount process would fail with an error that does not name the cause.
fn is_fuse(descriptor: &OwnedFd) -> Result<(), Refused> {
    let status = fstat(descriptor).map_err(|error| {
        Refused::new(Code::WrongDescriptor, format!("cannot inspect the descriptor: {error}"))
    })?;
    let device = (rustix::fs::major(status.st_rdev), rustix::fs::minor(status.st_rdev));
    if FileType::from_raw_mode(status.st_mode) == FileType::CharacterDevice && device == FUSE_DEVICE {
        Ok(())
    } else {
        Err(Refused::new(Code::WrongDescriptor, "the descriptor is not /dev/fuse"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::client::send;
    use proptest::prelude::*;
    use proptest::sample::Index;
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::AsFd as _;

    const SOON: Duration = Duration::from_millis(200);

    fn request() -> Vec<u8> {
        frame::encode(&MountRequest { bucket: "b".into(), ..MountRequest::default() }).unwrap()
    }

    fn null() -> File {
        File::open("/dev/null").unwrap()
    }

    /// What the mounter receives from `peer`.
    fn received(
        until: Instant,
        peer: impl FnOnce(UnixStream) + Send,
    ) -> Result<Option<(MountRequest, OwnedFd)>, Refused> {
        let (here, there) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || peer(here));
            let received = receive(&there, until);
            drop(there);
            received
        })
    }

    fn code(peer: impl FnOnce(UnixStream) + Send) -> Code {
        received(later(), peer).unwrap_err().code
    }

    fn soon() -> Instant {
        Instant::now() + SOON
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[test]
    fn a_peer_that_stalls_or_hangs_up_is_refused_in_time() {
        let stalls = |peer: UnixStream| {
            std::thread::sleep(SOON * 2);
            drop(peer);
        };
        assert_eq!(received(soon(), stalls).unwrap_err().code, Code::Late);
        assert!(received(later(), drop).unwrap().is_none(), "a probe");
        assert_eq!(code(|mut peer| peer.write_all(&request()[..HEADER + 3]).unwrap()), Code::Late);
    }

    #[test]
    fn a_slow_sender_does_not_outlast_the_deadline() {
        let slow = |mut peer: UnixStream| {
            for byte in request() {
                if peer.write_all(&[byte]).is_err() {
                    break;
                }
                std::thread::sleep(SOON / 4);
            }
        };
        assert_eq!(received(soon(), slow).unwrap_err().code, Code::Late);
    }

    #[test]
    fn garbage_is_refused() {
        assert_eq!(code(|mut peer| peer.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap()), Code::Garbled);
        assert_eq!(code(|mut peer| peer.write_all(b"s3m\x01\0\0\0\x02no").unwrap()), Code::Garbled);
        assert_eq!(code(|mut peer| peer.write_all(b"s3m\x09\0\0\0\x02{}").unwrap()), Code::WrongVersion);
        assert_eq!(code(|mut peer| peer.write_all(b"s3m\x01\x10\0\0\0").unwrap()), Code::Garbled);
    }

    #[test]
    fn exactly_one_descriptor_of_the_fuse_device_is_accepted() {
        assert_eq!(code(|mut peer| peer.write_all(&request()).unwrap()), Code::WrongDescriptor);
        let with = |count: usize| {
            move |peer: UnixStream| {
                let files: Vec<File> = (0..count).map(|_| null()).collect();
                let descriptors: Vec<_> = files.iter().map(File::as_fd).collect();
                send(&peer, &request(), &descriptors, later()).unwrap();
            }
        };
        for count in [1, 2, MAX_DESCRIPTORS] {
            assert_eq!(code(with(count)), Code::WrongDescriptor, "{count}");
        }
    }

    #[test]
    fn refused_descriptors_are_closed() {
        // A pipe's reader sees the end only when every descriptor of its writer is closed.
        let (mut reader, writer) = io::pipe().unwrap();
        let refused = received(later(), move |peer| {
            send(&peer, &request(), &[writer.as_fd(), writer.as_fd()], later()).unwrap();
        });
        assert_eq!(refused.unwrap_err().code, Code::WrongDescriptor);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }

    const SEEDS: &[&[u8]] = &[
        include_bytes!("../../seeds/deep"),
        include_bytes!("../../seeds/length-beyond-the-message"),
        include_bytes!("../../seeds/mount-request"),
        include_bytes!("../../seeds/mount-request-of-a-newer-node"),
        include_bytes!("../../seeds/mount-request-of-another-version"),
        include_bytes!("../../seeds/mount-reply"),
        include_bytes!("../../seeds/request-of-a-browser"),
    ];

    /// Seeds with some bytes changed, in pieces, with any number of descriptors; the suite sets for how long.
    #[test]
    fn fuzz() {
        let seconds =
            std::env::var("S3_CSI_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
        let until = Instant::now() + Duration::from_secs(seconds);
        let changes = proptest::collection::vec((any::<Index>(), any::<u8>()), 0..6);
        let input = (proptest::sample::select(SEEDS), changes, any::<Index>(), 0_usize..4);
        let mut runner = proptest::test_runner::TestRunner::default();
        while Instant::now() < until {
            runner
                .run(&input, |(seed, changes, cut, count)| {
                    let mut bytes = seed.to_vec();
                    for (place, byte) in changes {
                        *place.get_mut(&mut bytes) = byte;
                    }
                    let cut = cut.index(bytes.len());
                    let (here, there) = UnixStream::pair().unwrap();
                    let file = null();
                    send(&here, &bytes[..cut.max(1)], &vec![file.as_fd(); count], later()).unwrap();
                    (&here).write_all(&bytes[cut.max(1)..]).unwrap();
                    drop(here);
                    // Only a complete request with one descriptor of the right device would be accepted.
                    let refused = receive(&there, later()).map(drop).unwrap_err();
                    prop_assert!(!refused.message.is_empty());
                    Ok(())
                })
                .unwrap();
        }
    }
}
