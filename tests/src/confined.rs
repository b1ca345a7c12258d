//! A control group with a memory limit, as a container has one.

use std::fs;
use std::path::{Path, PathBuf};

/// Removed when dropped; whatever is in it must have ended by then.
pub struct Confined {
    folder: PathBuf,
    version: Version,
}

enum Version {
    One,
    Two,
}

impl Confined {
    /// Below the group that this process is in.
    pub fn to(name: &str, bytes: u64) -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = |prefix: &str| {
            let line = groups.lines().find_map(|line| line.split_once(':')?.1.strip_prefix(prefix));
            line.map(|path| path.trim_start_matches('/').to_owned())
        };
        let root = Path::new("/sys/fs/cgroup");
        let (folder, version) = match own("memory:") {
            Some(path) => (root.join("memory").join(path), Version::One),
            None => (root.join(own(":").unwrap()), Version::Two),
        };
        let group = Self { folder: folder.join(name), version };
        fs::create_dir_all(&group.folder).unwrap();
        group.write(group.file("memory.limit_in_bytes", "memory.max"), &bytes.to_string());
        group
    }

    pub fn enter(&self, process: u32) {
        self.write("cgroup.procs", &process.to_string());
    }

    /// How often the kernel has ended a process in it, as its memory was used up.
    pub fn kills(&self) -> u64 {
        let events = fs::read_to_string(self.folder.join(self.file("memory.oom_control", "memory.events")));
        let events = events.unwrap();
        events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap()
    }

    fn file(&self, one: &'static str, two: &'static str) -> &'static str {
        match self.version {
            Version::One => one,
            Version::Two => two,
        }
    }

    fn write(&self, file: &str, value: &str) {
        let file = self.folder.join(file);
        fs::write(&file, value).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        // A process that has just been killed is in it for a moment still; the cluster's end removes what is left.
        let _ = fs::remove_dir(&self.folder);
    }
}
