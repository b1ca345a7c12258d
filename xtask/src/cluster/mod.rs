//! Real Kubernetes nodes in their own namespaces: their paths, their PID 1, and how to run commands inside them.

mod api;
mod certificates;
mod cgroup;
mod init;
mod isolate;
mod life;
mod network;
mod node;
mod parts;
mod power;
mod registry;
mod start;
mod timing;

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::command::search_path;
use crate::process::processes;
use crate::programs::{Kubernetes, Programs};

pub use init::run as run_init;
pub use life::State;
pub use node::{MOST_NODES, Node};
pub use parts::Part;
pub use power::Boot;

/// The first node's address, where the API server and the S3 server listen.
pub const NODE_ADDRESS: &str = "10.99.0.1";
pub const NODE_NAME: &str = "node-1";
/// The hidden command that becomes PID 1 of the node; together with the cluster's folder it identifies that process.
pub const INIT: &str = "cluster-init";
/// The cluster of `cluster up` and of the demo. The tests use others, so that they do not disturb it.
pub const DEFAULT_NAME: &str = "main";

/// Which components are started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Profile {
    /// Namespaces, host names and the S3 server: what a mount needs.
    Kernel,
    /// Also etcd and the API server, without controllers.
    Api,
    /// Also controller-manager, which binds claims to volumes, but no pods.
    Control,
    /// A complete node that runs pods.
    #[default]
    Node,
}

/// The requested cluster, stored in its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub profile: Profile,
    pub kubernetes: Kubernetes,
    /// More than one only with [`Profile::Node`].
    pub nodes: u8,
}

impl Default for Plan {
    fn default() -> Self {
        Self { profile: Profile::default(), kubernetes: Kubernetes::default(), nodes: 1 }
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match (self.profile, self.nodes) {
            (Profile::Kernel, _) => "namespaces and S3 server".to_owned(),
            (Profile::Api, _) => "API server of".to_owned(),
            (Profile::Control, _) => "control plane of".to_owned(),
            (Profile::Node, 1) => "node of".to_owned(),
            (Profile::Node, nodes) => format!("{nodes} nodes of"),
        };
        write!(formatter, "{what} Kubernetes {}", self.kubernetes)
    }
}

/// The name is also that of a folder that `down` removes, so it must not point to any other folder.
pub fn name(text: &str) -> Result<String, String> {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let fits = !text.is_empty() && text.len() <= 40 && text.chars().all(legal) && !text.starts_with('-');
    if fits {
        Ok(text.to_owned())
    } else {
        Err("a name has lower-case letters, digits and dashes".to_owned())
    }
}

#[derive(Clone, Debug)]
pub struct Cluster {
    name: String,
    dir: PathBuf,
    cache: Cache,
}

impl Cluster {
    /// The names of all clusters of which something exists.
    pub fn names(cache: &Cache) -> Result<Vec<String>> {
        let folders = match fs::read_dir(cache.clusters()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            folders => folders?,
        };
        let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
        folders.filter(|entry| entry.as_ref().is_ok_and(|entry| entry.path().is_dir())).map(name).collect()
    }

    pub fn named(cache: &Cache, name: &str) -> Self {
        Self { name: name.to_owned(), dir: cache.clusters().join(name), cache: cache.clone() }
    }

    /// The cluster of this folder, for its PID 1 and for the suites inside it.
    pub fn at(dir: &Path) -> Result<Self> {
        let name = dir.file_name().and_then(|name| name.to_str()).context("a cluster's folder has a name")?;
        let cache = Cache::containing(dir).context("a cluster's folder is in the cache")?;
        Ok(Self::named(&cache, &self::name(name).map_err(anyhow::Error::msg)?))
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The log of a component of the first node.
    pub fn log(&self, part: &str) -> PathBuf {
        self.log_on(Node::FIRST, part)
    }

    pub fn nodes(&self) -> Result<Vec<Node>> {
        Ok(Node::all(self.plan()?.nodes).collect())
    }

    pub fn node(&self, name: &str) -> Result<Node> {
        let found = self.nodes()?.into_iter().find(|node| node.name() == name);
        found.with_context(|| format!("cluster `{}` has no node `{name}`", self.name))
    }

    /// The directory with the node's configuration, logs and disk.
    pub(crate) fn home(&self, node: Node) -> PathBuf {
        match node {
            Node::FIRST => self.dir.clone(),
            _ => self.dir.join("nodes").join(node.name()),
        }
    }

    pub fn logs(&self, node: Node) -> PathBuf {
        self.home(node).join("log")
    }

    pub fn log_on(&self, node: Node, part: &str) -> PathBuf {
        self.logs(node).join(format!("{part}.log"))
    }

    /// The files that survive a power cut.
    pub fn disk(&self, node: Node) -> PathBuf {
        self.home(node).join("state")
    }

    pub(crate) fn etc(&self, node: Node, file: &str) -> PathBuf {
        self.home(node).join("etc").join(file)
    }

    /// Exists once the node was ready for the first time.
    pub(crate) fn usable(&self, node: Node) -> PathBuf {
        self.home(node).join("usable")
    }

    pub fn pki(&self, file: &str) -> PathBuf {
        self.dir.join("pki").join(file)
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.pki("admin.kubeconfig")
    }

    /// The certificate authority of the cluster and its S3 server.
    pub fn authority(&self) -> PathBuf {
        self.pki("ca.crt")
    }

    pub fn plan(&self) -> Result<Plan> {
        let text = fs::read(self.dir.join("plan.json"))
            .with_context(|| format!("cluster `{}` is not up: cargo xtask cluster up", self.name))?;
        Ok(serde_json::from_slice(&text)?)
    }

    pub fn programs(&self) -> Result<Programs> {
        Programs::of(&self.cache, self.plan()?.kubernetes)
    }

    /// PID 1 of the first node.
    pub fn init_process(&self) -> Option<u32> {
        self.init_of(Node::FIRST)
    }

    /// PID 1 of the node, as seen from here: 1 inside the node. It is found by its arguments and not by a file, because `up`
    /// can be killed right after it started the process, before it could write a file.
    pub fn init_of(&self, node: Node) -> Option<u32> {
        let name = if node == Node::FIRST { String::new() } else { node.name() };
        let is_it = |arguments: &[Vec<u8>]| {
            arguments[1] == INIT.as_bytes() && arguments.get(3).is_some_and(|last| last == name.as_bytes())
        };
        self.processes_with_our_dir().into_iter().find(|(_, arguments)| is_it(arguments)).map(|(pid, _)| pid)
    }

    /// The init processes and the `unshare`s that wait for them.
    fn processes_with_our_dir(&self) -> Vec<(u32, Vec<Vec<u8>>)> {
        let dir = self.dir.as_os_str().as_bytes();
        processes()
            .filter_map(|pid| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
                let arguments: Vec<Vec<u8>> = line.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
                let ours = arguments.windows(2).any(|pair| pair[0] == INIT.as_bytes() && pair[1] == dir);
                ours.then_some((pid, arguments))
            })
            .collect()
    }

    /// `program` inside the first node, in this working directory.
    pub fn command(&self, program: impl AsRef<Path>) -> Result<Command> {
        self.command_on(Node::FIRST, program)
    }

    pub fn command_on(&self, node: Node, program: impl AsRef<Path>) -> Result<Command> {
        let init = self.init_of(node).with_context(|| match node {
            Node::FIRST => format!("cluster `{}` is not up: cargo xtask cluster up", self.name),
            _ => format!("{} of cluster `{}` is off", node.name(), self.name),
        })?;
        if init == 1 {
            return Ok(Command::new(program.as_ref()));
        }
        let mut command = Command::new("nsenter");
        for_the_node(&mut command);
        command.args(["--target", &init.to_string(), "--mount", "--net", "--pid", "--ipc", "--uts", "--"]);
        // Entering a mount namespace changes the working directory, which would change the meaning of relative paths.
        command.arg("env").arg("-C").arg(std::env::current_dir()?).arg(program.as_ref());
        Ok(command)
    }

    pub fn kubectl(&self) -> Result<Command> {
        let mut command = self.command(self.programs()?.node("kubectl"))?;
        command.arg("--kubeconfig").arg(self.kubeconfig());
        // Not in the user's cache, because all clusters have the same address but serve different APIs.
        command.arg("--cache-dir").arg(self.dir.join("kubectl"));
        Ok(command)
    }

    /// The cluster's existing cgroups.
    pub fn cgroups(&self) -> Result<Vec<PathBuf>> {
        cgroup::existing(&self.cgroup(Node::FIRST))
    }

    /// Allows one `up` or `down` at a time. The lock is on the folder of all clusters, so that it leaves no file, and ends
    /// with the process.
    fn lock(&self) -> Result<File> {
        fs::create_dir_all(self.cache.clusters())?;
        let folder = File::open(self.cache.clusters())?;
        folder.lock().context("cannot lock the clusters")?;
        Ok(folder)
    }
}

/// The environment of all programs of the node: without a proxy, which its network cannot reach, and with the directories
/// of daemons, which a plain `su` omits from PATH.
fn for_the_node(command: &mut Command) {
    for variable in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
        command.env_remove(variable).env_remove(variable.to_uppercase());
    }
    command.env("PATH", search_path());
}
