//! A real Kubernetes node in namespaces of its own: its places, its process, and how to run something inside it.

mod api;
mod certificates;
mod cgroup;
mod init;
mod isolate;
mod life;
mod parts;
mod registry;
mod start;

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
use crate::programs::{Kubernetes, Programs};

pub use init::run as run_init;
pub use life::State;
pub use parts::Part;

/// The node's address in its own network, where the API server and the S3 server listen.
pub const NODE_ADDRESS: &str = "10.99.0.1";
pub const NODE_NAME: &str = "node-1";
/// The hidden command that becomes the node's first process; with the cluster's folder it identifies that process.
pub const INIT: &str = "cluster-init";
/// The cluster of `cluster up` and of the demo. The tests have another, so that they leave a person's cluster alone.
pub const DEFAULT_NAME: &str = "main";

/// How much of a node is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Profile {
    /// Namespaces, names and the S3 server: what a mount needs.
    Kernel,
    /// With etcd and the API server, but nothing that acts on objects.
    Api,
    /// With the controllers of the control plane, which bind claims to volumes, but without pods.
    Control,
    /// A whole node that runs pods.
    #[default]
    Node,
}

/// What a cluster was asked to be; kept in its folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub profile: Profile,
    pub kubernetes: Kubernetes,
}

impl std::fmt::Display for Plan {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.profile {
            Profile::Kernel => "namespaces and S3 server",
            Profile::Api => "API server of",
            Profile::Control => "control plane of",
            Profile::Node => "node of",
        };
        write!(formatter, "{what} Kubernetes {}", self.kubernetes)
    }
}

/// A name that is also the name of a folder, which `down` removes: it must not be able to mean another one.
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
    /// Of all clusters that there is anything of.
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

    /// The cluster of this folder: how its first process and the suites inside it find it.
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

    pub fn logs(&self) -> PathBuf {
        self.dir.join("log")
    }

    pub fn log(&self, part: &str) -> PathBuf {
        self.logs().join(format!("{part}.log"))
    }

    pub fn pki(&self, file: &str) -> PathBuf {
        self.dir.join("pki").join(file)
    }

    /// What a client of the API server needs, as the administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.pki("admin.kubeconfig")
    }

    /// The authority behind every certificate of the cluster, the S3 server's included.
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

    /// The process that is PID 1 of the node, as seen from here: 1 when we are inside. It is found by its arguments,
    /// not by a file: whoever is killed right after starting it could not have written one.
    pub fn init_process(&self) -> Option<u32> {
        self.processes_with_our_dir()
            .into_iter()
            .find(|(_, arguments)| arguments[1] == INIT.as_bytes())
            .map(|(pid, _)| pid)
    }

    /// The init process and the `unshare` that waits for it.
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

    /// `program` inside the node, in this working directory.
    pub fn command(&self, program: impl AsRef<Path>) -> Result<Command> {
        let init = self
            .init_process()
            .with_context(|| format!("cluster `{}` is not up: cargo xtask cluster up", self.name))?;
        if init == 1 {
            return Ok(Command::new(program.as_ref()));
        }
        let mut command = Command::new("nsenter");
        for_the_node(&mut command);
        command.args(["--target", &init.to_string(), "--mount", "--net", "--pid", "--ipc", "--uts", "--"]);
        // Entering a mount namespace moves us to its root; relative paths on the command line must keep their meaning.
        command.arg("env").arg("-C").arg(std::env::current_dir()?).arg(program.as_ref());
        Ok(command)
    }

    pub fn kubectl(&self) -> Result<Command> {
        let mut command = self.command(self.programs()?.node("kubectl"))?;
        command.arg("--kubeconfig").arg(self.kubeconfig());
        // Not in the user's own: every cluster has the same address, and they differ in what they serve.
        command.arg("--cache-dir").arg(self.dir.join("kubectl"));
        Ok(command)
    }

    /// The node's cgroups that are there now.
    pub fn cgroups(&self) -> Result<Vec<PathBuf>> {
        cgroup::existing(&self.cgroup())
    }

    /// One `up` or `down` at a time. The lock is on the folder of all clusters, so that no file is left behind by it, and
    /// ends with the process.
    fn lock(&self) -> Result<File> {
        fs::create_dir_all(self.cache.clusters())?;
        let folder = File::open(self.cache.clusters())?;
        folder.lock().context("cannot lock the clusters")?;
        Ok(folder)
    }
}

/// The environment of everything in the node: its network has no way out to a proxy, and its programs need the folders
/// of daemons, which a plain `su` leaves out of PATH.
fn for_the_node(command: &mut Command) {
    for variable in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
        command.env_remove(variable).env_remove(variable.to_uppercase());
    }
    command.env("PATH", search_path());
}

pub(crate) fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}
