//! Ends what serves a bucket, and waits for what takes its place.

use std::fs;

use mounter::{JOURNAL, SURVIVAL};
use rustix::process::{Pid, Signal, kill_process};

use crate::processes::processes;
use crate::story::{LIMIT, Story};
use crate::{Seen, eventually};

/// Keeps running and logs what it sees.
pub const FOREVER: &str =
    "while true; do if cat /data/file >/dev/null 2>&1; then echo good; else echo bad; fi; sleep 0.3; done";

/// Ends the containers of these mount processes, and their mounts.
pub fn end_containers(mount_processes: &[u32]) {
    remove_journals(mount_processes);
    end_containers_only(mount_processes);
}

/// Without a journal, no other process can continue the mount.
pub fn remove_journals(mount_processes: &[u32]) {
    for process in mount_processes {
        // The process works in the folder that it shares with the node.
        fs::remove_file(format!("/proc/{process}/cwd/{SURVIVAL}/{JOURNAL}")).unwrap();
    }
}

pub fn end_containers_only(mount_processes: &[u32]) {
    assert!(!mount_processes.is_empty(), "a process serves the bucket");
    for process in mount_processes {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let mounter = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
        // The first process of a container takes all others along.
        kill_process(pid(mounter.trim().parse().unwrap()), Signal::KILL).unwrap();
    }
}

/// Ends the container that serves the bucket and its mount, and waits for the next one. A busy workload may not have noticed.
pub async fn end_container(bucket: &str) {
    let killed = processes("s3-csi-mountpoint", Some(bucket));
    end_containers(&killed);
    another_serves(bucket, &killed).await;
}

pub async fn another_serves(bucket: &str, killed: &[u32]) {
    eventually("another mount process serves the bucket", LIMIT, || async {
        let serving = processes("s3-csi-mountpoint", Some(bucket));
        let replaced = serving.iter().any(|process| !killed.contains(process));
        Seen::some(replaced.then_some(()), format!("{serving:?}"))
    })
    .await;
}

/// Waits for two more successes: the second is one of a `cat` that began after the call.
pub async fn reads_again(story: &Story, container: &str) {
    story.says_again(container, "good").await;
    story.says_again(container, "good").await;
}

pub fn pid(process: u32) -> Pid {
    i32::try_from(process).ok().and_then(Pid::from_raw).unwrap()
}
