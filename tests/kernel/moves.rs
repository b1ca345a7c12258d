//! A mount moves to another Mountpoint Pod, and programs go on. The test does what the node service does.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use mounter::handover::client::{fetch, hand_over};
use mounter::handover::{Code, MountReply, MountRequest, Purpose, Refused};
use mounter::{JOURNAL, SURVIVAL};
use rustix::mount::{UnmountFlags, unmount};
use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, bucket, eventually, with};
use s3_csi_tests::relocation::{Kept, leaves, until};
use s3_csi_tests::within;
use xtask::s3::ALICE;

use crate::files::served;
use crate::successors::behind;
use crate::survival::{Waiting, content, shell};

/// How long a mount stays where it is, at least: programs have to get on, too.
const LIFE: Duration = Duration::from_millis(300);

/// The options of the volume were edited meanwhile. With another prefix, the same names would be other objects.
#[test]
fn a_mount_that_moves_keeps_its_options() {
    let name = "moves-edited";
    let (client, first, served) = served(name, &["--prefix=mine/"]);
    for prefix in ["mine", "other"] {
        client.put(name, &format!("{prefix}/file"), prefix.as_bytes()).unwrap();
    }
    assert_eq!(served.read("file").unwrap(), b"mine");
    let (kept, second) = (Kept::of(&first), MountpointPod::start());
    assert_eq!(leaves(&first), MountReply::Left);
    let reply = kept.arrives_at(&second, name, &["--prefix=other/"]);
    assert!(matches!(reply, MountReply::Serving(_)), "{reply:?}");
    client.put(name, "mine/new", b"new").unwrap();
    assert_eq!(served.read("file").unwrap(), b"mine");
    assert_eq!(served.read("new").unwrap(), b"new");
}

#[test]
fn programs_do_not_notice_that_a_mount_moves() {
    let (name, options) = ("moves", ["--allow-overwrite", "--allow-delete"]);
    let (client, first, served) = served(name, &options);
    let large = content(48 << 20, 1);
    client.put(name, "large", &large).unwrap();
    let (mut here, mut there) = (first, MountpointPod::start());
    let (done, moves) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let kept = Kept::of(&here);
                // It stays if a write takes long on a busy machine.
                if leaves(&here) != MountReply::Left {
                    continue;
                }
                assert!(here.mount_process().is_none());
                let reply = kept.arrives_at(&there, name, &options);
                assert!(matches!(reply, MountReply::Serving(_)), "{reply:?}");
                std::mem::swap(&mut here, &mut there);
                moves.fetch_add(1, Ordering::Relaxed);
                // Each process answers something before the next one takes over.
                served.touch("", |path| std::fs::metadata(path)).unwrap();
                std::thread::sleep(LIFE);
            }
        });
        let mut round = 0;
        while moves.load(Ordering::Relaxed) < 12 || round < 3 {
            assert!(!thread.is_finished());
            round += 1;
            let script = format!(
                "cd \"$1\" && mkdir d{round} && for i in $(seq 20); do
                    echo {round}-$i > d{round}/$i
                    {{ echo a; /bin/echo b; }} > d{round}/two-$i
                    head -c 100000 /dev/zero | dd of=d{round}/dd-$i bs=10000 conv=fsync status=none || echo dd $i
                    echo old > d{round}/x; echo $i > d{round}/x; rm d{round}/x || echo rm $i
                done; find d{round} -type f | wc -l"
            );
            assert_eq!(shell(served.path(""), &script).trim(), "60", "round {round}");
            assert!(served.read("large").unwrap() == large, "wrong bytes");
        }
        done.store(true, Ordering::Relaxed);
        for round in 1..=round {
            let folder = format!("d{round}/");
            assert_eq!(client.objects(name, &folder).unwrap().len(), 60);
            for number in 1..=20 {
                let get = |file: &str| client.get(name, &format!("{folder}{file}")).unwrap();
                assert_eq!(get(&number.to_string()), format!("{round}-{number}\n").as_bytes());
                assert_eq!(get(&format!("two-{number}")), b"a\nb\n");
                assert_eq!(get(&format!("dd-{number}")), vec![0; 100_000]);
            }
        }
    });
}

/// Its bytes are nowhere but in the mount process.
#[test]
fn a_large_file_that_is_being_written_keeps_the_mount_where_it_is() {
    let (client, pod, served) = served("moves-not", &[]);
    let part = content(12 << 20, 2);
    let all = [part.as_slice(), b"more"].concat();
    let file = served.touch("large", |path| File::create(path)).unwrap();
    let file = within("a write", LIMIT, move || (&file).write_all(&part).map(|()| file)).unwrap();
    let MountReply::Refused(Refused { code, message }) = leaves(&pod) else { panic!("it left") };
    assert!(code == Code::Busy && message.contains("1 open files are larger"), "{message}");
    within("a write", LIMIT, move || (&file).write_all(b"more").and_then(|()| file.sync_all())).unwrap();
    assert!(client.get("moves-not", "large").unwrap() == all);
    assert_eq!(leaves(&pod), MountReply::Left, "now it is closed");
}

/// A successor cannot always know whether the copy is its own.
#[test]
fn a_rename_that_is_under_way_keeps_the_mount_where_it_is() {
    let name = "moves-renaming";
    let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
    let (client, pod, served) = behind(&faulty, name, &["--allow-delete", "--rename-by-copy"]);
    client.put(name, "from", b"content").unwrap();
    assert_eq!(served.read("from").unwrap(), b"content");
    let (answer, answers) = mpsc::channel::<()>();
    let (answers, copies) = (Mutex::new(answers), Arc::new(AtomicU32::new(0)));
    let asked = Arc::clone(&copies);
    faulty.plan(move |_, line| {
        if line.starts_with("PUT /moves-renaming/to") {
            asked.fetch_add(1, Ordering::Relaxed);
            let _ = answers.lock().unwrap().recv();
        }
        Fault::None
    });
    let (from, to) = (served.path("from"), served.path("to"));
    let renamed = std::thread::spawn(move || fs::rename(from, to));
    eventually("the file is being copied", || copies.load(Ordering::Relaxed) > 0);
    let MountReply::Refused(Refused { code, .. }) = leaves(&pod) else { panic!("it left") };
    assert_eq!(code, Code::Busy);
    drop(answer);
    within("a rename", LIMIT, move || renamed.join().unwrap()).unwrap();
    assert_eq!(client.objects(name, "").unwrap(), ["to"]);
    assert_eq!(leaves(&pod), MountReply::Left, "now it is done");
}

/// Reads a file that it has open, and writes on in another one.
const USES: &str = "exec 3<\"$1/file\" 4>\"$1/written\"; printf one, >&4; echo ready; read _; cat <&3; printf two >&4; exec 4>&-; \
    cat \"$1/written\"";

/// The other pod may fail to serve it.
#[test]
fn a_mount_that_was_left_can_come_back() {
    let (client, pod, served) = served("moves-back", &[]);
    let other = MountpointPod::start();
    client.put("moves-back", "file", b"content,").unwrap();
    let program = Waiting::start("sh", &["-c", USES, "sh"], &served.path(""));
    let kept = Kept::of(&pod);
    assert_eq!(leaves(&pod), MountReply::Left);
    assert_eq!(leaves(&pod), MountReply::Left, "the node may ask again");
    assert!(!fetch(pod.comm.path(), until()).unwrap().unwrap().is_served);
    let request = with(other.request(ALICE, "moves-back", &[]), "AWS_ENDPOINT_URL", "nowhere");
    let refused = kept.arrives_with(&other, request);
    assert!(matches!(refused, MountReply::Refused(_)), "{refused:?}");
    let request = MountRequest::only(Purpose::Continue);
    let reply = hand_over(pod.comm.path(), &request, kept.descriptor.as_fd(), until()).unwrap();
    assert!(matches!(reply, MountReply::Serving(_)), "{reply:?}");
    assert_eq!(program.finish(), "content,one,two");
    assert_eq!(leaves(&other), MountReply::Left, "nothing is served there");
    let _another = other.serve(ALICE, "moves-back", &[]);
    assert!(pod.comm.path().join(SURVIVAL).join(JOURNAL).exists(), "it still survives its process");
}

/// Else two mount processes could serve it, or one with what another has known long ago.
#[test]
fn a_pod_that_a_mount_has_left_for_another_cannot_continue_it() {
    let (client, pod, served) = served("moves-once", &[]);
    let other = MountpointPod::start();
    client.put("moves-once", "file", b"content").unwrap();
    let kept = Kept::of(&pod);
    assert_eq!(leaves(&pod), MountReply::Left);
    let reply = kept.arrives_at(&other, "moves-once", &[]);
    assert!(matches!(reply, MountReply::Serving(_)), "{reply:?}");
    let request = MountRequest::only(Purpose::Continue);
    let reply = hand_over(pod.comm.path(), &request, kept.descriptor.as_fd(), until()).unwrap();
    assert!(matches!(reply, MountReply::Refused(_)), "{reply:?}");
    let again = kept.arrives_at(&MountpointPod::start(), "moves-once", &[]);
    assert!(matches!(again, MountReply::Refused(_)), "{again:?}");
    assert_eq!(served.read("file").unwrap(), b"content");
}

/// It was evicted, for example, and its folder is unmounted.
#[test]
fn a_mount_outlives_its_pod() {
    let client = bucket(ALICE, "moves-from-dead");
    let (mut pod, other) = (MountpointPod::start_in_memory(64 << 20), MountpointPod::start());
    let served = pod.serve(ALICE, "moves-from-dead", &[]);
    client.put("moves-from-dead", "file", b"content,").unwrap();
    let program = Waiting::start("sh", &["-c", USES, "sh"], &served.path(""));
    let kept = Kept::of(&pod);
    pod.end_container();
    // As the kubelet does: it fails if the folder is in use.
    unmount(pod.comm.path(), UnmountFlags::empty()).unwrap();
    let reply = kept.arrives_at(&other, "moves-from-dead", &[]);
    assert!(matches!(reply, MountReply::Serving(_)), "{reply:?}");
    assert_eq!(program.finish(), "content,one,two");
    assert_eq!(client.get("moves-from-dead", "written").unwrap(), b"one,two");
}
