//! What a node asks for: to serve a mount, to continue one, to leave it, or to have its descriptor.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use mounter::deadlines::{MOUNT_PROCESS_REPLY, REPLY_SENT, REQUEST_ARRIVES};
use mounter::handover::server::{Received, check_peer, receive, reply};
use mounter::handover::{Code, MountReply, MountRequest, Purpose, Refused, Serving, is_disconnected};
use rustix::net::{RecvFlags, recv};

use super::out_of_memory::OutOfMemory;
use super::{Outcome, State, Supervisor, refuse, send};
use crate::deaths::Deaths;
use crate::mount_process::MountProcess;
use crate::{error_file, log};

impl Supervisor {
    /// Answers everyone who has connected.
    pub(super) fn accept(&mut self, mut state: State) -> Result<State, Outcome> {
        while let Ok((peer, _)) = self.listener.accept() {
            state = match (check_peer(&peer), state) {
                (Err(refused), state) => {
                    refuse(&peer, refused);
                    state
                }
                (Ok(()), State::Waiting) => self.requested_while_waiting(received(&peer), peer, None),
                (Ok(()), State::Left(process)) => {
                    self.requested_while_waiting(received(&peer), peer, Some(process))
                }
                // Without waiting for the peer's message, because the first node still waits for its reply.
                (Ok(()), state @ (State::Starting { .. } | State::Dead { .. } | State::Leaving { .. })) => {
                    if let State::Starting { process, .. }
                    | State::Dead { process, .. }
                    | State::Leaving { process, .. } = &state
                        && !has_hung_up(&peer)
                    {
                        refuse(&peer, busy(process));
                    }
                    state
                }
                (Ok(()), State::Serving(process)) => self.requested_while_serving(peer, process)?,
            };
        }
        Ok(state)
    }

    /// `left` is the mount process whose mount has moved to another pod, or is about to.
    fn requested_while_waiting(
        &mut self,
        received: Result<Option<Received>, Refused>,
        node: UnixStream,
        left: Option<MountProcess>,
    ) -> State {
        let left = match (received, left) {
            (Ok(Some(Received { request, descriptor: Some(descriptor), folder })), left) => {
                let continues = request.purpose == Purpose::Continue;
                match self.start_mount(request, descriptor, folder) {
                    Ok(process) => {
                        let until = Instant::now() + MOUNT_PROCESS_REPLY;
                        return State::Starting { process, node: Some(node), until };
                    }
                    Err(error) => {
                        self.fail(&node, Refused::new(Code::Failed, error.to_string()));
                        return self.still_left(left.filter(|_| continues));
                    }
                }
            }
            (Ok(Some(Received { request, .. })), Some(left)) => {
                match request.purpose {
                    Purpose::Leave => send(&node, &MountReply::Left),
                    _ => give_descriptor(&node, &left, &MountReply::Left),
                }
                Some(left)
            }
            // Nothing serves the mount that the node wants to move.
            (Ok(Some(Received { request: MountRequest { purpose: Purpose::Leave, .. }, .. })), None) => {
                send(&node, &MountReply::Left);
                None
            }
            (Ok(Some(_)), None) => {
                refuse(&node, Refused::new(Code::Failed, "this Mountpoint Pod serves no bucket"));
                None
            }
            (Ok(None), left) => left,
            (Err(refused), left) => {
                refuse(&node, refused);
                left
            }
        };
        left.map_or(State::Waiting, State::Left)
    }

    /// After a mount process failed to continue a mount: the next one may. Without a journal none can, and the mount has to end
    /// with its last descriptor, so that programs get errors rather than wait.
    pub(super) fn still_left(&self, process: Option<MountProcess>) -> State {
        process.filter(|_| self.has_journal()).map_or(State::Waiting, State::Left)
    }

    fn start_mount(
        &mut self,
        request: MountRequest,
        descriptor: OwnedFd,
        folder: Option<OwnedFd>,
    ) -> io::Result<MountProcess> {
        error_file::remove(&self.comm);
        // Of a mount that did not come here, and that its pod may serve again.
        self.adopted = None;
        let continues = request.purpose != Purpose::Mount;
        if request.purpose != Purpose::Continue {
            self.deaths = Deaths::default();
            error_file::remove_deaths(&self.comm);
        }
        let kept = match (request.purpose, folder) {
            (Purpose::Continue, _) => self.kept_request(),
            (Purpose::TakeOver, Some(folder)) => self.adopt(folder, request),
            (Purpose::TakeOver, None) => Err(io::ErrorKind::InvalidInput.into()),
            (Purpose::Mount | Purpose::Fetch | Purpose::Leave, _) => {
                self.keep_request(&request).map(|()| request)
            }
        };
        let request = kept.map_err(|error| {
            let doing = if continues { "continue" } else { "begin" };
            io::Error::new(error.kind(), format!("cannot {doing} a mount: {error}"))
        })?;
        let done = if continues { "mount handed over again" } else { "mount handed over" };
        log::info(done, &[("volume_id", &request.volume_id), ("bucket", &request.bucket)]);
        self.memory = OutOfMemory::watch();
        MountProcess::start(&self.program, request, descriptor, &self.comm)
    }

    /// The node mounts anew only after it found the source mount dead or gone, for example because it aborted the
    /// connection of a mount process that had not responded for a minute. A process that is stopped or stuck does not
    /// notice that, and would block this pod without end: it is killed and the container restarts, so that the node's
    /// next attempt succeeds. The request of a node that merely lost sight of a source mount must not take the bucket
    /// from workloads that still use it through their own binds, so the connection has to be gone, too.
    fn requested_while_serving(&self, node: UnixStream, mut process: MountProcess) -> Result<State, Outcome> {
        match received(&node).map(|received| received.map(|received| received.request.purpose)) {
            // A probe.
            Ok(None) => {}
            Err(refused) => refuse(&node, refused),
            Ok(Some(Purpose::Fetch)) => {
                let serving = Serving { pid: process.id(), version: env!("CARGO_PKG_VERSION").to_owned() };
                give_descriptor(&node, &process, &MountReply::Serving(serving));
            }
            Ok(Some(Purpose::Leave)) => return Ok(self.leave(process, node)),
            Ok(Some(_)) if is_disconnected(process.descriptor()) => {
                process.kill();
                let reason = format!(
                    "the mount process of bucket `{}` did not end with its mount and was killed; the container restarts",
                    process.request.bucket
                );
                self.fail(&node, Refused::new(Code::Busy, reason.as_str()));
                return Err(Outcome::Failed(reason));
            }
            Ok(Some(_)) => refuse(&node, busy(&process)),
        }
        Ok(State::Serving(process))
    }
}

/// Nothing from a node that waits for no reply any more: it may have mounted anew since, and would not know that the mount was left.
fn received(node: &UnixStream) -> Result<Option<Received>, Refused> {
    let received = receive(node, Instant::now() + REQUEST_ARRIVES)?;
    Ok(received.filter(|_| !has_hung_up(node)))
}

fn give_descriptor(node: &UnixStream, process: &MountProcess, answer: &MountReply) {
    if let Err(error) = reply(node, answer, Some(process.descriptor()), REPLY_SENT) {
        // The node asks again when it needs to.
        log::warn(&format!("cannot send the descriptor: {error}"), &[]);
    }
}

fn busy(process: &MountProcess) -> Refused {
    let message = format!("this Mountpoint Pod is serving bucket `{}` already", process.request.bucket);
    Refused::new(Code::Busy, message)
}

fn has_hung_up(peer: &UnixStream) -> bool {
    recv(peer, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok_and(|(read, _)| read == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::{Flags, Program};
    use mounter::handover::frame;
    use mounter::{JOURNAL, SURVIVAL};
    use std::fs::{self, File};
    use std::io::Write as _;

    #[test]
    fn a_mount_that_cannot_continue_yet_is_kept_as_long_as_it_has_a_journal() {
        let comm = tempfile::tempdir().unwrap();
        let ends_at_once = Program::MountS3("/bin/false".into());
        let flags = Flags {
            comm: comm.path().to_owned(),
            program: ends_at_once,
            termination_log: "/dev/null".into(),
        };
        let mut supervisor = Supervisor::new(&flags).unwrap();
        supervisor.keep_request(&MountRequest::default()).unwrap();
        let journal = comm.path().join(SURVIVAL).join(JOURNAL);
        File::create(&journal).unwrap();
        let mut continued = |left| {
            let (node, _peer) = UnixStream::pair().unwrap();
            let (request, null) = (MountRequest::only(Purpose::Continue), File::open("/dev/null").unwrap());
            let received = Received { request, descriptor: Some(null.into()), folder: None };
            let mut state = supervisor.requested_while_waiting(Ok(Some(received)), node, left);
            while matches!(state, State::Starting { .. }) {
                supervisor.wait_for_event(&state);
                state = supervisor.step(state).ok().unwrap();
            }
            state
        };
        let State::Left(left) = continued(None) else { panic!("the descriptor is gone") };
        let State::Left(left) = continued(Some(left)) else { panic!("the descriptor is gone") };
        fs::remove_file(journal).unwrap();
        assert!(matches!(continued(Some(left)), State::Waiting), "programs would wait without end");
    }

    #[test]
    fn what_a_node_that_has_hung_up_asked_for_is_not_done() {
        let (node, mut peer) = UnixStream::pair().unwrap();
        let leave = frame::encode(&MountRequest::only(Purpose::Leave)).unwrap();
        peer.write_all(&leave).unwrap();
        assert!(received(&node).unwrap().is_some());
        peer.write_all(&leave).unwrap();
        drop(peer);
        assert!(received(&node).unwrap().is_none());
    }
}
