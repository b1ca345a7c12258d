//! A memory limit for one program, like that of its container.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use xtask::cluster::Cluster;

/// For both versions of cgroups: the limit, the peak usage, and the file that counts OOM kills.
const FILES: &[(&str, &str, &str)] = &[
    ("memory.max", "memory.peak", "memory.events"),
    ("memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"),
];

/// A cgroup that limits memory.
pub struct MemoryLimit {
    folder: PathBuf,
    peak: &'static str,
    kills: &'static str,
}

impl MemoryLimit {
    /// A new cgroup below the cluster's, which is removed with the cluster.
    pub fn new(cluster: &Cluster, name: &str, bytes: u64) -> Self {
        let own = cluster.cgroups().unwrap();
        let has = |file: &str| own.iter().find(|folder| folder.join(file).exists());
        let (parent, (limit, peak, kills)) =
            FILES.iter().find_map(|files| Some((has(files.0)?, *files))).expect("a hierarchy limits memory");
        let folder = parent.join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join(limit), bytes.to_string()).unwrap();
        Self { folder, peak, kills }
    }

    /// The cgroup of a process of the cluster.
    pub fn of(cluster: &Cluster, process: u32) -> Self {
        let memberships = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap();
        let paths = memberships.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        let hierarchies = cluster.cgroups().unwrap();
        let hierarchies: Vec<&Path> = hierarchies.iter().filter_map(|own| own.parent()).collect();
        let mut folders = paths.flat_map(|path| {
            hierarchies.iter().map(move |hierarchy| hierarchy.join(path.trim_start_matches('/')))
        });
        let limits = |folder: PathBuf| {
            let files = FILES.iter().find(|files| folder.join(files.0).exists())?;
            let members = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            let is_member = members.lines().any(|member| member == process.to_string());
            is_member.then_some(Self { folder, peak: files.1, kills: files.2 })
        };
        folders.find_map(limits).expect("a hierarchy limits its memory")
    }

    pub fn enter(&self, process: u32) {
        fs::write(self.folder.join("cgroup.procs"), process.to_string()).unwrap();
    }

    /// Enters the cgroup and then executes the program.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo $$ > "$0/cgroup.procs" && exec "$@""#]).arg(&self.folder).arg(program);
        command
    }

    /// The peak usage in bytes.
    pub fn peak(&self) -> u64 {
        fs::read_to_string(self.folder.join(self.peak)).unwrap().trim().parse().unwrap()
    }

    /// The number of OOM kills.
    pub fn kills(&self) -> u64 {
        let counts = fs::read_to_string(self.folder.join(self.kills)).unwrap();
        let count = counts.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.unwrap().trim().parse().unwrap()
    }
}
