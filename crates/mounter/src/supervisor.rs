//! The life of a mounter: it waits for a hand-over, starts the mount process and supervises it until the mount ends. If the
//! process dies, the next one continues on the same descriptor. The mount may also move to another pod. One thread;
//! everything that can happen makes a descriptor readable.

mod departure;
mod out_of_memory;
mod request;
mod succession;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mounter::EXIT;
use mounter::deadlines::{MOUNT_PROCESS_REPLY, REPLY_SENT};
use mounter::handover::server::reply;
use mounter::handover::{Code, MountReply, Purpose, Refused};
use signal_hook::consts::SIGTERM;
use thiserror::Error;

use crate::deaths::Deaths;
use crate::flags::{Flags, Program};
use crate::mount_process::MountProcess;
use crate::{error_file, events, listen, log};
use out_of_memory::OutOfMemory;

/// Between reads of the folder where inotify is not available. The node waits for seconds, so that a pod may end this much later.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

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
    deaths: Deaths,
    memory: OutOfMemory,
    /// What the pod that the mount is leaving has kept, until it is served here.
    adopted: Option<OwnedFd>,
}

enum State {
    /// For a hand-over.
    Waiting,
    /// The mount process has not reported yet whether it is serving.
    Starting {
        process: MountProcess,
        /// The node service that waits for the reply; none if this process follows one that died.
        node: Option<UnixStream>,
        until: Instant,
    },
    Serving(MountProcess),
    /// The mount process has died, and its successor is to be started.
    Dead {
        process: MountProcess,
        start_at: Instant,
    },
    /// The mount process has not said yet whether another one can continue everything.
    Leaving {
        process: MountProcess,
        /// Waits for the reply.
        node: UnixStream,
        until: Instant,
    },
    /// The mount process was ended, and one in another pod continues, or none could yet. The descriptor is kept until the node
    /// says that this pod may end: until then, the mount may have to come back.
    Left(MountProcess),
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
        Ok(Self {
            comm,
            program: flags.program.clone(),
            listener,
            changes,
            stop,
            stopping: false,
            deaths: Deaths::default(),
            memory: OutOfMemory::default(),
            adopted: None,
        })
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
            State::Starting { process, node, until } => self.check_start(process, node, until)?,
            State::Dead { process, start_at } if Instant::now() < start_at => {
                State::Dead { process, start_at }
            }
            State::Dead { process, .. } => match process.restart(&self.comm) {
                Ok(process) => {
                    State::Starting { process, node: None, until: Instant::now() + MOUNT_PROCESS_REPLY }
                }
                Err(error) => return Err(Outcome::Failed(error.to_string())),
            },
            State::Serving(mut process) => {
                if stop {
                    // Workloads still use the mount. It ends when the node unmounts, or with the pod's grace period.
                    log::info("SIGTERM ignored while serving", &process.log_fields());
                }
                let exited = process.exit_status();
                let reply = process.read_output();
                match (exited, reply) {
                    (Some(status), _) => self.process_exited(process, status)?,
                    (None, Some(MountReply::Left)) => self.left_too_late(process)?,
                    (None, _) => State::Serving(process),
                }
            }
            State::Leaving { process, node, until } => self.check_departure(process, node, until)?,
            State::Left(process) => State::Left(process),
        };
        match state {
            State::Waiting | State::Left(_) if self.exit_requested() => Err(Outcome::Ended),
            State::Waiting if self.stopping => {
                Err(Outcome::Failed("stopped by SIGTERM before a mount was handed over".to_owned()))
            }
            state => self.accept(state),
        }
    }

    /// Passes the reply of the mount process on to the node, once there is one.
    fn check_start(
        &mut self,
        mut process: MountProcess,
        node: Option<UnixStream>,
        until: Instant,
    ) -> Result<State, Outcome> {
        let exited = process.exit_status();
        let reply = match (process.read_output(), exited) {
            (Some(reply), _) => reply,
            (None, Some(status)) if node.is_none() => {
                let end = self.end(status);
                return self.died(process, false, |output| {
                    format!("the next mount process cannot continue: it ended with {end}: {output}")
                });
            }
            (None, Some(status)) => {
                let (end, output) = (self.end(status), process.last_output());
                let message = format!("the mount process ended with {end} before it was serving: {output}");
                MountReply::Refused(Refused::new(Code::Failed, message))
            }
            (None, None) if Instant::now() >= until => {
                let limit = MOUNT_PROCESS_REPLY.as_secs();
                let message =
                    format!("the mount process did not report within {limit} s whether it is serving");
                MountReply::Refused(Refused::new(Code::TimedOut, message))
            }
            (None, None) => return Ok(State::Starting { process, node, until }),
        };
        match (reply, node) {
            (MountReply::Serving(serving), node) => {
                self.end_predecessor();
                log::info(&format!("serving, version {}", serving.version), &process.log_fields());
                if let Some(node) = node {
                    send(&node, &MountReply::Serving(serving));
                }
                Ok(State::Serving(process))
            }
            // It was not asked to leave.
            (MountReply::Left, node) => Ok(State::Starting { process, node, until }),
            (MountReply::Refused(refused), Some(node)) => {
                self.fail(&node, refused);
                process.stop();
                let continues = process.request.purpose == Purpose::Continue;
                Ok(self.still_left(continues.then_some(process)))
            }
            (MountReply::Refused(refused), None) => {
                process.stop();
                self.died(process, false, |_| format!("the next mount process cannot continue: {refused}"))
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
            State::Waiting | State::Left(_) if self.changes.is_none() => {
                until = Some(Instant::now() + POLL_INTERVAL);
            }
            State::Waiting | State::Left(_) => {}
            State::Starting { process, until: deadline, .. }
            | State::Leaving { process, until: deadline, .. } => {
                all.extend(process.descriptors());
                until = Some(*deadline);
            }
            State::Serving(process) => all.extend(process.descriptors()),
            State::Dead { start_at, .. } => until = Some(*start_at),
        }
        events::wait(all, until);
    }
}

fn refuse(peer: &UnixStream, refused: Refused) {
    log::warn(&refused.message, &[("code", &refused.code.to_string())]);
    send(peer, &MountReply::Refused(refused));
}

fn send(peer: &UnixStream, answer: &MountReply) {
    if let Err(error) = reply(peer, answer, None, REPLY_SENT) {
        // The node finds out by itself whether the source is served.
        log::warn(&format!("cannot send the mount reply: {error}"), &[]);
    }
}
