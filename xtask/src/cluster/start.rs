//! Starts components and waits for them; an error shows the log of the one that failed.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, test_kill_process, waitpid};

use super::life::members_of_pid_namespace;
use super::{Cluster, Node, Part};
use crate::command::tail_of_log;
use crate::programs::Programs;

/// A busy machine with a cold disk needs tens of seconds; a broken component exits much earlier.
const READY_WITHIN: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The kubelet exits if containerd, which first recovers the containers of a node that returns, does not serve it yet. As
/// systemd would, it is started again, after a pause.
const KUBELET_STARTS: usize = 10;
const KUBELET_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Starter<'a> {
    cluster: &'a Cluster,
    node: Node,
    programs: &'a Programs,
    running: Vec<(Part, Child)>,
}

impl<'a> Starter<'a> {
    pub(crate) fn new(cluster: &'a Cluster, node: Node, programs: &'a Programs) -> Self {
        Self { cluster, node, programs, running: Vec::new() }
    }

    pub(crate) fn start(&mut self, parts: &[Part]) -> Result<()> {
        for part in parts {
            self.running.push((*part, spawn(self.cluster, self.node, self.programs, *part)?));
        }
        Ok(())
    }

    pub(crate) fn processes(&self) -> Vec<u32> {
        self.running.iter().map(|(_, child)| child.id()).collect()
    }

    /// Waits until `ready`. If a component exits or the deadline passes, the error shows the log of `blamed`.
    pub(crate) fn until(&mut self, blamed: Part, mut ready: impl FnMut() -> bool) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        let mut kubelet_starts = 1;
        while !ready() {
            for (part, child) in &mut self.running {
                let Some(status) = child.try_wait()? else { continue };
                if *part == Part::Kubelet && kubelet_starts < KUBELET_STARTS {
                    std::thread::sleep(KUBELET_PAUSE);
                    *child = spawn(self.cluster, self.node, self.programs, *part)?;
                    kubelet_starts += 1;
                } else {
                    let log = tail_of_log(&self.cluster.log_on(self.node, part.name()));
                    bail!("{} ended with {status}:\n{log}", part.name());
                }
            }
            if Instant::now() > deadline {
                let log = tail_of_log(&self.cluster.log_on(self.node, blamed.name()));
                bail!("{} was not ready after {} s:\n{log}", blamed.name(), READY_WITHIN.as_secs());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

impl Cluster {
    /// Restarts a component of the first node, in which this process runs.
    pub fn restart(&self, part: Part) -> Result<()> {
        self.stop(part)?;
        self.start(part)
    }

    /// Starts a component of the first node that was stopped.
    pub fn start(&self, part: Part) -> Result<()> {
        spawn(self, Node::FIRST, &self.programs()?, part).map(drop)
    }

    /// Kills a component of the first node.
    pub fn stop(&self, part: Part) -> Result<()> {
        let programs = self.programs()?;
        let program = part.command(self, Node::FIRST, &programs)?.get_program().to_owned();
        let name = Path::new(&program).file_name().context("a program has a name")?.as_bytes().to_owned();
        // Only in this PID namespace, because other nodes run components of the same name.
        for process in members_of_pid_namespace(1) {
            let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
            if first.rsplit(|byte| *byte == b'/').next() == Some(&name)
                && let Some(process) = i32::try_from(process).ok().and_then(Pid::from_raw)
            {
                kill_process(process, Signal::KILL)?;
                // Its sockets must be closed before the next process opens them.
                while test_kill_process(process).is_ok() {
                    // A child of this process is gone only after it was waited for.
                    let _ = waitpid(Some(process), WaitOptions::NOHANG);
                    std::thread::sleep(LOOK_EVERY);
                }
            }
        }
        Ok(())
    }
}

/// Starts one component; a restarted one appends to the same log.
pub(crate) fn spawn(cluster: &Cluster, node: Node, programs: &Programs, part: Part) -> Result<Child> {
    fs::create_dir_all(cluster.logs(node))?;
    let log = File::options().create(true).append(true).open(cluster.log_on(node, part.name()))?;
    part.command(cluster, node, programs)?
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // Ctrl-C in the terminal must not reach the component.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", part.name()))
}
