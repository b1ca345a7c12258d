//! How much memory the buffers of downloads and uploads may take: what the container may use, less what everything else
//! needs. The node's memory does not matter, as other mounts and workloads live on it, too.

use std::fs;
use std::path::{Path, PathBuf};

use mountpoint_s3_fs::memory::data_buffer_budget_for;
use mountpoint_s3_fs::s3::config::MemoryLimitSetting;

const MIB: u64 = 1024 * 1024;
/// Program, threads, connections, metadata of files: measured.
const BESIDE_BUFFERS: u64 = 40 * MIB;
/// Of the rest, for buffers: freed memory takes a moment to get back to the system.
const FOR_BUFFERS: (u64, u64) = (3, 4);
/// One part that is read, one that is fetched ahead, one that is written. With less, nothing works.
const LEAST_PARTS: usize = 3;
/// The same, of the default size.
const LEAST_FOR_BUFFERS: u64 = 24 * MIB;
/// Of the rest again, for what open files have written so far: half of what the buffers leave.
const FOR_SPOOLS: u64 = 8;
/// Only hundreds of writers would use more, and none of them needs it.
const MOST_FOR_SPOOLS: u64 = 64 * MIB;
/// Bytes of the smallest buffers of the library's pool, in which the answer to a request for as much or less arrives.
pub(crate) const SMALL_BUFFER: usize = 1024 * 1024;
/// Of what is beyond the least, for the content of files that were opened and not read yet: one third.
const FOR_FIRST_READS: usize = 3;
/// As many as programs open at once.
const MOST_FIRST_READS: usize = 32;
/// Of a container without a limit: what `memory-target` begins with.
const WITHOUT_LIMIT: u64 = 512 * MIB;

/// The library's target: of what it is given it sets an eighth aside for other things, and 128 MiB at least.
pub(crate) fn limit(wanted_mib: Option<u64>, container: Option<u64>) -> MemoryLimitSetting {
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let wanted = wanted_mib.map(|mib| mib.saturating_mul(MIB));
    let possible = container.map(|container| target(for_buffers(container)));
    match (wanted, possible) {
        (Some(wanted), Some(possible)) if wanted > possible => {
            tracing::warn!(
                memory_target_mib = wanted / MIB,
                container_limit_mib = container.unwrap_or_default() / MIB,
                "memory-target exceeds what the container's memory limit allows; raise \
                 `mountpointContainerResourcesLimitsMemory`"
            );
            MemoryLimitSetting::Default(bytes(possible))
        }
        (Some(wanted), _) => MemoryLimitSetting::User(bytes(wanted)),
        (None, possible) => MemoryLimitSetting::Default(bytes(possible.unwrap_or(WITHOUT_LIMIT))),
    }
}

fn for_buffers(container: u64) -> u64 {
    let (part, whole) = FOR_BUFFERS;
    (container.saturating_sub(BESIDE_BUFFERS) / whole * part).max(LEAST_FOR_BUFFERS)
}

/// How many bytes of files that are open for writing are kept, all together.
pub(crate) fn for_spools(container: Option<u64>) -> u64 {
    let rest = container.map_or(u64::MAX, |container| container.saturating_sub(BESIDE_BUFFERS));
    (rest / FOR_SPOOLS).min(MOST_FOR_SPOOLS)
}

/// How many small files may have their content in buffers before they are read. The S3 client reserves as much as a request
/// asks for, and a part at most; so each of them takes a small buffer. The library cannot take it back: with too many, all
/// other readers and writers wait for them.
pub(crate) fn for_first_reads(limit: usize, read_part: usize) -> usize {
    let beyond_least = data_buffer_budget_for(limit).saturating_sub(LEAST_PARTS.saturating_mul(read_part));
    (beyond_least / FOR_FIRST_READS / SMALL_BUFFER).min(MOST_FIRST_READS)
}

/// The smallest target with which the library has that much for buffers.
fn target(for_buffers: u64) -> u64 {
    let target = for_buffers + (for_buffers / 7).max(128 * MIB);
    debug_assert!(
        data_buffer_budget_for(usize::try_from(target).unwrap_or(usize::MAX)) as u64 >= for_buffers
    );
    target
}

/// The limit of this process's control group, or of one above it, whichever is lowest.
pub(crate) fn container_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    lowest_limit(&groups, Path::new("/sys/fs/cgroup"))
}

fn lowest_limit(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        // `4:memory:/path` of version 1, `0::/path` of version 2.
        let mut fields = line.splitn(3, ':');
        let (controllers, path) = (fields.nth(1)?, fields.next()?.trim_start_matches('/'));
        let (hierarchy, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            names if names.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        // In a container the path may be that of the node, where its own group is the root that it sees.
        let own: PathBuf = hierarchy.join(path);
        let above = own.ancestors().take_while(|folder| folder.starts_with(&hierarchy));
        above
            .filter_map(|folder| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok())
            .min()
    });
    // Version 1 expresses "no limit" only as a number beyond all memory.
    limits.min().filter(|limit| *limit < 1 << 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers_mib(wanted_mib: Option<u64>, container_mib: Option<u64>) -> u64 {
        let limit = limit(wanted_mib, container_mib.map(|mib| mib * MIB));
        data_buffer_budget_for(limit.bytes()) as u64 / MIB
    }

    #[test]
    fn buffers_fit_into_the_container() {
        for container in [64, 128, 256, 512, 1024, 4096, 65536] {
            let buffers = buffers_mib(None, Some(container));
            assert!(buffers >= 18 && buffers + 40 <= container, "{buffers} MiB in {container}");
            assert!(container < 256 || buffers * 2 > container, "{buffers} MiB in {container}");
        }
        assert_eq!(buffers_mib(None, None), 384, "without a limit as with the least memory-target");
    }

    #[test]
    fn spools_fit_beside_the_buffers() {
        for container in [64, 128, 256, 512, 1024, 4096] {
            let spools = for_spools(Some(container * MIB)) / MIB;
            let buffers = buffers_mib(None, Some(container));
            assert!(spools >= 3 && buffers + spools + 40 <= container.max(67), "{spools} MiB in {container}");
        }
        assert_eq!(for_spools(None), 64 * MIB);
    }

    #[test]
    fn files_that_are_not_read_leave_buffers_for_others() {
        let first_reads = |container_mib: u64, part_mib: u64| {
            let limit = limit(None, Some(container_mib * MIB)).bytes();
            for_first_reads(limit, usize::try_from(part_mib * MIB).unwrap())
        };
        assert_eq!(first_reads(64, 8), 0);
        assert_eq!(first_reads(128, 8), 14);
        assert_eq!(first_reads(512, 8), 32);
        assert_eq!(first_reads(512, 64), 32);
        assert_eq!(first_reads(512, 1024), 0);
        assert_eq!(first_reads(65536, 8), 32);
    }

    #[test]
    fn the_wanted_target_counts_as_far_as_the_container_allows() {
        assert_eq!(buffers_mib(Some(512), None), 384);
        assert_eq!(buffers_mib(Some(512), Some(4096)), 384);
        assert_eq!(buffers_mib(Some(4096), Some(512)), buffers_mib(None, Some(512)));
    }

    #[test]
    fn the_lowest_limit_of_a_group_and_those_above_counts() {
        let root = tempfile::tempdir().unwrap();
        let set = |folder: &str, file: &str, limit: &str| {
            let folder = root.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(file), limit).unwrap();
        };
        let found = |groups: &str| lowest_limit(groups, root.path());
        assert_eq!(found("0::/\n"), None);
        set("pod/container", "memory.max", "max\n");
        assert_eq!(found("0::/pod/container\n"), None);
        set("pod", "memory.max", "1000\n");
        assert_eq!(found("0::/pod/container\n"), Some(1000));
        set("pod/container", "memory.max", "2000\n");
        assert_eq!(found("0::/pod/container\n"), Some(1000));
        set("", "memory.max", "500\n");
        assert_eq!(found("0::/what/the/node/sees\n"), Some(500), "in a container its own group is the root");

        set("memory/pod", "memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(found("5:cpu,cpuacct:/pod\n4:memory:/pod\n"), None);
        set("memory/pod", "memory.limit_in_bytes", "300\n");
        assert_eq!(found("5:cpu,cpuacct:/pod\n4:memory:/pod\n0::/\n"), Some(300));
    }
}
