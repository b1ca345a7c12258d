//! Starts components and waits for them; an error shows the log of the one that failed.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, test_kill_process, waitpid};

use super::life::{GONE_WITHIN, members_of_pid_namespace};
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
        self.start_on(Node::FIRST, part)
    }

    /// The same on another node.
    pub fn start_on(&self, node: Node, part: Part) -> Result<()> {
        let own = part.command(self, node, &self.programs()?)?;
        let mut command = if node == Node::FIRST {
            self.command_on(node, own.get_program())?
        } else {
            // A child of the node's PID 1 and not of `nsenter`, which stops itself when its child is stopped, and then does
            // not wait for it: after a power cut, the node's namespace would stay.
            let mut shell = self.command_on(node, "sh")?;
            shell.args(["-c", "\"$@\" &", "sh"]).arg(own.get_program());
            shell
        };
        command.args(own.get_args());
        for (name, value) in own.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        start(self, node, part, &mut command).map(drop)
    }

    /// Kills a component of the first node.
    pub fn stop(&self, part: Part) -> Result<()> {
        self.stop_on(Node::FIRST, part)
    }

    /// The same on another node.
    pub fn stop_on(&self, node: Node, part: Part) -> Result<()> {
        for process in self.processes_of(node, part)? {
            kill_process(process, Signal::KILL)?;
            let deadline = Instant::now() + GONE_WITHIN;
            // Its sockets must be closed before the next process opens them.
            while test_kill_process(process).is_ok() {
                // One that waits for a dead FUSE server does not end.
                if Instant::now() > deadline {
                    bail!("{} still runs {} s after SIGKILL", part.name(), GONE_WITHIN.as_secs());
                }
                // A child of this process is gone only after it was waited for.
                let _ = waitpid(Some(process), WaitOptions::NOHANG);
                std::thread::sleep(LOOK_EVERY);
            }
        }
        Ok(())
    }

    /// The processes of the component's program on this node. The S3 server has two, one of them for TLS.
    pub fn processes_of(&self, node: Node, part: Part) -> Result<Vec<Pid>> {
        let programs = self.programs()?;
        let program = part.command(self, node, &programs)?.get_program().to_owned();
        let name = Path::new(&program).file_name().context("a program has a name")?.as_bytes().to_owned();
        let is_it = |process: &u32| {
            let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
            first.rsplit(|byte| *byte == b'/').next() == Some(&name)
        };
        // Only in the node's PID namespace, because other nodes run components of the same name.
        let init = self.init_of(node).with_context(|| format!("{} is off", node.name()))?;
        let processes = members_of_pid_namespace(init).into_iter().filter(is_it);
        Ok(processes.filter_map(|process| Pid::from_raw(i32::try_from(process).ok()?)).collect())
    }
}

/// Starts one component of the node whose PID 1 this process is.
pub(crate) fn spawn(cluster: &Cluster, node: Node, programs: &Programs, part: Part) -> Result<Child> {
    start(cluster, node, part, &mut part.command(cluster, node, programs)?)
}

/// A restarted component appends to the same log.
fn start(cluster: &Cluster, node: Node, part: Part, command: &mut Command) -> Result<Child> {
    fs::create_dir_all(cluster.logs(node))?;
    let log = File::options().create(true).append(true).open(cluster.log_on(node, part.name()))?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // Ctrl-C in the terminal must not reach the component.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", part.name()))
}
