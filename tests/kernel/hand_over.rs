//! The mounter and its end of the hand-over, with everything that can go wrong on a socket.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mounter::channel::{HandOverError, connect, hand_over, send};
use mounter::order::Order;
use mounter::reply::{Code, Reply};
use mounter::{ERROR, frame};
use rustix::process::{Pid, Signal, kill_process};
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, USER, bucket, eventually, mount_fuse, with};
use xtask::s3::ALICE;

fn soon() -> Instant {
    Instant::now() + LIMIT
}

fn open_descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// What the mounter answers to these bytes.
fn answer_to(pod: &MountpointPod, bytes: &[u8]) -> String {
    let mut stream = connect(pod.comm.path(), soon()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // Then comes the reset of one who did not read it all.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn bad_messages_are_refused_and_leave_nothing_open() {
    let pod = MountpointPod::start();
    let pid = pod.process.id();
    // One after the other: whoever asked whether somebody listens is gone by the time this is answered.
    assert!(answer_to(&pod, b"GET / HTTP/1.1\r\n\r\n").contains("garbled"));
    let before = open_descriptors(pid);
    let order = frame::encode(&Order { bucket: "bucket".into(), ..Order::default() }).unwrap();
    for round in 0..3 {
        assert!(answer_to(&pod, b"GET / HTTP/1.1\r\n\r\n").contains("garbled"), "round {round}");
        assert!(answer_to(&pod, b"s3m\x09\0\0\0\0").contains("wrong-version"));
        assert!(answer_to(&pod, b"s3m\x01\x7f\0\0\0").contains("garbled"));
        assert!(answer_to(&pod, &order).contains("wrong-descriptor"));
        let null = fs::File::open("/dev/null").unwrap();
        let (_point, device) = mount_fuse(false);
        for several in [vec![null.as_fd()], vec![device.as_fd(), device.as_fd()], vec![null.as_fd(); 8]] {
            let stream = connect(pod.comm.path(), soon()).unwrap();
            send(&stream, &order, &several, soon()).unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let mut answer = Vec::new();
            let _ = (&stream).read_to_end(&mut answer);
            assert!(String::from_utf8_lossy(&answer).contains("wrong-descriptor"));
        }
        drop(connect(pod.comm.path(), soon()).unwrap());
        // Half a message, then silence: the next peer waits no longer than the deadline.
        let mut silent = connect(pod.comm.path(), soon()).unwrap();
        silent.write_all(&order[..9]).unwrap();
        assert!(answer_to(&pod, b"GET / HTTP/1.1\r\n\r\n").contains("garbled"));
    }
    eventually("every descriptor is closed", || open_descriptors(pid) <= before);
    bucket(ALICE, "after-bad-messages");
    let served = pod.serve(ALICE, "after-bad-messages", &[]);
    assert_eq!(served.list("").unwrap(), [""; 0]);
}

#[test]
fn only_root_may_hand_over_and_the_socket_is_private() {
    let pod = MountpointPod::start();
    assert_eq!(fs::metadata(pod.socket()).unwrap().permissions().mode() & 0o777, 0o600);
    let answer = |user: u32| {
        let output = Command::new("socat")
            .args(["-t", "5", "-", &format!("UNIX-CONNECT:{}", pod.socket().display())])
            .uid(user)
            .gid(USER)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    assert!(answer(USER).contains("user 1000 may not hand over mounts"), "{}", answer(USER));
    assert!(answer(1234).contains("Permission denied"), "{}", answer(1234));
}

#[test]
fn it_serves_one_mount_and_says_so_to_others() {
    let pod = MountpointPod::start();
    bucket(ALICE, "busy");
    let order = pod.order(ALICE, "busy", &[]);
    let served = pod.mount(&order).unwrap();
    assert!(served.facts.pid > 0 && !served.facts.version.is_empty());
    let refused = pod.mount(&order).map(drop).unwrap_err();
    assert_eq!(refused.code, Code::Busy);
    assert!(refused.message.contains("`busy`"));
    assert_eq!(served.list("").unwrap(), [""; 0], "the first mount is untouched");
    assert!(pod.log().contains(r#""volume_id":"volume-of-busy""#));
}

#[test]
fn a_refused_mount_can_be_tried_again_when_its_cause_is_gone() {
    let pod = MountpointPod::start();
    let order = pod.order(ALICE, "comes-later", &[]);
    let refused = pod.mount(&order).map(drop).unwrap_err();
    assert_eq!(refused.code, Code::NoSuchBucket);
    let error = pod.comm.path().join(ERROR);
    assert_eq!(fs::read_to_string(&error).unwrap(), refused.message);
    bucket(ALICE, "comes-later");
    let served = pod.mount(&order).unwrap();
    assert_eq!(served.list("").unwrap(), [""; 0]);
    assert!(!error.exists(), "it is about the mount before");
}

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
fn an_unmount_that_nobody_asked_for_is_a_failure() {
    let mut pod = MountpointPod::start();
    bucket(ALICE, "unasked");
    pod.serve(ALICE, "unasked", &[]).unmount();
    assert_eq!(pod.ended().code(), Some(1));
    let reason = fs::read_to_string(&pod.termination_log).unwrap();
    assert!(reason.contains("unmounted without being asked for"), "{reason}");
}

#[test]
fn a_signal_to_stop_ends_it_only_while_it_does_not_serve() {
    let mut idle = MountpointPod::start();
    kill_process(Pid::from_child(&idle.process), Signal::TERM).unwrap();
    assert_eq!(idle.ended().code(), Some(1));

    let mut pod = MountpointPod::start();
    bucket(ALICE, "signals").put("signals", "file", b"still here").unwrap();
    let served = pod.serve(ALICE, "signals", &[]);
    kill_process(Pid::from_child(&pod.process), Signal::TERM).unwrap();
    eventually("the signal is seen", || pod.log().contains("SIGTERM ignored"));
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
fn a_killed_mount_process_is_reported() {
    let mut pod = MountpointPod::start();
    bucket(ALICE, "killed-server");
    let served = pod.serve(ALICE, "killed-server", &[]);
    served.kill();
    assert_eq!(pod.ended().code(), Some(1));
    let reason = fs::read_to_string(&pod.termination_log).unwrap();
    assert!(reason.contains("ended with signal: 9 (SIGKILL)"), "{reason}");
    assert_eq!(fs::read_to_string(pod.comm.path().join(ERROR)).unwrap(), reason);
    let error = served.read("file").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()));
}

#[test]
fn secrets_are_in_no_log_even_when_everything_is_logged() {
    let pod = MountpointPod::start();
    bucket(ALICE, "no-secrets");
    let order = pod.order(ALICE, "no-secrets", &["--debug", "--debug-crt"]);
    let served = pod.mount(&order).unwrap();
    served.list("").unwrap();
    served.write("new", "content").unwrap();
    let log = pod.log();
    assert!(log.contains("ListObjectsV2"), "the log is as talkative as it gets");
    assert!(!log.contains(ALICE.secret_key));
}

#[test]
fn a_program_that_tells_its_secrets_is_not_quoted() {
    let secret = "word-that-nobody-may-see";
    let folder =
        stand_in("echo \"out $AWS_SECRET_ACCESS_KEY\"; echo \"err $AWS_SECRET_ACCESS_KEY\" >&2; exit 3");
    let pod = MountpointPod::start_with(&["--mountpoint-bin-dir", folder.path().to_str().unwrap()]);
    let order = with(pod.order(ALICE, "bucket", &[]), "AWS_SECRET_ACCESS_KEY", secret);
    let refused = pod.mount(&order).map(drop).unwrap_err();
    assert!(refused.message.contains("err ***"), "{refused}");
    let written = fs::read_to_string(pod.comm.path().join(ERROR)).unwrap();
    for text in [&refused.message, &written, &pod.log()] {
        assert!(!text.contains(secret), "{text}");
    }
}

/// A program in the place of `mount-s3`, in a folder that everybody can read.
fn stand_in(script: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/run").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = folder.path().join("mount-s3");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

#[test]
fn a_signal_to_stop_is_remembered_while_a_mount_fails() {
    let folder = stand_in("until [ -e \"$(dirname \"$0\")/told-to-stop\" ]; do sleep 0.1; done; exit 3");
    let mut pod = MountpointPod::start_with(&["--mountpoint-bin-dir", folder.path().to_str().unwrap()]);
    let order = pod.order(ALICE, "bucket", &[]);
    let process = Pid::from_child(&pod.process);
    std::thread::scope(|scope| {
        scope.spawn(|| pod.mount(&order).map(drop).unwrap_err());
        eventually("the mount is being started", || pod.log().contains("mount handed over"));
        kill_process(process, Signal::TERM).unwrap();
        fs::write(folder.path().join("told-to-stop"), "").unwrap();
    });
    assert_eq!(pod.ended().code(), Some(1));
    let reason = fs::read_to_string(&pod.termination_log).unwrap();
    assert!(reason.contains("told to stop"), "{reason}");
}

#[test]
fn another_program_can_serve_instead() {
    let folder = stand_in(
        "cd $(dirname $0)\nfor word in \"$@\"; do echo \"$word\"; done > told\nenv >> told\n\
         readlink /proc/$$/fd/0 >> told\necho 'bucket stand-in is mounted at /dev/fd/0'\nexec sleep 300",
    );
    let told = folder.path().join("told");
    let mut pod = MountpointPod::start_with(&["--mountpoint-bin-dir", folder.path().to_str().unwrap()]);
    let order = pod.order(ALICE, "stand-in", &["--allow-delete", "--prefix=a b/"]);
    let served = pod.mount(&order).unwrap();
    let told = fs::read_to_string(told).unwrap();
    let mut lines = told.lines();
    let argv: Vec<&str> = lines.by_ref().take(7).collect();
    assert_eq!(
        argv,
        [
            "stand-in",
            "/dev/fd/0",
            "--foreground",
            "--allow-root",
            "--force-path-style",
            "--allow-delete",
            "--prefix=a b/"
        ]
    );
    assert_eq!(told.lines().last(), Some("/dev/fuse"), "{told}");
    assert!(told.contains("AWS_PROFILE=s3-csi") && told.contains("AWS_EC2_METADATA_DISABLED=true"));
    assert!(!told.contains("S3_CSI_CLUSTER"), "its environment is the order's and nothing else");
    served.kill();
    assert_eq!(pod.ended().code(), Some(1));
}

#[test]
fn a_program_that_fails_without_a_verdict_is_quoted() {
    let folder = stand_in("echo 'Error: the moon is wrong' >&2; exit 3");
    let pod = MountpointPod::start_with(&["--mountpoint-bin-dir", folder.path().to_str().unwrap()]);
    let refused = pod.mount(&pod.order(ALICE, "bucket", &[])).map(drop).unwrap_err();
    assert_eq!(refused.code, Code::Failed);
    assert!(refused.message.contains("exit status: 3") && refused.message.contains("the moon is wrong"));
    fs::remove_file(folder.path().join("mount-s3")).unwrap();
    let refused = pod.mount(&pod.order(ALICE, "bucket", &[])).map(drop).unwrap_err();
    assert!(refused.message.contains("cannot start"), "{refused}");
    assert_eq!(fs::read_to_string(pod.comm.path().join(ERROR)).unwrap(), refused.message);
}

#[test]
fn nobody_listens_where_there_is_no_mounter() {
    let folder = tempfile::tempdir_in("/run").unwrap();
    let (_point, device) = mount_fuse(false);
    let until = Instant::now() + Duration::from_secs(1);
    let error = hand_over(folder.path(), &Order::default(), device.as_fd(), until);
    assert!(matches!(error, Err(HandOverError::Connect(_))));
}

#[test]
fn a_reply_that_never_comes_is_an_error_in_time() {
    let folder = tempfile::tempdir_in("/run").unwrap();
    let listener = std::os::unix::net::UnixListener::bind(folder.path().join(mounter::SOCKET)).unwrap();
    let (_point, device) = mount_fuse(false);
    let reply: Result<Reply, _> =
        hand_over(folder.path(), &Order::default(), device.as_fd(), Instant::now() + Duration::from_secs(5));
    assert!(matches!(reply, Err(HandOverError::Receive(_))));
    drop(listener);
}
