//! A server that accepts and never answers.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use s3_csi_tests::alone::alone;
use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::killer::{between_requests, kill};
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, Served, bucket, eventually, with};
use s3_csi_tests::within;
use xtask::s3::ALICE;

use crate::files::relayed;
use crate::successors::behind;
use crate::survival::Waiting;

/// The client itself notices after 30 s that nothing moves on a connection; the rest is for a busy machine.
const NOTICED_WITHIN: std::time::Duration = LIMIT.saturating_mul(3);

/// How many requests of this mount have no answer yet.
fn waiting(device: u64) -> usize {
    let file = format!("/sys/fs/fuse/connections/{}/waiting", rustix::fs::minor(device));
    fs::read_to_string(file).unwrap().trim().parse().unwrap()
}

fn errno<T: std::fmt::Debug>(outcome: io::Result<T>) -> Option<Errno> {
    outcome.unwrap_err().raw_os_error().map(Errno::from_raw_os_error)
}

#[test]
fn what_needs_no_server_is_answered_while_a_hundred_readers_wait() {
    const READERS: usize = 100;
    let (client, _pod, served, relay) = relayed("silent-for-a-while", &["--server-timeout=3600"]);
    // Larger than what opening a file fetches.
    let content = |number: usize| format!("{number:8}").repeat(140 << 10);
    for number in 0..READERS {
        client.put("silent-for-a-while", &format!("file-{number}"), content(number).as_bytes()).unwrap();
    }
    let open = |number: usize| served.touch(&format!("file-{number}"), |path| File::open(path).unwrap());
    let files: Vec<File> = (0..READERS).map(open).collect();
    let device = served.touch("", |path| fs::metadata(path).unwrap().dev());
    relay.fall_silent();
    let (sender, contents) = mpsc::channel();
    for (number, mut file) in files.into_iter().enumerate() {
        let sender = sender.clone();
        thread::spawn(move || {
            let mut content = String::new();
            let outcome = file.read_to_string(&mut content).map(|_| content);
            let _ = sender.send((number, outcome));
        });
    }
    eventually("all of them wait", || waiting(device) >= READERS);

    let space = served.touch("", |path| rustix::fs::statfs(path)).unwrap();
    assert!(space.f_bavail > 0);
    assert!(served.touch("", |path| fs::metadata(path).map(|root| root.is_dir())).unwrap());

    relay.speak();
    for _ in 0..READERS {
        let (number, outcome) = contents.recv_timeout(LIMIT).unwrap();
        assert!(outcome.unwrap() == content(number), "file {number}");
    }
}

#[test]
fn a_program_gets_an_error_when_the_server_stays_silent_and_its_files_when_it_speaks_again() {
    alone(|| {
        const SIZE: usize = 20 << 20;
        let arguments = ["--server-timeout=5", "--allow-overwrite"];
        let (client, pod, served, relay) = relayed("silent-for-long", &arguments);
        client.put("silent-for-long", "read", &vec![b'r'; SIZE]).unwrap();
        client.put("silent-for-long", "written", b"old").unwrap();
        let reader = served.touch("read", |path| {
            let mut file = File::open(path).unwrap();
            file.read_exact(&mut [0; 4096]).unwrap();
            Arc::new(file)
        });
        let writer = served.touch("written", |path| {
            let mut file = File::create(path).unwrap();
            file.write_all(&[b'w'; 4096]).unwrap();
            Arc::new(file)
        });
        relay.fall_silent();

        assert_eq!(
            errno(served.touch("unknown", |path| fs::metadata(path).map(drop))),
            Some(Errno::IO),
            "a name"
        );
        assert_eq!(errno(served.list("")), Some(Errno::IO), "a listing");
        let (reading, writing) = (Arc::clone(&reader), Arc::clone(&writer));
        let read = thread::spawn(move || {
            within("the rest", NOTICED_WITHIN, move || {
                let mut rest = Vec::new();
                (&*reading).read_to_end(&mut rest)
            })
        });
        let write = thread::spawn(move || within("fsync", NOTICED_WITHIN, move || writing.sync_all()));
        assert_eq!(errno(read.join().unwrap()), Some(Errno::IO), "a read that had begun");
        assert_eq!(errno(write.join().unwrap()), Some(Errno::IO), "a write that had begun");
        within("closing", LIMIT, move || drop((reader, writer)));
        pod.logs("the S3 server is not responding");

        relay.speak();
        // Attempts that the silence has outlived may still be on their way.
        eventually("the server is heard again", || served.list("").is_ok());
        assert!(served.read("read").unwrap() == vec![b'r'; SIZE]);
        assert_eq!(served.read("written").unwrap(), b"old", "a failed upload leaves the old file");
        served.write("written", "new").unwrap();
        assert_eq!(client.get("silent-for-long", "written").unwrap(), b"new");
    });
}

/// Opening a file asks whether it is still the known one. To ask anything else would take as long again.
#[test]
fn a_program_that_opens_a_known_file_waits_for_a_silent_server_once() {
    let client = bucket(ALICE, "silent-opened");
    let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
    let pod = MountpointPod::start();
    let request = pod.request(ALICE, "silent-opened", &["--server-timeout=10"]);
    let served = pod.mount(&with(request, "AWS_ENDPOINT_URL", &faulty.url())).unwrap();
    for (name, size) in [("small", 7), ("large", 3 << 20)] {
        client.put("silent-opened", name, &vec![b'x'; size]).unwrap();
    }
    let late = Fault::Delay(LIMIT);
    // Listings are answered.
    faulty.plan(move |_, line| if line.contains("/silent-opened/?") { Fault::None } else { late });
    for (name, asked) in [("small", "GET"), ("large", "HEAD")] {
        let before = faulty.seen().len();
        assert!(served.list("").unwrap().contains(&name.to_owned()));
        assert_eq!(errno(served.touch(name, |path| File::open(path).map(drop))), Some(Errno::IO));
        let mut made = faulty.seen().split_off(before);
        made.retain(|request| !request.ends_with("/silent-opened/"));
        if asked == "GET" {
            // The S3 client repeats a download that stands still, before anything else could be asked.
            made.dedup();
        }
        assert_eq!(made, [format!("{asked} /silent-opened/{name}")]);
    }
}

/// A part of 8 MiB takes longer than the limit, but the line is never still.
#[test]
fn a_slow_server_is_not_a_silent_one() {
    const SIZE: usize = 12 << 20;
    let (client, _pod, served, relay) = relayed("slow", &["--server-timeout=2"]);
    client.put("slow", "file", &vec![b's'; SIZE]).unwrap();
    let mut file = served.touch("file", |path| File::open(path).unwrap());
    relay.slow_down(1 << 20);
    let content = within("a slow download", NOTICED_WITHIN, move || {
        let mut content = Vec::new();
        file.read_to_end(&mut content).map(|_| content)
    });
    assert!(content.unwrap() == vec![b's'; SIZE]);
}

const WRITE_LATER: &str = "
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(file, b'one,')
print('ready', flush=True)
sys.stdin.readline()
os.write(file, b'two')
os.close(file)
";

/// Asks the mount process, whatever the kernel knows.
fn length(served: &Served, name: &str) -> u64 {
    let found = served.touch(name, |path| {
        rustix::fs::statx(rustix::fs::CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS)
    });
    found.unwrap().stx_size
}

/// The successor of a mount process asks for a file that is being written before it says how large that is.
#[test]
fn other_files_do_not_wait_for_one_that_a_successor_cannot_open_again() {
    let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
    let (client, pod, served) = behind(&faulty, "silent-successor", &["--server-timeout=3600"]);
    client.put("silent-successor", "other", b"other").unwrap();
    client.put("silent-successor", "folder/deep", b"deep").unwrap();
    assert_eq!(served.read("other").unwrap(), b"other");
    let writer = Waiting::start("python3", &["-c", WRITE_LATER], &served.path("written"));
    let (speak, silence) = mpsc::channel::<()>();
    let (silence, asked) = (Mutex::new(silence), Arc::new(AtomicUsize::new(0)));
    let unanswered = Arc::clone(&asked);
    faulty.plan(move |_, line| {
        if line.contains("/silent-successor/written") {
            unanswered.fetch_add(1, Ordering::Relaxed);
            let _ = silence.lock().unwrap().recv();
        }
        Fault::None
    });
    kill(&pod, between_requests);
    eventually("the file is being opened again", || asked.load(Ordering::Relaxed) > 0);

    length(&served, "");
    assert_eq!(length(&served, "other"), 5);
    assert_eq!(served.read("other").unwrap(), b"other");
    let absent = served.touch("absent", |path| fs::metadata(path).map(drop));
    assert_eq!(errno(absent), Some(Errno::NOENT));
    assert_eq!(served.list("folder").unwrap(), ["deep"]);

    drop(speak);
    assert_eq!(length(&served, "written"), 4);
    writer.finish();
    assert_eq!(client.get("silent-successor", "written").unwrap(), b"one,two");
}

/// The S3 client repeats the request, and the server refuses what is there already.
#[test]
fn an_upload_whose_answer_is_lost_is_complete() {
    for (bucket_name, arguments) in
        [("lost-answer", &[][..]), ("lost-answer-overwrite", &["--allow-overwrite"])]
    {
        let client = bucket(ALICE, bucket_name);
        let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
        let pod = MountpointPod::start();
        let request = with(pod.request(ALICE, bucket_name, arguments), "AWS_ENDPOINT_URL", &faulty.url());
        let served = pod.mount(&request).unwrap();
        for name in ["empty", "small"] {
            let sent = AtomicUsize::new(0);
            faulty.plan(move |_, line| {
                // Each second one is a repetition.
                if line.starts_with("PUT ") && sent.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
                    Fault::DropAnswer
                } else {
                    Fault::None
                }
            });
            let content = if name == "empty" { "" } else { "one" };
            let file = served.touch(name, |path| File::create(path)).unwrap();
            let written = within("a file", LIMIT, move || {
                (&file).write_all(content.as_bytes())?;
                file.sync_all()?;
                (&file).write_all(b",two")?;
                file.sync_all()
            });
            written.unwrap_or_else(|error| panic!("{bucket_name} {name}: {error}"));
            assert_eq!(client.get(bucket_name, name).unwrap(), format!("{content},two").as_bytes());
        }
    }
}
