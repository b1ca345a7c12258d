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
                (Ok(()), State::Waiting) => self.requested_while_waiting(peer, None),
                (Ok(()), State::Left(process)) => self.requested_while_waiting(peer, Some(process)),
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
    fn requested_while_waiting(&mut self, node: UnixStream, left: Option<MountProcess>) -> State {
        let received = receive(&node, Instant::now() + REQUEST_ARRIVES);
        match (received, left) {
            (Ok(Some(Received { request, descriptor: Some(descriptor), folder })), _) => {
                return self.start_mount(node, request, descriptor, folder);
            }
            (Ok(Some(Received { request, .. })), Some(left)) => {
                match request.purpose {
                    Purpose::Leave => send(&node, &MountReply::Left),
                    _ => give_descriptor(&node, &left, &MountReply::Left),
                }
                return State::Left(left);
            }
            // Nothing serves the mount that the node wants to move.
            (Ok(Some(Received { request: MountRequest { purpose: Purpose::Leave, .. }, .. })), None) => {
                send(&node, &MountReply::Left);
            }
            (Ok(Some(_)), None) => {
                refuse(&node, Refused::new(Code::Failed, "this Mountpoint Pod serves no bucket"));
            }
            (Ok(None), Some(left)) => return State::Left(left),
            (Ok(None), None) => {}
            (Err(refused), left) => {
                refuse(&node, refused);
                return left.map_or(State::Waiting, State::Left);
            }
        }
        State::Waiting
    }

    fn start_mount(
        &mut self,
        node: UnixStream,
        request: MountRequest,
        descriptor: OwnedFd,
        folder: Option<OwnedFd>,
    ) -> State {
        error_file::remove(&self.comm);
        // Of a mount that did not come here, and that its pod may serve again.
        self.adopted = None;
        let continues = request.purpose != Purpose::Mount;
        let kept = match (request.purpose, folder) {
            (Purpose::Continue, _) => self.kept_request(),
            (Purpose::TakeOver, Some(folder)) => self.adopt(folder, request),
            (Purpose::TakeOver, None) => Err(io::ErrorKind::InvalidInput.into()),
            (Purpose::Mount | Purpose::Fetch | Purpose::Leave, _) => {
                self.keep_request(&request).map(|()| request)
            }
        };
        let request = match kept {
            Ok(request) => request,
            Err(error) => {
                let doing = if continues { "continue" } else { "begin" };
                self.fail(&node, Refused::new(Code::Failed, format!("cannot {doing} a mount: {error}")));
                return State::Waiting;
            }
        };
        let done = if continues { "mount handed over again" } else { "mount handed over" };
        log::info(done, &[("volume_id", &request.volume_id), ("bucket", &request.bucket)]);
        self.memory = OutOfMemory::watch();
        match MountProcess::start(&self.program, request, descriptor, &self.comm) {
            Ok(process) => {
                State::Starting { process, node: Some(node), until: Instant::now() + MOUNT_PROCESS_REPLY }
            }
            Err(error) => {
                self.fail(&node, Refused::new(Code::Failed, error.to_string()));
                State::Waiting
            }
        }
    }

    /// The node mounts anew only after it found the source mount dead or gone, for example because it aborted the
    /// connection of a mount process that had not responded for a minute. A process that is stopped or stuck does not
    /// notice that, and would block this pod without end: it is killed and the container restarts, so that the node's
    /// next attempt succeeds. The request of a node that merely lost sight of a source mount must not take the bucket
    /// from workloads that still use it through their own binds, so the connection has to be gone, too.
    fn requested_while_serving(&self, node: UnixStream, mut process: MountProcess) -> Result<State, Outcome> {
        let received = receive(&node, Instant::now() + REQUEST_ARRIVES);
        match received.map(|received| received.map(|received| received.request.purpose)) {
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
