//! `up`, `down` and `status`. Each can be interrupted at any point and leaves a state that the others understand.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest as _, Sha256};

use super::{Cluster, NODE_ADDRESS, Node, Part, Plan, Profile, certificates, cgroup, network};
use crate::command::run;
use crate::process::processes;
use crate::{debian, image};

/// The kernel kills a PID namespace within a second or two; the rest is for a busy machine.
pub(super) const GONE_WITHIN: Duration = Duration::from_secs(30);

/// The state of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Down,
    /// It exists but never became ready, or one of its components does not run; both `up` and `down` remove it.
    Broken,
    Up {
        plan: Plan,
        processes: usize,
        resident_mb: u64,
    },
}

impl Cluster {
    /// Starts the cluster, unless it already runs as requested.
    pub fn up(&self, plan: Plan) -> Result<()> {
        debian::ensure_root()?;
        let _lock = self.lock()?;
        match self.state()? {
            State::Up { plan: present, .. } if present == plan => {
                eprintln!("        ✓ cluster `{}` is up", self.name);
                return self.import_images();
            }
            State::Down => {}
            State::Broken | State::Up { .. } => self.take_down()?,
        }
        self.prepare(plan)?;
        self.launch(Node::FIRST, |line| eprintln!("{line}"))
    }

    /// Imports the latest images on every running node; running containers keep theirs.
    fn import_images(&self) -> Result<()> {
        if self.plan()?.profile != Profile::Node {
            return Ok(());
        }
        let running = self.nodes()?.into_iter().filter(|node| self.init_of(*node).is_some());
        running.into_iter().try_for_each(|node| self.import_images_on(node))
    }

    pub(crate) fn import_images_on(&self, node: Node) -> Result<()> {
        image::archives(&self.cache)?.iter().try_for_each(|archive| self.import_image_on(node, archive))
    }

    /// Imports an image on the first node.
    pub fn import_image(&self, archive: &Path) -> Result<()> {
        self.import_image_on(Node::FIRST, archive)
    }

    pub(crate) fn import_image_on(&self, node: Node, archive: &Path) -> Result<()> {
        run(self.command_on(node, "ctr")?.args(["--namespace", "k8s.io", "images", "import"]).arg(archive))
            .with_context(|| format!("cannot import {}", archive.display()))
    }

    /// Removes every process, mount, cgroup and file that is left of the cluster.
    pub fn down(&self) -> Result<()> {
        debian::ensure_root()?;
        let _lock = self.lock()?;
        self.take_down()
    }

    /// Replaces it with a new one of the same plan.
    pub fn renew(&self) -> Result<()> {
        let plan = self.plan()?;
        self.down()?;
        self.up(plan)
    }

    pub fn state(&self) -> Result<State> {
        let Some(init) = self.init_process() else {
            let nothing = !self.dir.exists() && self.cgroups()?.is_empty();
            return Ok(if nothing { State::Down } else { State::Broken });
        };
        if !self.usable(Node::FIRST).exists() || !self.has_all_parts()? {
            return Ok(State::Broken);
        }
        let mut members = members_of_pid_namespace(init);
        for node in self.nodes()?.into_iter().skip(1) {
            members.extend(self.init_of(node).into_iter().flat_map(members_of_pid_namespace));
        }
        let resident_mb = members.iter().map(|pid| resident_kb(*pid)).sum::<u64>() / 1024;
        Ok(State::Up { plan: self.plan()?, processes: members.len(), resident_mb })
    }

    /// Whether every component of the first node runs.
    fn has_all_parts(&self) -> Result<bool> {
        let profile = self.plan()?.profile;
        for part in [Part::first(profile), Part::second(profile)].concat() {
            if self.processes_of(Node::FIRST, part)?.len() < part.processes() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn prepare(&self, plan: Plan) -> Result<()> {
        fs::create_dir_all(&self.dir)?;
        fs::write(self.dir.join("plan.json"), serde_json::to_vec_pretty(&plan)?)?;
        certificates::write(self)?;
        self.nodes()?.into_iter().try_for_each(|node| self.prepare_node(node, &[]))
    }

    /// Writes the configuration and creates the directories of a node before it starts.
    pub(crate) fn prepare_node(&self, node: Node, taints: &[String]) -> Result<()> {
        fs::create_dir_all(self.etc(node, "cni"))?;
        fs::create_dir_all(self.etc(node, "registries/_default"))?;
        fs::create_dir_all(self.logs(node))?;
        let (ranges, routes) = network::of_pods(node);
        for (file, template) in [
            ("containerd.toml", include_str!("templates/containerd.toml")),
            ("kubelet.yaml", include_str!("templates/kubelet.yaml")),
            ("cni/10-pods.conflist", include_str!("templates/cni.conflist")),
            ("registries/_default/hosts.toml", include_str!("templates/hosts.toml")),
        ] {
            let text = template
                .replace("{pki}", &self.pki("").display().to_string())
                .replace("{etc}", &self.etc(node, "").display().to_string())
                .replace("{serving}", &node.serving_files())
                .replace("{ranges}", &ranges.to_string())
                .replace("{routes}", &routes.to_string())
                .replace("{lease}", &self.timing()?.lease_seconds.to_string())
                .replace("{backoff}", &self.restart_backoff()?)
                .replace("{taints}", &taints_of_kubelet(taints)?)
                .replace("{cgroup}", &self.cgroup(node))
                .replace("{address}", NODE_ADDRESS)
                .replace("{pause}", image::PAUSE);
            fs::write(self.etc(node, file), text)?;
        }
        Ok(())
    }

    fn take_down(&self) -> Result<()> {
        if let Some(init) = self.init_process() {
            if init == 1 {
                bail!("running inside cluster `{}`: run `down` outside of it", self.name);
            }
            let members = members_of_pid_namespace(init);
            abort_fuse(init)?;
            // The kernel then kills every process in its PID namespace, and the namespaces disappear with the last one.
            kill(init);
            await_end(&members)?;
        }
        // `unshare` itself, if it has not exited yet.
        let waiters: Vec<u32> = self.processes_with_our_dir().into_iter().map(|(pid, _)| pid).collect();
        for pid in &waiters {
            kill(*pid);
        }
        await_end(&waiters)?;
        cgroup::remove(&self.cgroup(Node::FIRST))?;
        if let Some(point) = mount_below(&self.dir)? {
            bail!("{} is still mounted: unmount it and run `down` again", point.display());
        }
        match fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.dir.display()))
            }
            _ => Ok(()),
        }
    }

    /// With a hash of the folder, because clusters of different caches can have the same name. The cgroups of other nodes
    /// are below the first's, so that they are removed with it.
    pub(crate) fn cgroup(&self, node: Node) -> String {
        let hash = Sha256::digest(self.dir.as_os_str().as_bytes());
        let first = format!("s3-csi-{}-{}", self.name, base16ct::lower::encode_string(&hash[..4]));
        if node == Node::FIRST { first } else { format!("{first}/{}", node.name()) }
    }
}

/// Converts `KEY:EFFECT` to the form of the kubelet's configuration.
fn taints_of_kubelet(taints: &[String]) -> Result<String> {
    let taint = |taint: &String| {
        let (key, effect) =
            taint.rsplit_once(':').with_context(|| format!("`{taint}` is not of the form KEY:EFFECT"))?;
        Ok(serde_json::json!({"key": key, "effect": effect}))
    };
    Ok(serde_json::to_string(&taints.iter().map(taint).collect::<Result<Vec<_>>>()?)?)
}

/// A process that waits for a killed FUSE server cannot be killed itself, and would keep the namespace alive forever. All
/// FUSE mounts of the node are its own, because it detached all others when it started.
pub(crate) fn abort_fuse(init: u32) -> Result<()> {
    let Ok(table) = fs::read_to_string(format!("/proc/{init}/mountinfo")) else { return Ok(()) };
    for line in table.lines() {
        let Some((front, back)) = line.split_once(" - ") else { continue };
        if !(back.starts_with("fuse ") || back.starts_with("fuse.") || back.starts_with("fuseblk ")) {
            continue;
        }
        let device = front.split(' ').nth(2).and_then(|numbers| numbers.split_once(':'));
        let (_, connection) =
            device.with_context(|| format!("no device in the mount table's line: {line}"))?;
        // Several mounts can have the same connection, which the first abort already ends.
        let _ = fs::write(format!("/proc/{init}/root/sys/fs/fuse/connections/{connection}/abort"), "1");
    }
    Ok(())
}

pub(crate) fn members_of_pid_namespace(init: u32) -> Vec<u32> {
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let ours = namespace(init);
    processes().filter(|pid| ours.is_some() && namespace(*pid) == ours).collect()
}

fn resident_kb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

pub(crate) fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // Already gone.
        let _ = kill_process(pid, Signal::KILL);
    }
}

pub(crate) fn await_end(pids: &[u32]) -> Result<()> {
    let deadline = Instant::now() + GONE_WITHIN;
    for pid in pids {
        while Path::new(&format!("/proc/{pid}")).exists() && !is_zombie(*pid) {
            if Instant::now() > deadline {
                bail!("process {pid} is still running {} s after SIGKILL", GONE_WITHIN.as_secs());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

/// `unshare` is a zombie until the `up` that started it, in this process, has waited for it.
fn is_zombie(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

fn mount_below(dir: &Path) -> Result<Option<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    Ok(mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .map(PathBuf::from)
        .find(|point| point.starts_with(dir)))
}
