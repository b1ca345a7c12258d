//! A mount process has ended: with the mount, or before it, so that another one continues.

use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Instant;
use std::{fs, io};

use mounter::handover::{Code, MountRequest, Purpose, Refused, is_disconnected};
use mounter::{JOURNAL, SURVIVAL};
use rustix::process::Signal;

use super::{Outcome, State, Supervisor};
use crate::mount_process::MountProcess;
use crate::{error_file, log};

/// In the folder for the successor.
pub(super) const REQUEST: &str = "request";

impl Supervisor {
    pub(super) fn process_exited(
        &mut self,
        process: MountProcess,
        status: ExitStatus,
    ) -> Result<State, Outcome> {
        match (status.success(), self.exit_requested()) {
            (true, true) => Err(Outcome::Ended),
            (true, false) => {
                Err(Outcome::Failed("the bucket was unmounted, but not by the node service".to_owned()))
            }
            (false, _) => {
                let end = self.end(status);
                self.died(process, true, |output| format!("the mount process ended with {end}: {output}"))
            }
        }
    }

    /// How a process has ended, and why if the kernel says so.
    pub(super) fn end(&mut self, status: ExitStatus) -> String {
        let killed = status.signal() == Some(Signal::KILL.as_raw());
        // Also if it has not: the next one must not count for another end.
        if self.memory.has_killed() && killed {
            return format!("{status}, because the container is out of memory");
        }
        status.to_string()
    }

    /// Programs do not notice if another mount process can continue. Without one, the mount ends with the descriptor. The
    /// reason quotes the end of the process's output, and in the report for the node only its last line: the node reads the
    /// beginning of that, and an Event has no room for more. The report comes before the end of the mount, which the node
    /// notices.
    pub(super) fn died(
        &mut self,
        process: MountProcess,
        has_served: bool,
        reason: impl Fn(&str) -> String,
    ) -> Result<State, Outcome> {
        let is_wanted = !self.exit_requested() && !is_disconnected(process.descriptor());
        let mut start_at = None;
        if is_wanted {
            start_at = self.deaths.next_start(has_served, Instant::now()).filter(|_| self.has_journal());
            error_file::write_deaths(&self.comm, self.deaths.count, &reason(process.last_line()));
        }
        let refused = Refused::new(Code::Failed, reason(&process.last_output()));
        match start_at {
            Some(start_at) => {
                log::warn(&format!("{}; starting another", refused.message), &process.log_fields());
                Ok(State::Dead { process, start_at })
            }
            None => {
                error_file::write(&self.comm, &refused);
                Err(Outcome::Failed(refused.message))
            }
        }
    }

    pub(super) fn has_journal(&self) -> bool {
        self.comm.join(SURVIVAL).join(JOURNAL).exists()
    }

    /// For a mounter that continues after this one. Nothing else stays of another mount in this pod.
    pub(super) fn keep_request(&self, request: &MountRequest) -> io::Result<()> {
        let folder = self.comm.join(SURVIVAL);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::DirBuilder::new().mode(0o700).create(&folder)?;
        fs::write(folder.join(REQUEST), serde_json::to_vec(request)?)
    }

    /// Of the mount that another mounter in this pod has served.
    pub(super) fn kept_request(&self) -> io::Result<MountRequest> {
        let folder = self.comm.join(SURVIVAL);
        fs::metadata(folder.join(JOURNAL))?;
        let kept: MountRequest = serde_json::from_slice(&fs::read(folder.join(REQUEST))?)?;
        Ok(MountRequest { purpose: Purpose::Continue, ..kept })
    }
}
