//! Powers a node other than the first off and on. A power cut kills all its processes at once, and its disk stays.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::init::USABLE;
use super::life::{abort_fuse, await_end, kill, members_of_pid_namespace};
use super::{Cluster, INIT, Node, cgroup, for_the_node, network};
use crate::command::{run, tail_of_log};
use crate::process::processes;

/// How a node is started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Boot {
    /// With an empty disk, like another machine of the same name.
    pub as_new: bool,
    /// Taints (`KEY:EFFECT`) from the moment the node joins. They have no effect on a node that is already registered.
    pub taints: Vec<String>,
}

impl Cluster {
    /// A power cut: kills all processes of the node without closing their connections. Call it in the first node.
    pub fn stop_node(&self, node: Node) -> Result<()> {
        self.switchable(node)?;
        if let Some(init) = self.init_of(node) {
            // First, because the kernel closes the connections of processes that it kills.
            network::cable(node, false)?;
            let members = members_of_pid_namespace(init);
            abort_fuse(init)?;
            kill(init);
            await_end(&members)?;
        }
        network::unplug(node)?;
        // Cgroups do not survive a power cut.
        cgroup::remove(&self.cgroup(node))
    }

    /// Returns when the API server reports that the node is ready. Call it in the first node.
    pub fn start_node(&self, node: Node, boot: &Boot) -> Result<()> {
        self.switchable(node)?;
        ensure!(self.init_of(node).is_none(), "{} is already running", node.name());
        if boot.as_new {
            match fs::remove_dir_all(self.home(node)) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).context("cannot remove the node's disk");
                }
                _ => {}
            }
        }
        self.prepare_node(node, &boot.taints)?;
        network::plug_in(node)?;
        self.launch(node, |_| {})
    }

    /// Stops all processes of the node, like a machine that hangs, until [`Self::thaw`]. Call it in the first node.
    pub fn freeze(&self, node: Node) -> Result<()> {
        self.switchable(node)?;
        self.signal_all(node, Signal::STOP)
    }

    pub fn thaw(&self, node: Node) -> Result<()> {
        self.signal_all(node, Signal::CONT)
    }

    fn signal_all(&self, node: Node, signal: Signal) -> Result<()> {
        let init = self.init_of(node).with_context(|| format!("{} is off", node.name()))?;
        let send = |pid: u32| {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                // Already gone.
                let _ = kill_process(pid, signal);
            }
        };
        each_until_none_is_new(|| processes_of_node(init), send);
        Ok(())
    }

    /// Evicts all workloads and cordons the node. Mountpoint Pods belong to no controller, hence `--force`.
    pub fn drain_node(&self, node: Node) -> Result<()> {
        let drain = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=300s"];
        run(self.kubectl()?.args(["drain", &node.name()]).args(drain))
    }

    fn switchable(&self, node: Node) -> Result<()> {
        ensure!(node != Node::FIRST, "{} runs the control plane: stop it with `cluster down`", node.name());
        ensure!(self.init_process() == Some(1), "not running inside cluster `{}`", self.name);
        Ok(())
    }

    /// Starts PID 1 of a node in new namespaces and passes its output to `say` until the node is ready.
    pub(crate) fn launch(&self, node: Node, say: impl Fn(&str)) -> Result<()> {
        let log = fs::File::options().create(true).append(true).open(self.log_on(node, "init"))?;
        let mut command = unshare(node);
        let mut node_process = command
            .args(["--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"])
            // No mount may propagate to the machine, even if its root mount is shared.
            .args(["--propagation", "private", "--"])
            .arg(self.init_program()?)
            .arg(INIT)
            .arg(&self.dir)
            .args((node != Node::FIRST).then(|| node.name()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            // Ctrl-C ends `up`; the node stays for the next `up` or `down`.
            .process_group(0)
            .spawn()
            .context("cannot start unshare")?;
        let output = node_process.stdout.take().context("unshare has no output")?;
        let mut last = String::new();
        for line in BufReader::new(output).lines() {
            match line? {
                line if line == USABLE => return Ok(()),
                line => {
                    say(&line);
                    last = line;
                }
            }
        }
        node_process.wait()?;
        let log = tail_of_log(&self.log_on(node, "init"));
        match node {
            Node::FIRST => bail!("cluster `{}` did not start\n{log}", self.name),
            _ => bail!("{} did not start: {}\n{log}", node.name(), last.trim()),
        }
    }

    /// This program or, in a test that runs inside the first node, the program of that node's PID 1.
    fn init_program(&self) -> Result<PathBuf> {
        match self.init_process() {
            // From its arguments, because /proc/PID/exe is no valid path after the program was rebuilt.
            Some(init) => {
                let line = fs::read(format!("/proc/{init}/cmdline"))?;
                let program = line.split(|byte| *byte == 0).next().unwrap_or_default();
                Ok(OsStr::from_bytes(program).into())
            }
            None => Ok(std::env::current_exe()?),
        }
    }
}

/// One process may have forked before it was stopped, and its child would run on.
fn each_until_none_is_new(mut find: impl FnMut() -> Vec<u32>, mut signal: impl FnMut(u32)) {
    let mut known = BTreeSet::new();
    loop {
        let new: Vec<u32> = find().into_iter().filter(|pid| known.insert(*pid)).collect();
        if new.is_empty() {
            return;
        }
        new.into_iter().for_each(&mut signal);
    }
}

/// Containers have PID namespaces of their own, but their processes descend from those of the node.
fn processes_of_node(init: u32) -> Vec<u32> {
    let mut found = members_of_pid_namespace(init);
    let parents: Vec<(u32, u32)> = processes().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut seen = 0;
    while seen < found.len() {
        let of = found[seen];
        let children = parents.iter().filter(|(pid, parent)| *parent == of && !found.contains(pid));
        let children: Vec<u32> = children.map(|(pid, _)| *pid).collect();
        found.extend(children);
        seen += 1;
    }
    found
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it can contain anything.
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

/// The first node gets a new network namespace. Any other node enters its own, which already has its cable.
fn unshare(node: Node) -> Command {
    let mut command = match node {
        Node::FIRST => {
            let mut command = Command::new("unshare");
            command.arg("--net");
            command
        }
        _ => {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net={}", network::namespace(node).display())).args(["--", "unshare"]);
            command
        }
    };
    for_the_node(&mut command);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_of_the_last_moment_are_found_and_each_is_signalled_once() {
        let mut snapshots = [vec![1, 2], vec![1, 2, 3], vec![1, 2, 3, 4]].into_iter();
        let mut signalled = Vec::new();
        each_until_none_is_new(|| snapshots.next().unwrap_or(vec![1, 3, 4]), |pid| signalled.push(pid));
        assert_eq!(signalled, [1, 2, 3, 4]);
    }
}
