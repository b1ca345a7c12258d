//! The node's cgroups: one in every hierarchy of the machine, with everything that the kubelet creates below it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// A killed process leaves its cgroup within milliseconds; a whole node takes longer.
const EMPTY_WITHIN: Duration = Duration::from_secs(10);

/// The controllers that the kubelet needs with version 2.
const NEEDED: &[&str] = &["cpu", "cpuset", "memory", "pids"];

/// Creates the cgroup in every hierarchy. The kubelet needs its `cgroupRoot` before it starts.
pub(crate) fn create(name: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        let own = hierarchy.join(name);
        fs::create_dir_all(&own).with_context(|| format!("cannot create the cgroup {}", own.display()))?;
        // Version 1: a new cpuset has no processors and no memory, and no process may enter it.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(all) = fs::read(hierarchy.join(file)) {
                fs::write(own.join(file), all)?;
            }
        }
        // Version 2: children have only the controllers that all their ancestors delegate.
        let controllers = fs::read_to_string(hierarchy.join("cgroup.controllers")).unwrap_or_default();
        for controller in controllers.split_whitespace().filter(|name| NEEDED.contains(name)) {
            for folder in [&hierarchy, &own] {
                let file = folder.join("cgroup.subtree_control");
                fs::write(&file, format!("+{controller}")).with_context(|| {
                    format!("cannot pass on the controller {controller} in {}", file.display())
                })?;
            }
        }
    }
    Ok(())
}

pub(crate) fn remove(name: &str) -> Result<()> {
    let deadline = Instant::now() + EMPTY_WITHIN;
    for own in existing(name)? {
        while let Err(error) = remove_tree(&own) {
            if Instant::now() > deadline {
                bail!("cannot remove the cgroup {}: {error}", own.display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// The node's existing cgroups.
pub(crate) fn existing(name: &str) -> Result<Vec<PathBuf>> {
    Ok(hierarchies()?.into_iter().map(|hierarchy| hierarchy.join(name)).filter(|own| own.exists()).collect())
}

/// A cgroup's files disappear with it; nested cgroups are removed first.
fn remove_tree(folder: &Path) -> std::io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(folder)
}

/// Where cgroups are mounted: many places with version 1 or both, one with version 2.
fn hierarchies() -> Result<Vec<PathBuf>> {
    Ok(parse(&fs::read_to_string("/proc/self/mounts")?))
}

fn parse(mounts: &str) -> Vec<PathBuf> {
    mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .filter(|fields| fields.len() > 2 && matches!(fields[2], "cgroup" | "cgroup2"))
        .map(|fields| PathBuf::from(fields[1]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_versions_are_found() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\nproc /proc proc rw 0 0\n";
        assert_eq!(parse(mounts), [Path::new("/sys/fs/cgroup/cpu"), Path::new("/sys/fs/cgroup/unified")]);
    }
}
