//! Whether the kernel has ended a process of this container because its memory was used up. Only its control group says so: the
//! process itself ends with the same signal as any that is killed.

use std::fs;
use std::path::{Path, PathBuf};

/// For both versions of control groups: where the hierarchy is mounted, and the file with the count.
const HIERARCHIES: [(&str, &str); 2] = [("", "memory.events"), ("memory", "memory.oom_control")];

#[derive(Debug, Default)]
pub(super) struct OutOfMemory {
    /// Nowhere if the system does not count.
    file: Option<PathBuf>,
    kills: u64,
}

impl OutOfMemory {
    /// From now on.
    pub(super) fn watch() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let file = find(&groups, Path::new("/sys/fs/cgroup"));
        let kills = file.as_deref().map_or(0, kills);
        Self { file, kills }
    }

    /// Since the last time.
    pub(super) fn has_killed(&mut self) -> bool {
        let before = self.kills;
        self.kills = self.file.as_deref().map_or(0, kills);
        self.kills > before
    }
}

fn kills(file: &Path) -> u64 {
    let counts = fs::read_to_string(file).unwrap_or_default();
    let count = counts.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
    count.unwrap_or_default()
}

/// In a container the path of the group may be that of the node, where the container sees its own group as the root.
fn find(groups: &str, root: &Path) -> Option<PathBuf> {
    let mut files = groups.lines().flat_map(|line| {
        // `4:memory:/path` of version 1, `0::/path` of version 2.
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let hierarchy = HIERARCHIES.iter().find(|(name, _)| controllers.split(',').any(|it| it == *name));
        hierarchy.into_iter().flat_map(move |(name, file)| {
            let hierarchy = root.join(name);
            [hierarchy.join(path.trim_start_matches('/')).join(file), hierarchy.join(file)]
        })
    });
    files.find(|file| file.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_the_own_group_is_found() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, content: &str| {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, content).unwrap();
            Some(file)
        };
        let found = |groups: &str| find(groups, root.path());
        assert_eq!(found("0::/pod/container\n"), None);
        let first = write("memory/pod/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
        assert_eq!(found("5:cpu,cpuacct:/pod\n4:hugetlb,memory:/pod\n0::/\n"), first);
        assert_eq!(kills(&first.unwrap()), 3);
        let own = write("memory.events", "low 0\nhigh 0\nmax 9\noom 9\noom_kill 2\noom_group_kill 0\n");
        assert_eq!(found("0::/what/the/node/sees\n"), own, "in a container");
        assert_eq!(kills(&own.unwrap()), 2);
        let below = write("pod/container/memory.events", "oom_kill 0\n");
        assert_eq!(found("0::/pod/container\n"), below);
    }

    #[test]
    fn each_kill_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("memory.events");
        fs::write(&file, "oom_kill 1\n").unwrap();
        let mut memory = OutOfMemory { file: Some(file.clone()), kills: 1 };
        assert!(!memory.has_killed(), "another program, before this one");
        fs::write(&file, "oom_kill 2\n").unwrap();
        assert!(memory.has_killed() && !memory.has_killed());
        fs::remove_file(file).unwrap();
        assert!(!memory.has_killed());
        assert!(!OutOfMemory { file: None, kills: 0 }.has_killed());
    }
}
