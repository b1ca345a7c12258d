//! Starting parts and waiting for them, with the log of the one that failed as the error.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, test_kill_process, waitpid};

use super::{Cluster, Part};
use crate::command::tail_of_log;
use crate::programs::Programs;

/// Generous: a loaded machine with a cold disk needs tens of seconds, a part that is broken says so much earlier.
const READY_WITHIN: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(crate) struct Starter<'a> {
    cluster: &'a Cluster,
    programs: &'a Programs,
    running: Vec<(Part, Child)>,
}

impl<'a> Starter<'a> {
    pub(crate) fn new(cluster: &'a Cluster, programs: &'a Programs) -> Self {
        Self { cluster, programs, running: Vec::new() }
    }

    pub(crate) fn start(&mut self, parts: &[Part]) -> Result<()> {
        for part in parts {
            self.running.push((*part, spawn(self.cluster, self.programs, *part)?));
        }
        Ok(())
    }

    pub(crate) fn processes(&self) -> Vec<u32> {
        self.running.iter().map(|(_, child)| child.id()).collect()
    }

    /// Looks until `ready` says so. A part that ends meanwhile, or the deadline, is an error that shows `blamed`'s log.
    pub(crate) fn until(&mut self, blamed: Part, mut ready: impl FnMut() -> bool) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        while !ready() {
            for (part, child) in &mut self.running {
                if let Some(status) = child.try_wait()? {
                    bail!(
                        "{} ended with {status}:\n{}",
                        part.name(),
                        tail_of_log(&self.cluster.log(part.name()))
                    );
                }
            }
            if Instant::now() > deadline {
                let log = tail_of_log(&self.cluster.log(blamed.name()));
                bail!("{} was not ready after {} s:\n{log}", blamed.name(), READY_WITHIN.as_secs());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

impl Cluster {
    /// Kills a part of the node that we are in, and starts it again.
    pub fn restart(&self, part: Part) -> Result<()> {
        let programs = self.programs()?;
        let program = part.command(self, &programs).get_program().to_owned();
        let name = Path::new(&program).file_name().context("a program has a name")?.as_bytes().to_owned();
        for process in super::processes() {
            let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
            if first.rsplit(|byte| *byte == b'/').next() == Some(&name)
                && let Some(process) = i32::try_from(process).ok().and_then(Pid::from_raw)
            {
                kill_process(process, Signal::KILL)?;
                // Gone, and its sockets with it, before the next one wants them.
                while test_kill_process(process).is_ok() {
                    // One that we have started ourselves is gone only when we have taken note of it.
                    let _ = waitpid(Some(process), WaitOptions::NOHANG);
                    std::thread::sleep(LOOK_EVERY);
                }
            }
        }
        spawn(self, &programs, part).map(drop)
    }
}

/// Starts one part with its log in its place; a part that is started again goes on in the same log.
pub(crate) fn spawn(cluster: &Cluster, programs: &Programs, part: Part) -> Result<Child> {
    fs::create_dir_all(cluster.logs())?;
    let log = File::options().create(true).append(true).open(cluster.log(part.name()))?;
    part.command(cluster, programs)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // Ctrl-C in the terminal of whoever started the part is not meant for it.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", part.name()))
}
