//! The mounter's end of the hand-over: an order with its descriptor is received whole and in time, or refused.

use std::io::{self, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, fstat};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use crate::channel::{DESCRIPTORS, left};
use crate::frame::{self, HEADER};
use crate::order::Order;
use crate::reply::{Code, Refused, Reply};

/// The device number of `/dev/fuse`, the same on every Linux.
const FUSE_DEVICE: (u32, u32) = (10, 229);

/// The order and its descriptor, or why there is none. Whatever else arrived is closed. Nothing from
/// whoever hangs up without a word: it has asked whether somebody listens.
pub fn receive(stream: &UnixStream, until: Instant) -> Result<Option<(Order, OwnedFd)>, Refused> {
    let mut header = [0; HEADER];
    let mut descriptors = Vec::new();
    if receive_all(stream, &mut header, &mut descriptors, until)? == 0 {
        return Ok(None);
    }
    let mut body = vec![0; frame::body_length(header).map_err(|error| Refused::from(&error))?];
    if receive_all(stream, &mut body, &mut descriptors, until)? < body.len() {
        return Err(lost(&io::ErrorKind::UnexpectedEof.into()));
    }
    let order: Order = frame::decode(&body).map_err(|error| Refused::from(&error))?;
    let found = descriptors.len();
    let descriptor = descriptors.pop().filter(|_| found == 1).ok_or_else(|| {
        Refused::new(Code::WrongDescriptor, format!("the order came with {found} descriptors instead of one"))
    })?;
    is_fuse(&descriptor)?;
    Ok(Some((order, descriptor)))
}

pub fn answer(mut stream: &UnixStream, reply: &Reply, within: Duration) -> io::Result<()> {
    let frame = frame::encode(reply).map_err(io::Error::other)?;
    stream.set_write_timeout(Some(within))?;
    stream.write_all(&frame)
}

/// Fills the buffer; only before the first byte the peer may hang up.
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
    Refused::new(Code::Late, format!("no whole order came: {error}"))
}

fn receive_some(
    stream: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    until: Instant,
) -> Result<usize, Refused> {
    let left = left(until).and_then(|left| stream.set_read_timeout(Some(left)));
    left.map_err(|error| lost(&error))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(stream, &mut [IoSliceMut::new(buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC);
    let received = received.map_err(|error| lost(&error.into()))?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = message {
            descriptors.extend(sent);
        }
    }
    // Held by nobody: a peer that sends one after the other must not make us collect them.
    if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > DESCRIPTORS {
        return Err(Refused::new(
            Code::WrongDescriptor,
            format!("the order came with more than {DESCRIPTORS} descriptors instead of one"),
        ));
    }
    Ok(received.bytes)
}

/// Anything else would make the mount process fail in ways that nobody could explain.
fn is_fuse(descriptor: &OwnedFd) -> Result<(), Refused> {
    let status = fstat(descriptor)
        .map_err(|error| Refused::new(Code::WrongDescriptor, format!("the descriptor: {error}")))?;
    let device = (rustix::fs::major(status.st_rdev), rustix::fs::minor(status.st_rdev));
    if FileType::from_raw_mode(status.st_mode) == FileType::CharacterDevice && device == FUSE_DEVICE {
        Ok(())
    } else {
        Err(Refused::new(Code::WrongDescriptor, "the descriptor is not of /dev/fuse"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::send;
    use proptest::prelude::*;
    use proptest::sample::Index;
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::AsFd as _;

    const SOON: Duration = Duration::from_millis(200);

    fn order() -> Vec<u8> {
        frame::encode(&Order { bucket: "b".into(), ..Order::default() }).unwrap()
    }

    fn null() -> File {
        File::open("/dev/null").unwrap()
    }

    /// What the mounter makes of what `peer` sends.
    fn received(
        until: Instant,
        peer: impl FnOnce(UnixStream) + Send,
    ) -> Result<Option<(Order, OwnedFd)>, Refused> {
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
    fn silence_and_departure_are_refused_in_time() {
        let silent = |peer: UnixStream| {
            std::thread::sleep(SOON * 2);
            drop(peer);
        };
        assert_eq!(received(soon(), silent).unwrap_err().code, Code::Late);
        assert!(received(later(), drop).unwrap().is_none(), "it has only looked");
        assert_eq!(code(|mut peer| peer.write_all(&order()[..HEADER + 3]).unwrap()), Code::Late);
    }

    #[test]
    fn a_dribble_does_not_outlast_the_deadline() {
        let dribble = |mut peer: UnixStream| {
            for byte in order() {
                if peer.write_all(&[byte]).is_err() {
                    break;
                }
                std::thread::sleep(SOON / 4);
            }
        };
        assert_eq!(received(soon(), dribble).unwrap_err().code, Code::Late);
    }

    #[test]
    fn garbage_is_refused() {
        assert_eq!(code(|mut peer| peer.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap()), Code::Garbled);
        assert_eq!(code(|mut peer| peer.write_all(b"s3m\x01\0\0\0\x02no").unwrap()), Code::Garbled);
        assert_eq!(code(|mut peer| peer.write_all(b"s3m\x09\0\0\0\x02{}").unwrap()), Code::WrongVersion);
        assert_eq!(code(|mut peer| peer.write_all(b"s3m\x01\x10\0\0\0").unwrap()), Code::Garbled);
    }

    #[test]
    fn exactly_one_descriptor_of_the_fuse_device_is_taken() {
        assert_eq!(code(|mut peer| peer.write_all(&order()).unwrap()), Code::WrongDescriptor);
        let with = |count: usize| {
            move |peer: UnixStream| {
                let files: Vec<File> = (0..count).map(|_| null()).collect();
                let descriptors: Vec<_> = files.iter().map(File::as_fd).collect();
                send(&peer, &order(), &descriptors, later()).unwrap();
            }
        };
        for count in [1, 2, DESCRIPTORS] {
            assert_eq!(code(with(count)), Code::WrongDescriptor, "{count}");
        }
    }

    #[test]
    fn refused_descriptors_are_closed() {
        // A pipe's reader sees the end only when every descriptor of its writer is closed.
        let (mut reader, writer) = io::pipe().unwrap();
        let refused = received(later(), move |peer| {
            send(&peer, &order(), &[writer.as_fd(), writer.as_fd()], later()).unwrap();
        });
        assert_eq!(refused.unwrap_err().code, Code::WrongDescriptor);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }

    const SEEDS: &[&[u8]] = &[
        include_bytes!("../seeds/deep"),
        include_bytes!("../seeds/length-beyond-the-message"),
        include_bytes!("../seeds/order"),
        include_bytes!("../seeds/order-of-a-newer-node"),
        include_bytes!("../seeds/order-of-another-version"),
        include_bytes!("../seeds/reply"),
        include_bytes!("../seeds/request-of-a-browser"),
    ];

    /// Seeds with some bytes changed, in pieces, with any number of descriptors: as long as the suite has time for it.
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
                    // Nothing but a whole order with one descriptor of the right device would be taken.
                    let refused = receive(&there, later()).map(drop).unwrap_err();
                    prop_assert!(!refused.message.is_empty());
                    Ok(())
                })
                .unwrap();
        }
    }
}
