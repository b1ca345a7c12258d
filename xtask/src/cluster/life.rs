//! `up`, `down` and `status`. Each leaves a state that the others understand, wherever it was cut off.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest as _, Sha256};

use super::init::USABLE;
use super::{Cluster, INIT, NODE_ADDRESS, Plan, Profile, certificates, cgroup, for_the_node, processes};
use crate::command::{run, tail_of_log};
use crate::{debian, image};

/// The kernel ends a whole PID namespace within a second or two; the rest is for a loaded machine.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// What `status` knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Down,
    /// Something of it is there, but it never became usable: `up` and `down` both clean it away.
    Broken,
    Up {
        plan: Plan,
        processes: usize,
        resident_mb: u64,
    },
}

impl Cluster {
    /// Brings the cluster up, or leaves it alone if it is up as wanted.
    pub fn up(&self, plan: Plan) -> Result<()> {
        debian::ensure_root()?;
        let _lock = self.lock()?;
        match self.state()? {
            State::Up { plan: present, .. } if present == plan => {
                eprintln!("        ✓ cluster `{}` is up", self.name);
                return self.import_images(plan.profile);
            }
            State::Down => {}
            State::Broken | State::Up { .. } => self.take_down()?,
        }
        self.prepare(plan)?;
        self.launch()
    }

    /// The images as they were built last; what runs keeps what it was started with.
    pub(crate) fn import_images(&self, profile: Profile) -> Result<()> {
        if profile != Profile::Node {
            return Ok(());
        }
        image::archives(&self.cache)?.iter().try_for_each(|archive| self.import_image(archive))
    }

    pub fn import_image(&self, archive: &Path) -> Result<()> {
        run(self.command("ctr")?.args(["--namespace", "k8s.io", "images", "import"]).arg(archive))
            .with_context(|| format!("cannot import {}", archive.display()))
    }

    /// Removes every process, mount, cgroup and file of the cluster, whatever is left of it.
    pub fn down(&self) -> Result<()> {
        debian::ensure_root()?;
        let _lock = self.lock()?;
        self.take_down()
    }

    pub fn state(&self) -> Result<State> {
        let Some(init) = self.init_process() else {
            let nothing = !self.dir.exists() && cgroup::existing(&self.cgroup())?.is_empty();
            return Ok(if nothing { State::Down } else { State::Broken });
        };
        if !self.usable().exists() {
            return Ok(State::Broken);
        }
        let members = members_of_pid_namespace(init);
        let resident_mb = members.iter().map(|pid| resident_kb(*pid)).sum::<u64>() / 1024;
        Ok(State::Up { plan: self.plan()?, processes: members.len(), resident_mb })
    }

    fn prepare(&self, plan: Plan) -> Result<()> {
        fs::create_dir_all(self.etc("cni"))?;
        fs::create_dir_all(self.etc("registries/_default"))?;
        fs::create_dir_all(self.logs())?;
        fs::write(self.dir.join("plan.json"), serde_json::to_vec_pretty(&plan)?)?;
        certificates::write(self)?;
        for (file, template) in [
            ("containerd.toml", include_str!("templates/containerd.toml")),
            ("kubelet.yaml", include_str!("templates/kubelet.yaml")),
            ("cni/10-pods.conflist", include_str!("templates/cni.conflist")),
            ("registries/_default/hosts.toml", include_str!("templates/hosts.toml")),
        ] {
            let text = template
                .replace("{pki}", &self.pki("").display().to_string())
                .replace("{etc}", &self.etc("").display().to_string())
                .replace("{cgroup}", &self.cgroup())
                .replace("{address}", NODE_ADDRESS)
                .replace("{pause}", image::PAUSE);
            fs::write(self.etc(file), text)?;
        }
        Ok(())
    }

    /// Starts the first process in fresh namespaces and shows what it says until the node is usable.
    fn launch(&self) -> Result<()> {
        let log = fs::File::create(self.log("init"))?;
        let mut unshare = Command::new("unshare");
        for_the_node(&mut unshare);
        let mut node = unshare
            .args(["--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"])
            // Nothing mounted here may reach the machine, whatever its root mount's propagation is.
            .args(["--propagation", "private", "--"])
            .arg(std::env::current_exe()?)
            .arg(INIT)
            .arg(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            // Ctrl-C ends `up`; the node stays, broken or whole, for the next `up` or `down`.
            .process_group(0)
            .spawn()
            .context("cannot start unshare")?;
        let output = node.stdout.take().context("unshare has no output")?;
        for line in BufReader::new(output).lines() {
            match line? {
                line if line == USABLE => return Ok(()),
                line => eprintln!("{line}"),
            }
        }
        node.wait()?;
        bail!("cluster `{}` did not start\n{}", self.name, tail_of_log(&self.log("init")))
    }

    fn take_down(&self) -> Result<()> {
        if let Some(init) = self.init_process() {
            if init == 1 {
                bail!("this is inside cluster `{}`: take it down from outside", self.name);
            }
            let members = members_of_pid_namespace(init);
            abort_fuse(init)?;
            // Its end is the end of every process in its PID namespace, and with the last of them go the namespaces.
            kill(init);
            await_end(&members)?;
        }
        // `unshare` itself, if it has not yet noticed.
        let waiters: Vec<u32> = self.processes_with_our_dir().into_iter().map(|(pid, _)| pid).collect();
        for pid in &waiters {
            kill(*pid);
        }
        await_end(&waiters)?;
        cgroup::remove(&self.cgroup())?;
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

    /// With a hash of the folder: clusters of different caches may have the same name.
    pub(crate) fn cgroup(&self) -> String {
        let hash = Sha256::digest(self.dir.as_os_str().as_bytes());
        format!("s3-csi-{}-{}", self.name, base16ct::lower::encode_string(&hash[..4]))
    }

    pub(crate) fn etc(&self, file: &str) -> PathBuf {
        self.dir.join("etc").join(file)
    }

    /// There from the moment the node is usable.
    pub(crate) fn usable(&self) -> PathBuf {
        self.dir.join("usable")
    }
}

/// A process that waits for an answer of a FUSE server which has been killed cannot be killed itself, and would keep the
/// namespace alive for ever. Every FUSE mount the node still has is its own: it left all others when it started.
fn abort_fuse(init: u32) -> Result<()> {
    let Ok(table) = fs::read_to_string(format!("/proc/{init}/mountinfo")) else { return Ok(()) };
    for line in table.lines() {
        let Some((front, back)) = line.split_once(" - ") else { continue };
        if !(back.starts_with("fuse ") || back.starts_with("fuse.") || back.starts_with("fuseblk ")) {
            continue;
        }
        let device = front.split(' ').nth(2).and_then(|numbers| numbers.split_once(':'));
        let (_, connection) =
            device.with_context(|| format!("no device in the mount table's line: {line}"))?;
        // Several mounts may show one connection, and the first abort may already have ended it.
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

fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // Gone already is as good.
        let _ = kill_process(pid, Signal::KILL);
    }
}

fn await_end(pids: &[u32]) -> Result<()> {
    let deadline = Instant::now() + GONE_WITHIN;
    for pid in pids {
        while Path::new(&format!("/proc/{pid}")).exists() && !is_zombie(*pid) {
            if Instant::now() > deadline {
                bail!("process {pid} did not end within {} s after SIGKILL", GONE_WITHIN.as_secs());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

/// `unshare` is a zombie while the `up` that started it, in this very process, has not waited for it.
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
