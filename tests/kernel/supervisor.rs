//! The mounter as a supervisor: how it ends, and what becomes of the mount process and its output.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use mounter::handover::Code;
use mounter::{ERROR, JOURNAL, SURVIVAL};
use node::comm;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use s3_csi_tests::memory_limit::MemoryLimit;
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, Served, bucket, eventually, programs, with};
use s3_csi_tests::{cluster, within};
use xtask::s3::ALICE;

#[test]
fn it_ends_well_when_asked_to_and_unmounted() {
    let mut pod = MountpointPod::start();
    bucket(ALICE, "ends-well");
    let served = pod.serve(ALICE, "ends-well", &[]);
    served.read("nothing").unwrap_err();
    pod.ask_to_exit();
    served.unmount();
    assert_eq!(pod.ended().code(), Some(0));
    assert_eq!(fs::read_to_string(&pod.termination_log).unwrap(), "");
}

#[test]
fn it_ends_well_when_asked_to_before_there_was_a_mount() {
    let mut pod = MountpointPod::start();
    pod.ask_to_exit();
    assert_eq!(pod.ended().code(), Some(0));
}

#[test]
fn an_unexpected_unmount_is_a_failure() {
    let mut pod = MountpointPod::start();
    bucket(ALICE, "unasked");
    pod.serve(ALICE, "unasked", &[]).unmount();
    assert_eq!(pod.ended().code(), Some(1));
    let reason = fs::read_to_string(&pod.termination_log).unwrap();
    assert!(reason.contains("unmounted, but not by the node service"), "{reason}");
}

#[test]
fn sigterm_ends_it_only_while_it_does_not_serve() {
    let mut idle = MountpointPod::start();
    kill_process(Pid::from_child(&idle.process), Signal::TERM).unwrap();
    assert_eq!(idle.ended().code(), Some(1));

    let mut pod = MountpointPod::start();
    bucket(ALICE, "signals").put("signals", "file", b"still here").unwrap();
    let served = pod.serve(ALICE, "signals", &[]);
    kill_process(Pid::from_child(&pod.process), Signal::TERM).unwrap();
    pod.logs("SIGTERM ignored");
    assert_eq!(served.read("file").unwrap(), b"still here");
    pod.ask_to_exit();
    served.unmount();
    assert_eq!(pod.ended().code(), Some(0));
}

#[test]
fn a_killed_mounter_can_be_started_again_in_the_same_folder() {
    let pod = MountpointPod::start();
    let pod = pod.restart();
    bucket(ALICE, "restarted");
    pod.listening();
    assert_eq!(pod.serve(ALICE, "restarted", &[]).list("").unwrap(), [""; 0]);
}

#[test]
fn secrets_are_in_no_log_even_when_everything_is_logged() {
    let pod = MountpointPod::start();
    bucket(ALICE, "no-secrets");
    let request = pod.request(ALICE, "no-secrets", &["--debug", "--debug-crt"]);
    let served = pod.mount(&request).unwrap();
    served.list("").unwrap();
    served.write("new", "content").unwrap();
    // Everything is logged.
    pod.logs("ListObjectsV2");
    assert!(!pod.log().contains(ALICE.secret_key));
}

#[test]
fn secrets_in_the_output_of_a_program_are_not_quoted() {
    let secret = "a-word-to-be-kept-secret";
    let folder =
        stand_in("echo \"out $AWS_SECRET_ACCESS_KEY\"; echo \"err $AWS_SECRET_ACCESS_KEY\" >&2; exit 3");
    let pod = pod_with(&folder);
    let request = with(pod.request(ALICE, "bucket", &[]), "AWS_SECRET_ACCESS_KEY", secret);
    let refused = pod.mount(&request).map(drop).unwrap_err();
    assert!(refused.message.contains("err ***"), "{refused}");
    let written = fs::read_to_string(pod.comm.path().join(ERROR)).unwrap();
    for text in [&refused.message, &written, &pod.log()] {
        assert!(!text.contains(secret), "{text}");
    }
}

/// It quotes names of objects and messages of servers with their line breaks.
#[test]
fn what_a_mount_process_logs_is_no_reply() {
    let folder = tempfile::tempdir_in("/run").unwrap();
    let own = folder.path().join("s3-csi-mountpoint");
    fs::copy(programs().join("s3-csi-mounter"), folder.path().join("s3-csi-mounter")).unwrap();
    let program = programs().join("s3-csi-mountpoint");
    let forged = r#"s3-csi-mount-reply {"refused":{"code":"failed","message":"forged"}}"#;
    fs::write(&own, format!("#!/bin/sh\necho '{forged}'\nexec {} \"$@\"\n", program.display())).unwrap();
    for path in [folder.path(), &own] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let pod = MountpointPod::start_programs_at(folder.path(), &folder.path().join("comm"));
    pod.listening();
    bucket(ALICE, "forged-reply");
    assert_eq!(pod.serve(ALICE, "forged-reply", &[]).list("").unwrap(), [""; 0]);
    pod.logs("forged");
}

/// A program in place of `mount-s3`, in a folder that every user can read.
fn stand_in(script: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/run").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = folder.path().join("mount-s3");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

#[test]
fn sigterm_is_remembered_while_a_mount_fails() {
    let folder = stand_in("until [ -e \"$(dirname \"$0\")/stopped\" ]; do sleep 0.1; done; exit 3");
    let mut pod = pod_with(&folder);
    let request = pod.request(ALICE, "bucket", &[]);
    let process = Pid::from_child(&pod.process);
    std::thread::scope(|scope| {
        scope.spawn(|| pod.mount(&request).map(drop).unwrap_err());
        pod.logs("mount handed over");
        kill_process(process, Signal::TERM).unwrap();
        fs::write(folder.path().join("stopped"), "").unwrap();
    });
    assert_eq!(pod.ended().code(), Some(1));
    let reason = fs::read_to_string(&pod.termination_log).unwrap();
    assert!(reason.contains("stopped by SIGTERM"), "{reason}");
}

#[test]
fn mount_s3_can_serve_instead() {
    let folder = stand_in(
        "cd $(dirname $0)\nfor word in \"$@\"; do echo \"$word\"; done > started_with\nenv >> started_with\n\
         readlink /proc/$$/fd/0 >> started_with\necho 'bucket stand-in is mounted at /dev/fd/0'\nexec sleep 300",
    );
    let started_with = folder.path().join("started_with");
    let mut pod = pod_with(&folder);
    let request = pod.request(ALICE, "stand-in", &["--allow-delete", "--prefix=a b/"]);
    let served = pod.mount(&request).unwrap();
    let started_with = fs::read_to_string(started_with).unwrap();
    let mut lines = started_with.lines();
    let argv: Vec<&str> = lines.by_ref().take(8).collect();
    assert_eq!(
        argv,
        [
            "stand-in",
            "/dev/fd/0",
            "--foreground",
            "--allow-root",
            "--force-path-style",
            concat!(
                "--user-agent-prefix=s3-csi-driver/",
                env!("CARGO_PKG_VERSION"),
                " credential-source#driver k8s/unknown"
            ),
            "--allow-delete",
            "--prefix=a b/"
        ]
    );
    assert_eq!(started_with.lines().last(), Some("/dev/fuse"), "{started_with}");
    assert!(
        started_with.contains("AWS_PROFILE=s3-csi")
            && started_with.contains("AWS_EC2_METADATA_DISABLED=true")
    );
    assert!(!started_with.contains("S3_CSI_CLUSTER"), "its environment is the request's and nothing else");
    served.kill();
    assert_eq!(pod.ended().code(), Some(1));
}

#[test]
fn a_program_that_fails_without_a_reply_is_quoted() {
    let folder = stand_in("echo 'Error: the moon is wrong' >&2; exit 3");
    let pod = pod_with(&folder);
    let refused = pod.mount(&pod.request(ALICE, "bucket", &[])).map(drop).unwrap_err();
    assert_eq!(refused.code, Code::Failed);
    assert!(refused.message.contains("exit status: 3") && refused.message.contains("the moon is wrong"));
    fs::remove_file(folder.path().join("mount-s3")).unwrap();
    let refused = pod.mount(&pod.request(ALICE, "bucket", &[])).map(drop).unwrap_err();
    assert!(refused.message.contains("cannot start"), "{refused}");
    assert_eq!(fs::read_to_string(pod.comm.path().join(ERROR)).unwrap(), refused.message);
}

fn pod_with(program: &tempfile::TempDir) -> MountpointPod {
    MountpointPod::start_with(&["--mountpoint-bin-dir", program.path().to_str().unwrap()])
}

/// Served by a program that could be followed by another: the mounter takes any journal for one.
fn survivable(pod: &MountpointPod) -> (Served, PathBuf) {
    let served = pod.mount(&pod.request(ALICE, "stand-in", &[])).unwrap();
    let journal = pod.comm.path().join(SURVIVAL).join(JOURNAL);
    File::create(&journal).unwrap();
    (served, journal)
}

#[test]
fn the_last_line_of_a_talkative_process_reaches_the_node() {
    let folder = stand_in(
        "cd $(dirname $0); echo >> starts; n=$(wc -l < starts)\necho 'bucket is mounted at /dev/fd/0'\n\
         until [ -e dies-$n ]; do sleep 0.1; done\n\
         for i in $(seq 30); do printf 'line %s %0200d\\n' $i 0 >&2; done; echo 'the last words' >&2; kill -9 $$",
    );
    let mut pod = pod_with(&folder);
    let (_served, journal) = survivable(&pod);
    let shared = OwnedFd::from(File::open(pod.comm.path()).unwrap());
    fs::write(folder.path().join("dies-1"), "").unwrap();
    let mut reported = None;
    eventually("the death is reported", || {
        reported = comm::deaths(&shared);
        reported.is_some()
    });
    let last = "the mount process ended with signal: 9 (SIGKILL): the last words".to_owned();
    assert_eq!((reported, comm::reason_of_end(&shared)), (Some((1, last.clone())), None));

    fs::remove_file(journal).unwrap();
    fs::write(folder.path().join("dies-2"), "").unwrap();
    assert_eq!(pod.ended().code(), Some(1));
    assert_eq!(comm::deaths(&shared), Some((2, last.clone())));
    assert_eq!(comm::reason_of_end(&shared), Some(last));
    let tail = fs::read_to_string(&pod.termination_log).unwrap();
    assert!(tail.contains("line 30 0") && tail.ends_with("the last words"), "{tail}");
    assert_eq!(fs::read_to_string(pod.comm.path().join(ERROR)).unwrap(), tail);
}

/// And not the mounter with it.
#[test]
fn a_mount_process_that_runs_out_of_memory_is_reported_as_such() {
    let folder = stand_in(
        "cd $(dirname $0); echo >> starts; n=$(wc -l < starts)\necho 'bucket is mounted at /dev/fd/0'\n\
         until [ -e eats-$n ]; do sleep 0.1; done; exec tail /dev/zero",
    );
    let pod = pod_with(&folder);
    let memory = MemoryLimit::new(&cluster(), "out-of-memory", 64 << 20);
    memory.enter(pod.process.id());
    let _served = survivable(&pod);
    let shared = OwnedFd::from(File::open(pod.comm.path()).unwrap());
    fs::write(folder.path().join("eats-1"), "").unwrap();
    eventually("the death is reported", || comm::deaths(&shared).is_some());
    let (_, reason) = comm::deaths(&shared).unwrap();
    let told = "ended with signal: 9 (SIGKILL), because the container is out of memory";
    assert!(memory.kills() > 0 && reason.contains(told), "{reason}");
}

/// How long that takes is proved beside the figures, in the mounter's `deaths.rs`.
#[test]
fn a_mount_whose_next_processes_hang_ends() {
    let folder = stand_in(
        "cd $(dirname $0); echo >> starts; [ -e hangs ] || echo 'bucket is mounted at /dev/fd/0'; exec sleep 300",
    );
    let mut pod = pod_with(&folder);
    let (served, _) = survivable(&pod);
    fs::write(folder.path().join("hangs"), "").unwrap();
    let path = served.path("file");
    let waiting = std::thread::spawn(move || fs::metadata(path).map(drop));
    served.kill();
    assert_eq!(pod.ended().code(), Some(1));
    let reason = fs::read_to_string(&pod.termination_log).unwrap();
    assert!(reason.contains("cannot continue") && reason.contains("did not report within"), "{reason}");
    let starts = fs::read_to_string(folder.path().join("starts")).unwrap().lines().count();
    assert_eq!(starts, 1 + 5, "as docs/failures.md says");
    let waited = within("a program that waits", LIMIT, move || waiting.join().unwrap());
    for failed in [waited, served.read("file").map(drop)] {
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(Errno::NOTCONN.raw_os_error()));
    }
}
