//! Programs go on when the mount process dies: another one continues on the same descriptor.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mounter::handover::client::{fetch, hand_over};
use mounter::handover::{MountReply, MountRequest, Purpose};
use s3_csi_tests::killer::{at_once, kill, while_killing};
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, bucket, eventually};
use s3_csi_tests::within;
use xtask::s3::ALICE;

use crate::files::served;

/// How long a mount process lives, at the longest: it has to be started and to do something.
pub(crate) const LIFE: Duration = Duration::from_millis(600);

pub(crate) fn content(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((at / 7 + seed * 31) % 251).unwrap()).collect()
}

/// Runs a shell script on the mount, and returns what it prints.
pub(crate) fn shell(folder: PathBuf, script: &str) -> String {
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(folder).stdin(Stdio::null());
    let output = within(script, LIMIT * 2, move || shell.output().unwrap());
    assert!(output.status.success() && output.stderr.is_empty(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn readers_do_not_notice_that_mount_processes_die() {
    let (client, pod, served) = served("survive-readers", &[]);
    let large = content(48 << 20, 1);
    client.put("survive-readers", "large", &large).unwrap();
    let names: Vec<String> = (0..300).map(|number| format!("file-{number:04}")).collect();
    for name in &names {
        client.put("survive-readers", &format!("folder/{name}"), name.as_bytes()).unwrap();
    }
    let ((), kills) = while_killing(&pod, LIFE, at_once, || {
        let read = served.read("large").unwrap();
        assert!(read == large, "wrong bytes");
        assert_eq!(served.list("folder").unwrap(), names);
        for name in &names[..40] {
            assert_eq!(served.read(&format!("folder/{name}")).unwrap(), name.as_bytes());
        }
        let listed =
            shell(served.path("folder"), "cd \"$1\" && find . -type f -size -2 | wc -l && ls -l | wc -l");
        assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), ["300", "301"]);
    });
    assert!(kills > 0);
}

/// A program that has something open, and goes on when it gets a line. A test must not have files open itself while it starts
/// programs and nothing serves the mount: each of them closes its copies, and waits for the answer.
pub(crate) struct Waiting(Child);

impl Waiting {
    /// It prints `ready` and reads a line before it goes on.
    pub(crate) fn start(program: &str, arguments: &[&str], path: &Path) -> Self {
        let mut command = Command::new(program);
        let command = command.args(arguments).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; "ready\n".len()]).unwrap();
        Self(child)
    }

    pub(crate) fn finish(mut self) -> String {
        // It may have had enough to go on, and have ended.
        let _ = self.0.stdin.take().unwrap().write_all(b"go\n");
        let output = within("a program", LIMIT, move || self.0.wait_with_output().unwrap());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

const READ_MAPPED: &str = "
import mmap, os, sys, zlib
file = os.open(sys.argv[1], os.O_RDONLY)
mapped = mmap.mmap(file, 0, prot=mmap.PROT_READ)
mapped[0]
print('ready', flush=True)
sys.stdin.readline()
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
print(zlib.crc32(mapped))
";

#[test]
fn what_programs_have_open_stays_open() {
    let (client, pod, served) = served("survive-open", &[]);
    let large = content(4 << 20, 2);
    client.put("survive-open", "folder/large", &large).unwrap();
    let names: Vec<String> = (0..1500).map(|number| format!("{number:05}")).collect();
    for name in &names {
        client.put("survive-open", &format!("many/{name}"), b"x").unwrap();
    }
    let in_folder = Waiting::start(
        "sh",
        &["-c", "cd \"$1\" && echo ready && read -r _ && cat ./large | wc -c", "sh"],
        &served.path("folder"),
    );
    let mapped = Waiting::start("python3", &["-c", READ_MAPPED], &served.path("folder/large"));
    let file = served.touch("folder/large", |path| File::open(path)).unwrap();
    let idle = served.touch("folder/large", |path| File::open(path)).unwrap();
    let read = |file: &File, at: usize| {
        let file = file.try_clone().unwrap();
        within("a read", LIMIT, move || {
            let mut buffer = vec![0; 4096];
            file.read_exact_at(&mut buffer, at as u64).map(|()| buffer)
        })
    };
    let mut stream = served.touch("many", |path| fs::read_dir(path)).unwrap();
    let mut listed = Vec::new();
    for round in 0..6 {
        let at = round << 19;
        assert_eq!(read(&file, at).unwrap(), large[at..at + 4096], "round {round}");
        let (rest, more) = within("a listing", LIMIT, move || {
            let more: Vec<_> = stream
                .by_ref()
                .take(200)
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            (stream, more)
        });
        stream = rest;
        listed.extend(more);
        kill(&pod, at_once);
    }
    listed.extend(within("a listing", LIMIT, move || {
        stream.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    }));
    listed.sort();
    assert_eq!(listed, names, "each entry once");
    assert_eq!(read(&idle, 4096).unwrap(), large[4096..8192]);
    assert_eq!(in_folder.finish(), large.len().to_string());
    let expected = shell(
        PathBuf::new(),
        "python3 -c 'import zlib; print(zlib.crc32(bytes(((at // 7 + 62) % 251) for at in range(4 << 20))))'",
    );
    assert_eq!(mapped.finish(), expected.trim());
}

/// Shells do not look at the result of a close. What `dd` says is checked.
#[test]
fn small_files_are_complete_whenever_mount_processes_die() {
    let (client, pod, served) = served("survive-writers", &["--allow-overwrite", "--allow-delete"]);
    let mut round = 0;
    let (names, kills) = while_killing(&pod, LIFE, at_once, || {
        round += 1;
        let script = format!(
            "cd \"$1\" && mkdir d{round} && for i in $(seq 60); do
                echo {round}-$i > d{round}/$i
                {{ echo a; /bin/echo b; }} > d{round}/two-$i
                head -c 100000 /dev/zero | dd of=d{round}/dd-$i bs=10000 conv=fsync status=none || echo dd $i
                echo old > d{round}/x; echo $i > d{round}/x; rm d{round}/x || echo rm $i
                mkdir d{round}/e && rmdir d{round}/e || echo rmdir $i
            done"
        );
        assert_eq!(shell(served.path(""), &script), "", "round {round}");
        round
    });
    assert!(kills > 0);
    for round in 1..=names {
        for number in 1..=60 {
            let get = |name: &str| client.get("survive-writers", &format!("d{round}/{name}")).unwrap();
            assert_eq!(get(&number.to_string()), format!("{round}-{number}\n").as_bytes());
            assert_eq!(get(&format!("two-{number}")), b"a\nb\n");
            assert_eq!(get(&format!("dd-{number}")), vec![0; 100_000]);
        }
    }
    assert_eq!(client.objects("survive-writers", "").unwrap().len(), names * 180);
}

#[test]
fn a_file_that_is_being_written_is_written_on() {
    let (client, pod, served) = served("survive-writer", &["--allow-overwrite"]);
    let all = content(6 << 20, 3);
    client.put("survive-writer", "replaced", b"old").unwrap();
    for name in ["new", "replaced"] {
        let mut file = served.touch(name, |path| File::create(path)).unwrap();
        for part in all.chunks(1 << 20) {
            let part = part.to_vec();
            file = within("a write", LIMIT, move || file.write_all(&part).map(|()| file)).unwrap();
            kill(&pod, at_once);
        }
        within("a close", LIMIT, move || file.sync_all().map(|()| drop(file))).unwrap();
        assert!(client.get("survive-writer", name).unwrap() == all, "{name}");
    }
}

/// It is published by each close, and continued in between.
#[test]
fn a_file_that_several_programs_write_is_written_on() {
    let (client, pod, served) = served("survive-continued", &[]);
    let script =
        "exec 3> \"$1\" && echo ready && for i in 1 2 3 4 5; do read -r _; /bin/echo $i >&3; echo done; done";
    let mut shell = Waiting::start("sh", &["-c", script, "sh"], &served.path("log"));
    for _ in 0..5 {
        kill(&pod, at_once);
        shell.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        shell.0.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
        kill(&pod, at_once);
    }
    shell.finish();
    eventually("the file is complete", || {
        client.get("survive-continued", "log").is_ok_and(|it| it == b"1\n2\n3\n4\n5\n")
    });
}

/// As when a bug kills each of them with the same answer of the server. Programs read all the time.
#[test]
fn many_mounts_survive_together() {
    let client = bucket(ALICE, "survive-many");
    let mounts: Vec<_> = (0..20)
        .map(|number| {
            let all = content(2 << 20, number);
            client.put("survive-many", &format!("{number}/file"), &all).unwrap();
            let pod = MountpointPod::start();
            let served = pod.serve(ALICE, "survive-many", &[&format!("--prefix={number}/")]);
            (pod, served, all)
        })
        .collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let done = &done;
        for (_, served, all) in &mounts {
            scope.spawn(move || {
                let until = Instant::now() + LIMIT;
                while !done.load(Ordering::Relaxed) && Instant::now() < until {
                    assert!(served.read("file").unwrap() == *all, "wrong bytes");
                }
            });
        }
        for round in 1..=3 {
            for (pod, ..) in &mounts {
                at_once(pod.mount_process().unwrap());
            }
            for (pod, ..) in &mounts {
                let times = || pod.log().matches("serving, version").count();
                eventually("another mount process serves", || times() > round);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    for (_, served, all) in &mounts {
        assert!(served.read("file").unwrap() == *all, "wrong bytes");
    }
}

/// The node service keeps the descriptor, and the next container of the pod gets it.
#[test]
fn a_mount_outlives_the_container_of_its_mounter() {
    let (client, mut pod, served) = served("survive-container", &[]);
    let large = content(24 << 20, 2);
    client.put("survive-container", "large", &large).unwrap();
    let until = || Instant::now() + LIMIT;
    let descriptor = fetch(pod.comm.path(), until()).unwrap().unwrap().descriptor;
    let read = "exec 3<\"$1/large\"; dd bs=1000 count=1 <&3 2>/dev/null >/dev/null; echo ready; read _; cat <&3 | wc -c";
    let write = "exec 3>\"$1/written\"; printf one, >&3; echo ready; read _; printf two >&3; exec 3>&-; cat \"$1/written\"";
    for name in ["first", "second"] {
        let [reader, writer] = [read, write].map(|script| {
            let script = script.replace("written", name);
            Waiting::start("sh", &["-c", &script, "sh"], &served.path(""))
        });
        pod.end_container();
        pod = pod.restart();
        pod.listening();
        let request = MountRequest::only(Purpose::Continue);
        let reply = hand_over(pod.comm.path(), &request, descriptor.as_fd(), until()).unwrap();
        assert!(matches!(reply, MountReply::Serving(_)), "{reply:?}");
        assert_eq!(writer.finish(), "one,two");
        assert_eq!(reader.finish().trim(), (large.len() - 1000).to_string());
    }
}
