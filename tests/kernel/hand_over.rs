//! The mounter's end of the hand-over, with everything that can go wrong on a socket.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mounter::ERROR;
use mounter::handover::client::{HandOverError, connect, fetch, hand_over};
use mounter::handover::transfer::send;
use mounter::handover::{Code, MountReply, MountRequest, Purpose, frame};
use rustix::process::Signal;
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, USER, bucket, eventually, mount_fuse};
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
    // Then the connection is reset, because the mounter did not read everything.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn bad_messages_are_refused_and_leave_nothing_open() {
    let pod = MountpointPod::start();
    let pid = pod.process.id();
    // Peers are answered in turn: once this one is, the probe of the start is closed.
    assert!(answer_to(&pod, b"GET / HTTP/1.1\r\n\r\n").contains("garbled"));
    let before = open_descriptors(pid);
    let request =
        frame::encode(&MountRequest { bucket: "bucket".into(), ..MountRequest::default() }).unwrap();
    for round in 0..3 {
        assert!(answer_to(&pod, b"GET / HTTP/1.1\r\n\r\n").contains("garbled"), "round {round}");
        assert!(answer_to(&pod, b"s3m\x09\0\0\0\0").contains("wrong-version"));
        assert!(answer_to(&pod, b"s3m\x01\x7f\0\0\0").contains("garbled"));
        assert!(answer_to(&pod, &request).contains("wrong-descriptor"));
        let null = fs::File::open("/dev/null").unwrap();
        let (_point, device) = mount_fuse(false);
        for several in [vec![null.as_fd()], vec![device.as_fd(), device.as_fd()], vec![null.as_fd(); 8]] {
            let stream = connect(pod.comm.path(), soon()).unwrap();
            send(&stream, &request, &several, soon()).unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let mut answer = Vec::new();
            let _ = (&stream).read_to_end(&mut answer);
            assert!(String::from_utf8_lossy(&answer).contains("wrong-descriptor"));
        }
        drop(connect(pod.comm.path(), soon()).unwrap());
        // After half a message the next peer waits no longer than the deadline.
        let mut stalled = connect(pod.comm.path(), soon()).unwrap();
        stalled.write_all(&request[..9]).unwrap();
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
    let request = pod.request(ALICE, "busy", &[]);
    let served = pod.mount(&request).unwrap();
    assert!(served.facts.pid > 0 && !served.facts.version.is_empty());
    let refused = pod.mount(&request).map(drop).unwrap_err();
    assert_eq!(refused.code, Code::Busy);
    assert!(refused.message.contains("`busy`"));
    assert_eq!(served.list("").unwrap(), [""; 0], "the first mount is untouched");
    pod.logs(r#""volume_id":"volume-of-busy""#);
}

/// As after the node has aborted the mount of a process that did not respond.
#[test]
fn a_stopped_mount_process_is_killed_when_its_aborted_mount_is_handed_over_anew() {
    let mut pod = MountpointPod::start();
    bucket(ALICE, "stopped");
    let request = pod.request(ALICE, "stopped", &[]);
    let served = pod.mount(&request).unwrap();
    served.signal(Signal::STOP);
    assert_eq!(pod.mount(&request).map(drop).unwrap_err().code, Code::Busy, "its connection is there");
    served.abort();
    // Neither a probe nor a broken message ends anything.
    drop(connect(pod.comm.path(), soon()).unwrap());
    assert!(answer_to(&pod, b"GET / HTTP/1.1\r\n\r\n").contains("garbled"));
    let refused = pod.mount(&request).map(drop).unwrap_err();
    assert_eq!(refused.code, Code::Busy);
    assert!(refused.message.contains("was killed"), "{refused}");
    assert_eq!(pod.ended().code(), Some(1));
    assert_eq!(fs::read_to_string(&pod.termination_log).unwrap(), refused.message);
    let program = format!("/proc/{}/exe", served.facts.pid);
    eventually("the process is gone", || fs::read_link(&program).is_err());
    let pod = pod.restart();
    pod.listening();
    assert_eq!(pod.mount(&request).unwrap().list("").unwrap(), [""; 0]);
}

#[test]
fn a_refused_mount_can_be_tried_again_when_its_cause_is_gone() {
    let pod = MountpointPod::start();
    let request = pod.request(ALICE, "comes-later", &[]);
    let refused = pod.mount(&request).map(drop).unwrap_err();
    assert_eq!(refused.code, Code::NoSuchBucket);
    let error = pod.comm.path().join(ERROR);
    assert_eq!(fs::read_to_string(&error).unwrap(), refused.message);
    bucket(ALICE, "comes-later");
    let served = pod.mount(&request).unwrap();
    assert_eq!(served.list("").unwrap(), [""; 0]);
    assert!(!error.exists(), "it was about the previous attempt");
}

#[test]
fn a_hand_over_without_a_mounter_fails() {
    let folder = tempfile::tempdir_in("/run").unwrap();
    let (_point, device) = mount_fuse(false);
    let until = Instant::now() + Duration::from_secs(1);
    let error = hand_over(folder.path(), &MountRequest::default(), device.as_fd(), until);
    assert!(matches!(error, Err(HandOverError::Connect(_))));
}

#[test]
fn a_reply_that_never_comes_is_an_error_in_time() {
    let folder = tempfile::tempdir_in("/run").unwrap();
    let listener = std::os::unix::net::UnixListener::bind(folder.path().join(mounter::SOCKET)).unwrap();
    let (_point, device) = mount_fuse(false);
    let reply: Result<MountReply, _> = hand_over(
        folder.path(),
        &MountRequest::default(),
        device.as_fd(),
        Instant::now() + Duration::from_secs(5),
    );
    assert!(matches!(reply, Err(HandOverError::Receive(_))));
    drop(listener);
}

#[test]
fn a_mounter_that_has_nothing_to_continue_says_so() {
    let pod = MountpointPod::start();
    let refused = fetch(pod.comm.path(), soon()).unwrap().unwrap_err();
    assert!(refused.message.contains("serves no bucket"), "{refused}");
    let (_point, device) = mount_fuse(false);
    let request = MountRequest::only(Purpose::Continue);
    let reply = hand_over(pod.comm.path(), &request, device.as_fd(), soon()).unwrap();
    let MountReply::Refused(refused) = reply else { panic!("{reply:?}") };
    assert!(refused.message.contains("cannot continue a mount"), "{refused}");
}
