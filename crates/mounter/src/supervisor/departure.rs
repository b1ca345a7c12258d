//! The mount moves to another pod: the mount process ends here, and another one continues there.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use mounter::deadlines::MOUNT_PROCESS_LEAVES;
use mounter::handover::{Code, MountReply, MountRequest, Refused};
use mounter::{JOURNAL, SURVIVAL};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, statat, unlinkat};

use super::succession::REQUEST;
use super::{Outcome, State, Supervisor, refuse, send};
use crate::log;
use crate::mount_process::MountProcess;

/// Of files that a mounter has kept. Nothing there is to be followed or waited for.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Temporary keys are among them.
const KEPT_MODE: u32 = 0o600;

impl Supervisor {
    pub(super) fn leave(&self, process: MountProcess, node: UnixStream) -> State {
        if !self.has_journal() {
            refuse(&node, Refused::new(Code::Failed, "this mount cannot be continued by another process"));
            return State::Serving(process);
        }
        process.ask_to_leave();
        State::Leaving { process, node, until: Instant::now() + MOUNT_PROCESS_LEAVES }
    }

    /// Passes the reply of the mount process on to the node, once there is one.
    pub(super) fn check_departure(
        &mut self,
        mut process: MountProcess,
        node: UnixStream,
        until: Instant,
    ) -> Result<State, Outcome> {
        let exited = process.exit_status();
        match (process.read_output(), exited) {
            (_, Some(status)) => {
                refuse(&node, Refused::new(Code::Busy, "the mount process has just ended; retry"));
                self.process_exited(process, status)
            }
            (Some(MountReply::Left), None) => {
                process.stop_between_requests();
                log::info("mount handed to another Mountpoint Pod", &process.log_fields());
                send(&node, &MountReply::Left);
                Ok(State::Left(process))
            }
            (Some(MountReply::Refused(refused)), None) => {
                log::info(&format!("the mount stays: {}", refused.message), &process.log_fields());
                send(&node, &MountReply::Refused(refused));
                Ok(State::Serving(process))
            }
            (None | Some(MountReply::Serving(_)), None) if Instant::now() >= until => {
                let limit = MOUNT_PROCESS_LEAVES.as_secs();
                let message =
                    format!("the mount process did not report within {limit} s whether it can leave");
                refuse(&node, Refused::new(Code::TimedOut, message));
                Ok(State::Serving(process))
            }
            (None | Some(MountReply::Serving(_)), None) => Ok(State::Leaving { process, node, until }),
        }
    }

    /// It does not write any more, and the node does not know. Nothing is lost with it, so another one continues here.
    pub(super) fn left_too_late(&mut self, mut process: MountProcess) -> Result<State, Outcome> {
        process.stop_between_requests();
        self.died(process, true, |_| "the mount process reported too late that it can leave".to_owned())
    }

    /// Takes what another pod has kept, and returns the request to serve. The journal comes last: with it, a mount process
    /// continues.
    pub(super) fn adopt(&mut self, folder: OwnedFd, request: MountRequest) -> io::Result<MountRequest> {
        // Before this pod forgets what it has kept: of a mount that it served already, that is newer.
        statat(&folder, JOURNAL, AtFlags::SYMLINK_NOFOLLOW)?;
        let request = with_arguments_of(&folder, request)?;
        self.keep_request(&request)?;
        let mut names: Vec<_> = Dir::read_from(&folder)?
            .filter_map(|entry| Some(entry.ok()?.file_name().to_owned()))
            .filter(|name| !matches!(name.to_bytes(), b"." | b"..") && name.to_bytes() != REQUEST.as_bytes())
            .collect();
        names.sort_by_key(|name| name.to_bytes() == JOURNAL.as_bytes());
        for name in names {
            let from = openat(folder.as_fd(), &name, READ, Mode::empty())?;
            if FileType::from_raw_mode(fstat(&from)?.st_mode) != FileType::RegularFile {
                continue;
            }
            let to = self.comm.join(SURVIVAL).join(std::ffi::OsStr::from_bytes(name.to_bytes()));
            let mut copy = File::options();
            copy.create(true).truncate(true).write(true).mode(KEPT_MODE);
            io::copy(&mut File::from(from), &mut copy.open(to)?)?;
        }
        fs::metadata(self.comm.join(SURVIVAL).join(JOURNAL))?;
        self.adopted = Some(folder);
        Ok(request)
    }

    /// The mount has moved here. The pod that it left must not continue it with a journal that gets older from now on.
    pub(super) fn end_predecessor(&mut self) {
        if let Some(folder) = self.adopted.take()
            && let Err(error) = unlinkat(&folder, JOURNAL, AtFlags::empty())
        {
            log::warn(&format!("cannot remove the journal of the pod that the mount has left: {error}"), &[]);
        }
    }
}

/// The kernel knows the files of a mount by what they were when it began. If the options of the volume were edited since, for
/// example its prefix, the same names would mean other objects.
fn with_arguments_of(folder: &OwnedFd, request: MountRequest) -> io::Result<MountRequest> {
    let mut kept = Vec::new();
    File::from(openat(folder.as_fd(), REQUEST, READ, Mode::empty())?).read_to_end(&mut kept)?;
    let MountRequest { arguments, .. } = serde_json::from_slice(&kept)?;
    Ok(MountRequest { arguments, ..request })
}
