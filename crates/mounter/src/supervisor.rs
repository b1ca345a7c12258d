//! The life of a mounter: it waits for a hand-over, starts the mount process and supervises it until it ends. One thread;
//! everything that can happen makes a descriptor readable.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use mounter::EXIT;
use mounter::deadlines::MOUNT_PROCESS_REPLY;
use mounter::handover::server::{check_peer, receive, reply};
use mounter::handover::{Code, MountReply, Refused};
use rustix::net::{RecvFlags, recv};
use signal_hook::consts::SIGTERM;
use thiserror::Error;

use crate::flags::{Flags, Program};
use crate::mount_process::MountProcess;
use crate::{error_file, events, listen, log};

/// A node that has connected sends its request at once. One that does not must not keep the next one waiting.
const RECEIVE_WITHIN: Duration = Duration::from_secs(2);
/// A reply is a few hundred bytes, which fit into the socket's buffer.
const REPLY_WITHIN: Duration = Duration::from_secs(2);
/// How often the folder is read where inotify is not available.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Error)]
pub(crate) enum StartError {
    #[error("cannot listen in {folder}: {source}")]
    Listen { folder: PathBuf, source: io::Error },
    #[error("cannot handle SIGTERM: {0}")]
    Signal(io::Error),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The node asked for it.
    Ended,
    Failed(String),
}

pub(crate) struct Supervisor {
    comm: PathBuf,
    program: Program,
    listener: UnixListener,
    /// New files in the folder, where inotify is available.
    changes: Option<OwnedFd>,
    /// SIGTERM arrived. It needs a handler, because PID 1 of a container has no default action.
    stop: UnixStream,
    /// Remembered, because it may arrive during the start of a mount that then fails.
    stopping: bool,
}

enum State {
    /// For a hand-over.
    Waiting,
    /// The mount process has not reported yet whether it is serving, and the node waits for the reply.
    Starting {
        process: MountProcess,
        node: UnixStream,
        until: Instant,
    },
    Serving(MountProcess),
}

impl Supervisor {
    pub(crate) fn new(flags: &Flags) -> Result<Self, StartError> {
        let comm = flags.comm.clone();
        // The number of inotify instances of a user is limited.
        let changes = events::watch(&comm)
            .inspect_err(|error| log::warn(&format!("inotify failed, polling the folder: {error}"), &[]))
            .ok();
        let (stop, signalled) = UnixStream::pair().map_err(StartError::Signal)?;
        stop.set_nonblocking(true).map_err(StartError::Signal)?;
        signal_hook::low_level::pipe::register(SIGTERM, signalled).map_err(StartError::Signal)?;
        let listener =
            listen::listen(&comm).map_err(|source| StartError::Listen { folder: comm.clone(), source })?;
        Ok(Self { comm, program: flags.program.clone(), listener, changes, stop, stopping: false })
    }

    pub(crate) fn run(mut self) -> Outcome {
        log::info("waiting for a mount", &[]);
        let mut state = State::Waiting;
        loop {
            match self.step(state) {
                Ok(next) => state = next,
                Err(outcome) => return outcome,
            }
            self.wait_for_event(&state);
        }
    }

    /// Does everything there is to do. Blocks only for a peer's message, within a deadline.
    fn step(&mut self, state: State) -> Result<State, Outcome> {
        if let Some(changes) = &self.changes {
            events::drain(changes);
        }
        let stop = events::drain(&self.stop);
        self.stopping |= stop;
        let state = match state {
            State::Waiting => State::Waiting,
            State::Starting { process, node, until } => self.check_start(process, node, until),
            State::Serving(mut process) => {
                if stop {
                    // Workloads still use the mount. It ends when the node unmounts, or with the pod's grace period.
                    log::info("SIGTERM ignored while serving", &process.log_fields());
                }
                let exited = process.exit_status();
                process.read_output();
                match exited {
                    Some(status) => return Err(self.process_exited(&process, status)),
                    None => State::Serving(process),
                }
            }
        };
        match state {
            State::Waiting if self.exit_requested() => Err(Outcome::Ended),
            State::Waiting if self.stopping => {
                Err(Outcome::Failed("stopped by SIGTERM before a mount was handed over".to_owned()))
            }
            state => self.accept(state),
        }
    }

    /// Passes the reply of the mount process on to the node, once there is one.
    fn check_start(&self, mut process: MountProcess, node: UnixStream, until: Instant) -> State {
        let exited = process.exit_status();
        let reply = match (process.read_output(), exited) {
            (Some(reply), _) => reply,
            (None, Some(status)) => {
                let output = process.last_output();
                let message =
                    format!("the mount process ended with {status} before it was serving: {output}");
                MountReply::Refused(Refused::new(Code::Failed, message))
            }
            (None, None) if Instant::now() >= until => {
                let limit = MOUNT_PROCESS_REPLY.as_secs();
                let message =
                    format!("the mount process did not report within {limit} s whether it is serving");
                MountReply::Refused(Refused::new(Code::TimedOut, message))
            }
            (None, None) => return State::Starting { process, node, until },
        };
        match reply {
            MountReply::Serving(serving) => {
                log::info(&format!("serving, version {}", serving.version), &process.log_fields());
                send(&node, &MountReply::Serving(serving));
                State::Serving(process)
            }
            MountReply::Refused(refused) => {
                self.fail(&node, refused);
                process.stop();
                State::Waiting
            }
        }
    }

    /// Answers everyone who has connected.
    fn accept(&self, mut state: State) -> Result<State, Outcome> {
        while let Ok((peer, _)) = self.listener.accept() {
            state = match (check_peer(&peer), state) {
                (Err(refused), state) => {
                    refuse(&peer, refused);
                    state
                }
                (Ok(()), State::Waiting) => self.start_mount(peer),
                // Without waiting for the peer's message, because the first node still waits for its reply.
                (Ok(()), State::Starting { process, node, until }) => {
                    if !has_hung_up(&peer) {
                        refuse(&peer, busy(&process));
                    }
                    State::Starting { process, node, until }
                }
                (Ok(()), State::Serving(process)) => self.handed_over_while_serving(&peer, process)?,
            };
        }
        Ok(state)
    }

    fn start_mount(&self, node: UnixStream) -> State {
        let (request, descriptor) = match receive(&node, Instant::now() + RECEIVE_WITHIN) {
            Ok(Some(handed_over)) => handed_over,
            Ok(None) => return State::Waiting,
            Err(refused) => {
                refuse(&node, refused);
                return State::Waiting;
            }
        };
        error_file::remove(&self.comm);
        log::info("mount handed over", &[("volume_id", &request.volume_id), ("bucket", &request.bucket)]);
        match MountProcess::start(&self.program, request, descriptor, &self.comm) {
            Ok(process) => State::Starting { process, node, until: Instant::now() + MOUNT_PROCESS_REPLY },
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
    fn handed_over_while_serving(
        &self,
        node: &UnixStream,
        mut process: MountProcess,
    ) -> Result<State, Outcome> {
        match receive(node, Instant::now() + RECEIVE_WITHIN) {
            // A probe.
            Ok(None) => {}
            Err(refused) => refuse(node, refused),
            Ok(Some(_)) if process.is_disconnected() => {
                process.kill();
                let reason = format!(
                    "the mount process of bucket `{}` did not end with its mount and was killed; the container restarts",
                    process.request.bucket
                );
                self.fail(node, Refused::new(Code::Busy, reason.as_str()));
                return Err(Outcome::Failed(reason));
            }
            Ok(Some(_)) => refuse(node, busy(&process)),
        }
        Ok(State::Serving(process))
    }

    fn process_exited(&self, process: &MountProcess, status: ExitStatus) -> Outcome {
        match (status.success(), self.exit_requested()) {
            (true, true) => Outcome::Ended,
            (true, false) => {
                Outcome::Failed("the bucket was unmounted, but not by the node service".to_owned())
            }
            (false, _) => {
                let reason = format!("the mount process ended with {status}: {}", process.last_output());
                let refused = Refused::new(Code::Failed, reason);
                error_file::write(&self.comm, &refused);
                Outcome::Failed(refused.message)
            }
        }
    }

    /// The file comes before the reply: the node may read it once it has that.
    fn fail(&self, node: &UnixStream, refused: Refused) {
        error_file::write(&self.comm, &refused);
        refuse(node, refused);
    }

    fn exit_requested(&self) -> bool {
        self.comm.join(EXIT).exists()
    }

    fn wait_for_event(&self, state: &State) {
        let mut all = vec![self.listener.as_fd(), self.stop.as_fd()];
        all.extend(self.changes.iter().map(OwnedFd::as_fd));
        let mut until = None;
        match state {
            State::Waiting if self.changes.is_none() => until = Some(Instant::now() + LOOK_EVERY),
            State::Waiting => {}
            State::Starting { process, until: deadline, .. } => {
                all.extend(process.descriptors());
                until = Some(*deadline);
            }
            State::Serving(process) => all.extend(process.descriptors()),
        }
        events::wait(all, until);
    }
}

fn busy(process: &MountProcess) -> Refused {
    let message = format!("this Mountpoint Pod is serving bucket `{}` already", process.request.bucket);
    Refused::new(Code::Busy, message)
}

fn refuse(peer: &UnixStream, refused: Refused) {
    log::warn(&refused.message, &[("code", &refused.code.to_string())]);
    send(peer, &MountReply::Refused(refused));
}

fn send(peer: &UnixStream, answer: &MountReply) {
    if let Err(error) = reply(peer, answer, REPLY_WITHIN) {
        // The node finds out by itself whether the source is served.
        log::warn(&format!("cannot send the mount reply: {error}"), &[]);
    }
}

fn has_hung_up(peer: &UnixStream) -> bool {
    recv(peer, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok_and(|(read, _)| read == 0)
}
