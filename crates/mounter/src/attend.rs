//! The life of a mounter: it waits for a hand-over, starts the mount process, and stays with it to its end. One thread;
//! everything that can happen makes some descriptor readable.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mounter::reception::{answer, receive};
use mounter::reply::{Code, Refused, Reply};
use mounter::{EXIT, START_WITHIN};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::net::{RecvFlags, recv};
use signal_hook::consts::SIGTERM;
use thiserror::Error;

use crate::flags::{Flags, Program};
use crate::mount_process::MountProcess;
use crate::{farewell, listen, log};

/// A node that has connected sends at once; whoever does not is refused, and the next one gets a chance.
const RECEIVE_WITHIN: Duration = Duration::from_secs(2);
/// A reply is a few hundred bytes, which fit the socket's buffer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Where nothing tells that something is new.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Error)]
pub(crate) enum StartError {
    #[error("cannot listen in {folder}: {source}")]
    Listen { folder: PathBuf, source: io::Error },
    #[error("cannot handle SIGTERM: {0}")]
    Signal(io::Error),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// As it was asked to.
    Ended,
    Failed(String),
}

pub(crate) struct Mounter {
    comm: PathBuf,
    program: Program,
    listener: UnixListener,
    /// Something new in the folder.
    changes: Option<OwnedFd>,
    /// SIGTERM came. Handled, because the first process of a container gets no default action.
    stop: UnixStream,
    /// It has come; remembered, as it may come while a mount is being started that then fails.
    stopping: bool,
}

enum Stage {
    Waiting,
    Starting { process: MountProcess, peer: UnixStream, until: Instant },
    Serving(MountProcess),
}

impl Mounter {
    pub(crate) fn start(flags: &Flags) -> Result<Self, StartError> {
        let folder = || flags.comm.clone();
        // There are only so many of them for all programs of a user.
        let changes = watch(&flags.comm)
            .inspect_err(|error| log::warn(&format!("the folder is looked at every second: {error}"), &[]))
            .ok();
        let (stop, signalled) = UnixStream::pair().map_err(StartError::Signal)?;
        stop.set_nonblocking(true).map_err(StartError::Signal)?;
        signal_hook::low_level::pipe::register(SIGTERM, signalled).map_err(StartError::Signal)?;
        let listener =
            listen::listen(&flags.comm).map_err(|source| StartError::Listen { folder: folder(), source })?;
        Ok(Self { comm: folder(), program: flags.program.clone(), listener, changes, stop, stopping: false })
    }

    pub(crate) fn attend(mut self) -> Outcome {
        log::info("waiting for a mount", &[]);
        let mut stage = Stage::Waiting;
        loop {
            match self.step(stage) {
                Ok(next) => stage = next,
                Err(outcome) => return outcome,
            }
            self.sleep(&stage);
        }
    }

    /// Does all there is to do without waiting for anything but a peer's message.
    fn step(&mut self, stage: Stage) -> Result<Stage, Outcome> {
        if let Some(changes) = &self.changes {
            drain(changes);
        }
        let stop = drain(&self.stop);
        self.stopping |= stop;
        let stage = match stage {
            Stage::Waiting => Stage::Waiting,
            Stage::Starting { process, peer, until } => self.starting(process, peer, until),
            Stage::Serving(mut process) => {
                if stop {
                    // Its workloads still need it; it ends when the node unmounts, or with the pod's grace period.
                    log::info("SIGTERM ignored while serving", &[("volume_id", &process.volume_id)]);
                }
                let over = process.ended();
                process.listen();
                match over {
                    Some(status) => return Err(self.ended(&process, status)),
                    None => Stage::Serving(process),
                }
            }
        };
        match stage {
            Stage::Waiting if self.exit_wanted() => Err(Outcome::Ended),
            Stage::Waiting if self.stopping => {
                Err(Outcome::Failed("told to stop before a mount was handed over".to_owned()))
            }
            stage => Ok(self.welcome(stage)),
        }
    }

    /// Waits for the verdict of a process that was started, and passes it on.
    fn starting(&self, mut process: MountProcess, peer: UnixStream, until: Instant) -> Stage {
        let over = process.ended();
        let verdict = match (process.listen(), over) {
            (Some(verdict), _) => verdict,
            (None, Some(status)) => {
                let words = process.last_words();
                let message = format!("the mount process ended with {status} before it served: {words}");
                Reply::Refused(Refused::new(Code::Failed, message))
            }
            (None, None) if Instant::now() >= until => {
                let limit = START_WITHIN.as_secs();
                let message = format!("the mount process did not say within {limit} s whether it serves");
                Reply::Refused(Refused::new(Code::TimedOut, message))
            }
            (None, None) => return Stage::Starting { process, peer, until },
        };
        if let Reply::Refused(refused) = &verdict {
            // Before the reply: whoever has that may look for this.
            farewell::write_error(&self.comm, refused);
        }
        tell(&peer, &verdict);
        match verdict {
            Reply::Serving(facts) => {
                let fields = [("volume_id", process.volume_id.as_str()), ("bucket", &process.bucket)];
                log::info(&format!("serving, version {}", facts.version), &fields);
                Stage::Serving(process)
            }
            Reply::Refused(_) => {
                process.stop();
                Stage::Waiting
            }
        }
    }

    /// Hears everybody who has connected.
    fn welcome(&self, mut stage: Stage) -> Stage {
        while let Ok((peer, _)) = self.listener.accept() {
            stage = match (self.order(peer, &stage), stage) {
                (Some(started), _) => started,
                (None, stage) => stage,
            };
        }
        stage
    }

    /// One peer's order, if it is one that can be followed. Everything else is answered here.
    fn order(&self, peer: UnixStream, stage: &Stage) -> Option<Stage> {
        let order = match (allowed(&peer), stage) {
            (Err(refused), _) => Err(refused),
            (Ok(()), Stage::Waiting) => receive(&peer, Instant::now() + RECEIVE_WITHIN),
            (Ok(()), _) if hung_up(&peer) => Ok(None),
            (Ok(()), Stage::Starting { process, .. } | Stage::Serving(process)) => {
                let message = format!("this Mountpoint Pod serves bucket `{}` already", process.bucket);
                Err(Refused::new(Code::Busy, message))
            }
        };
        let started = order.transpose()?.and_then(|(order, descriptor)| {
            farewell::remove_error(&self.comm);
            log::info("mount handed over", &[("volume_id", &order.volume_id), ("bucket", &order.bucket)]);
            MountProcess::start(&self.program, order, descriptor, &self.comm)
                .map_err(|error| Refused::new(Code::Failed, error.to_string()))
        });
        match started {
            Ok(process) => Some(Stage::Starting { process, peer, until: Instant::now() + START_WITHIN }),
            Err(refused) => {
                if refused.code == Code::Failed {
                    farewell::write_error(&self.comm, &refused);
                }
                tell(&peer, &Reply::Refused(refused));
                None
            }
        }
    }

    fn ended(&self, process: &MountProcess, status: std::process::ExitStatus) -> Outcome {
        match (status.success(), self.exit_wanted()) {
            (true, true) => Outcome::Ended,
            (true, false) => Outcome::Failed("the bucket was unmounted without being asked for".to_owned()),
            (false, _) => {
                let words = process.last_words();
                let reason = format!("the mount process ended with {status}: {words}");
                let refused = Refused::new(Code::Failed, reason);
                farewell::write_error(&self.comm, &refused);
                Outcome::Failed(refused.message)
            }
        }
    }

    fn exit_wanted(&self) -> bool {
        self.comm.join(EXIT).exists()
    }

    fn sleep(&self, stage: &Stage) {
        let mut all = vec![self.listener.as_fd(), self.stop.as_fd()];
        all.extend(self.changes.iter().map(OwnedFd::as_fd));
        let mut until = None;
        match stage {
            Stage::Waiting if self.changes.is_none() => until = Some(Instant::now() + LOOK_AGAIN),
            Stage::Waiting => {}
            Stage::Starting { process, until: deadline, .. } => {
                all.extend(process.descriptors());
                until = Some(*deadline);
            }
            Stage::Serving(process) => all.extend(process.descriptors()),
        }
        let mut all: Vec<_> =
            all.into_iter().map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)).collect();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        // Interrupted or not: whoever wakes looks at everything.
        let _ = poll(&mut all, left.as_ref());
    }
}

fn tell(peer: &UnixStream, reply: &Reply) {
    if let Reply::Refused(refused) = reply {
        log::warn(&refused.message, &[("code", &refused.code.to_string())]);
    }
    if let Err(error) = answer(peer, reply, ANSWER_WITHIN) {
        // The node will look for itself whether the source is served.
        log::warn(&format!("the reply did not reach the node: {error}"), &[]);
    }
}

/// Whether the peer has gone without a word.
fn hung_up(peer: &UnixStream) -> bool {
    recv(peer, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok_and(|(read, _)| read == 0)
}

/// Only root, which the node is, may have things mounted. Its process cannot be told: seen from a pod, it has no number.
fn allowed(peer: &UnixStream) -> Result<(), Refused> {
    let who = getsockopt(peer, PeerCredentials)
        .map_err(|error| Refused::new(Code::WrongPeer, format!("the peer is unknown: {error}")))?;
    if who.uid() == 0 {
        Ok(())
    } else {
        let message = format!("user {} may not hand over mounts; only root may", who.uid());
        Err(Refused::new(Code::WrongPeer, message))
    }
}

fn watch(folder: &Path) -> io::Result<OwnedFd> {
    let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    inotify::add_watch(&changes, folder, inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO)?;
    Ok(changes)
}

/// Reads what is there; says whether there was any.
fn drain(descriptor: &impl std::os::fd::AsFd) -> bool {
    let mut buffer = [0; 4096];
    let mut any = false;
    while rustix::io::read(descriptor, &mut buffer).is_ok_and(|read| read > 0) {
        any = true;
    }
    any
}
