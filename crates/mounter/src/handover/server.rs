//! The mounter's end of the hand-over: a request with its descriptor is received completely and in time, or refused.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

use crate::handover::descriptor::is_fuse;
use crate::handover::frame::{self, HEADER};
use crate::handover::transfer::{fill, fill_if_any, send};
use crate::handover::{Code, MountReply, MountRequest, Refused};

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

/// A request with the descriptors that it needs.
#[derive(Debug)]
pub struct Received {
    pub request: MountRequest,
    /// Of the mount.
    pub descriptor: Option<OwnedFd>,
    /// In which another pod has kept what a successor needs.
    pub folder: Option<OwnedFd>,
}

/// A request, or why it is refused; then every descriptor is closed. `None` from a peer that hangs up without sending
/// anything: that is how the node probes whether a mounter listens.
pub fn receive(stream: &UnixStream, until: Instant) -> Result<Option<Received>, Refused> {
    let mut header = [0; HEADER];
    let mut descriptors = Vec::new();
    if fill_if_any(stream, &mut header, &mut descriptors, until).map_err(|error| refused(&error))? == 0 {
        return Ok(None);
    }
    let mut body = vec![0; frame::body_length(header).map_err(|error| Refused::from(&error))?];
    fill(stream, &mut body, &mut descriptors, until).map_err(|error| refused(&error))?;
    let request: MountRequest = frame::decode(&body).map_err(|error| Refused::from(&error))?;
    let (found, expected) = (descriptors.len(), request.purpose.descriptors());
    if found != expected {
        let message = format!("the mount request came with {found} descriptors instead of {expected}");
        return Err(Refused::new(Code::WrongDescriptor, message));
    }
    let mut descriptors = descriptors.into_iter();
    let (descriptor, folder) = (descriptors.next(), descriptors.next());
    descriptor.as_ref().map_or(Ok(()), is_fuse)?;
    Ok(Some(Received { request, descriptor, folder }))
}

/// The answer to a request for the descriptor comes with it.
pub fn reply(
    stream: &UnixStream,
    reply: &MountReply,
    descriptor: Option<BorrowedFd<'_>>,
    within: Duration,
) -> io::Result<()> {
    let frame = frame::encode(reply).map_err(io::Error::other)?;
    send(stream, &frame, descriptor.as_slice(), Instant::now() + within)
}

fn refused(error: &io::Error) -> Refused {
    match error.kind() {
        io::ErrorKind::InvalidData => Refused::new(Code::WrongDescriptor, error.to_string()),
        _ => Refused::new(Code::RequestTimeout, format!("incomplete mount request: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::Purpose;
    use proptest::prelude::*;
    use proptest::sample::Index;
    use rustix::process::{Signal, kill_process};
    use rustix::thread::gettid;
    use signal_hook::consts::SIGUSR1;
    use std::fs::File;
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    const SOON: Duration = Duration::from_millis(200);

    fn request() -> Vec<u8> {
        frame::encode(&MountRequest { bucket: "b".into(), ..MountRequest::default() }).unwrap()
    }

    fn null() -> File {
        File::open("/dev/null").unwrap()
    }

    /// What the mounter receives from `peer`.
    fn received(until: Instant, peer: impl FnOnce(UnixStream) + Send) -> Result<Option<Received>, Refused> {
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
        assert_eq!(received(soon(), stalls).unwrap_err().code, Code::RequestTimeout);
        assert!(received(later(), drop).unwrap().is_none(), "a probe");
        assert_eq!(code(|mut peer| peer.write_all(&request()[..HEADER + 3]).unwrap()), Code::RequestTimeout);
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
        assert_eq!(received(soon(), slow).unwrap_err().code, Code::RequestTimeout);
    }

    /// SIGTERM may come at any moment.
    #[test]
    fn a_signal_does_not_interrupt_a_request() {
        let arrived = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGUSR1, Arc::clone(&arrived)).unwrap();
        let receiver = gettid();
        let fetch = frame::encode(&MountRequest::only(Purpose::Fetch)).unwrap();
        let slow = |mut peer: UnixStream| {
            for byte in fetch {
                kill_process(receiver, Signal::USR1).unwrap();
                std::thread::sleep(SOON / 50);
                peer.write_all(&[byte]).unwrap();
            }
        };
        assert!(received(later(), slow).unwrap().is_some() && arrived.load(Ordering::Relaxed));
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
        for count in [1, 2, 8] {
            assert_eq!(code(with(count)), Code::WrongDescriptor, "{count}");
        }
    }

    #[test]
    fn a_request_for_the_descriptor_comes_without_one() {
        let fetch = frame::encode(&MountRequest::only(Purpose::Fetch)).unwrap();
        let sent = fetch.clone();
        let received = received(later(), move |mut peer| peer.write_all(&sent).unwrap()).unwrap().unwrap();
        assert!(received.request.purpose == Purpose::Fetch && received.descriptor.is_none());
        let refused = code(move |peer| send(&peer, &fetch, &[null().as_fd()], later()).unwrap());
        assert_eq!(refused, Code::WrongDescriptor);
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
