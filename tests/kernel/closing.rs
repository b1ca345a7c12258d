//! A mount process dies while a large file is being closed: its successor completes the upload.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use mounter::{JOURNAL, SURVIVAL};
use nix::errno::Errno;
use nix::unistd::close;
use s3_csi_tests::alone::alone;
use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::killer::{between_requests, kill};
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, Served, eventually};
use s3_csi_tests::within;
use xtask::s3::Client;

use crate::copied::{ends, published, unchanged};
use crate::successors::behind;
use crate::survival::content;

/// A part and a bit, and more than is kept in memory.
const LARGE: usize = 12 << 20;

/// Requests that wait in front of the server and never reach it.
struct Held {
    seen: Arc<AtomicUsize>,
    _until_dropped: Sender<()>,
}

impl Held {
    fn all(faulty: &Faulty, are_held: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        let (until_dropped, wait) = mpsc::channel::<()>();
        let (wait, seen) = (Mutex::new(wait), Arc::new(AtomicUsize::new(0)));
        let held = Self { seen: Arc::clone(&seen), _until_dropped: until_dropped };
        faulty.plan(move |_, line| {
            if !are_held(line) {
                return Fault::None;
            }
            seen.fetch_add(1, Ordering::Relaxed);
            let _ = wait.lock().unwrap().recv();
            Fault::Cut
        });
        held
    }

    fn wait(&self) {
        eventually("a request is held", || self.seen.load(Ordering::Relaxed) > 0);
    }
}

/// Whether the second part is sent, which happens when the file is closed.
fn sends_the_rest(line: &str) -> bool {
    line.starts_with("PUT ") && line.contains("partNumber=2&")
}

/// On one thread, as the mount process takes another one for another program.
fn write_and(
    path: PathBuf,
    content: Vec<u8>,
    end: fn(File) -> Result<(), Errno>,
) -> JoinHandle<Result<(), Errno>> {
    thread::spawn(move || {
        let file = File::create(path).unwrap();
        (&file).write_all(&content).unwrap();
        end(file)
    })
}

fn ended(program: JoinHandle<Result<(), Errno>>) -> Result<(), Errno> {
    within("a program", LIMIT, move || program.join().unwrap())
}

fn journal(pod: &MountpointPod) -> String {
    fs::read_to_string(pod.comm.path().join(SURVIVAL).join(JOURNAL)).unwrap()
}

fn nothing_is_left(client: &Client, bucket: &str) {
    eventually("no upload is left on the server", || client.unfinished_uploads(bucket).unwrap().is_empty());
}

fn is_file(client: &Client, served: &Served, bucket: &str, expected: &[u8]) {
    assert!(client.get(bucket, "file").unwrap() == expected, "wrong bytes on the server");
    assert!(served.read("file").unwrap() == expected, "wrong bytes");
    nothing_is_left(client, bucket);
}

#[test]
fn a_large_file_is_completed_when_mount_processes_die_while_it_is_closed() {
    alone(|| {
        let all = content(LARGE, 1);
        let overwrite: &[&str] = &["--allow-overwrite"];
        for (name, options) in [("closing-new", &overwrite[1..]), ("closing-replaced", overwrite)] {
            let faulty = unchanged();
            let (client, pod, served) = behind(&faulty, name, options);
            if !options.is_empty() {
                client.put(name, "file", b"old").unwrap();
            }
            let first = Held::all(&faulty, ends);
            let program = write_and(served.path("file"), all.clone(), close);
            first.wait();
            // The next process dies of it, too.
            let second = Held::all(&faulty, ends);
            kill(&pod, between_requests);
            second.wait();
            faulty.plan(|_, _| Fault::None);
            kill(&pod, between_requests);
            assert_eq!(ended(program), Ok(()), "{name}");
            is_file(&client, &served, name, &all);
        }
    });
}

#[test]
fn a_shell_loses_no_large_file_when_the_mount_process_dies_while_it_is_closed() {
    let faulty = unchanged();
    let (client, pod, served) = behind(&faulty, "closing-shell", &["--allow-overwrite"]);
    client.put("closing-shell", "file", b"old").unwrap();
    let held = Held::all(&faulty, ends);
    let path = served.path("file");
    let program = thread::spawn(move || {
        let script = format!("head -c {LARGE} /dev/zero > \"$1\"");
        std::process::Command::new("sh").args(["-c", &script, "sh"]).arg(path).status().unwrap()
    });
    held.wait();
    faulty.plan(|_, _| Fault::None);
    kill(&pod, between_requests);
    assert!(within("a shell", LIMIT, move || program.join().unwrap()).success());
    eventually("the file is complete", || client.get("closing-shell", "file").unwrap().len() == LARGE);
    is_file(&client, &served, "closing-shell", &vec![0; LARGE]);
}

/// The server has completed it, and the process has not heard of that.
#[test]
fn a_large_file_is_complete_whose_mount_process_dies_before_it_hears_of_it() {
    alone(|| {
        let (name, all) = ("closing-late", content(LARGE, 2));
        let faulty = unchanged();
        let (client, pod, served) = behind(&faulty, name, &["--allow-overwrite"]);
        // As long as the new one, which must not be taken for it.
        client.put(name, "file", &content(LARGE, 3)).unwrap();
        faulty.plan(|_, line| if ends(line) { Fault::Delay(LIMIT) } else { Fault::None });
        let program = write_and(served.path("file"), all.clone(), close);
        eventually("the server has it", || client.get(name, "file").unwrap() == all);
        kill(&pod, between_requests);
        assert_eq!(ended(program), Ok(()));
        is_file(&client, &served, name, &all);
        assert_eq!(faulty.answered().iter().filter(|line| ends(line)).count(), 1);
    });
}

/// The answer to its last part is lost.
#[test]
fn a_large_file_that_the_server_has_got_is_completed() {
    alone(|| {
        let (name, all) = ("closing-parts", content(LARGE, 4));
        let faulty = unchanged();
        let (client, pod, served) = behind(&faulty, name, &[]);
        faulty.plan(|_, line| if sends_the_rest(line) { Fault::Delay(LIMIT) } else { Fault::None });
        let sync =
            |file: File| file.sync_all().map_err(|error| Errno::from_raw(error.raw_os_error().unwrap()));
        let program = write_and(served.path("file"), all.clone(), sync);
        eventually("the server has all parts", || faulty.answered().iter().any(|line| sends_the_rest(line)));
        eventually("the close is recorded", || journal(&pod).contains("{\"E\":"));
        faulty.plan(|_, _| Fault::None);
        kill(&pod, between_requests);
        assert_eq!(ended(program), Ok(()));
        is_file(&client, &served, name, &all);
    });
}

#[test]
fn a_large_file_of_which_the_server_has_only_a_part_stays_as_it_was() {
    alone(|| {
        let (name, all) = ("closing-missing", content(LARGE, 5));
        let faulty = unchanged();
        let (client, pod, served) = behind(&faulty, name, &["--allow-overwrite"]);
        client.put(name, "file", b"old").unwrap();
        let held = Held::all(&faulty, sends_the_rest);
        let program = write_and(served.path("file"), all.clone(), close);
        held.wait();
        eventually("the close is recorded", || journal(&pod).contains("{\"E\":"));
        faulty.plan(|_, _| Fault::None);
        kill(&pod, between_requests);
        assert_eq!(ended(program), Err(Errno::EIO));
        is_file(&client, &served, name, b"old");
        eventually("it can be written again", || served.write("file", &all[..]).is_ok());
        is_file(&client, &served, name, &all);
    });
}

#[test]
fn a_large_file_stays_as_it_was_if_the_keys_do_not_allow_to_look_at_its_parts() {
    alone(|| {
        let (name, all) = ("closing-refused", content(LARGE, 6));
        let faulty = unchanged();
        let (client, pod, served) = behind(&faulty, name, &["--allow-overwrite"]);
        client.put(name, "file", b"old").unwrap();
        let held = Held::all(&faulty, ends);
        let program = write_and(served.path("file"), all, close);
        held.wait();
        let lists_parts = |line: &str| line.starts_with("GET ") && line.contains("?uploadId=");
        faulty.plan(
            move |_, line| {
                if lists_parts(line) { Fault::Refuse(403, "AccessDenied") } else { Fault::None }
            },
        );
        kill(&pod, between_requests);
        assert_eq!(ended(program), Err(Errno::EIO));
        pod.logs("allow `s3:ListMultipartUploadParts`");
        is_file(&client, &served, name, b"old");
    });
}

/// The server copies what was published before.
#[test]
fn a_large_file_that_is_continued_is_completed_and_replaces_only_what_it_continues() {
    alone(|| {
        for (name, is_replaced) in [("closing-continued", false), ("closing-theirs", true)] {
            let faulty = unchanged();
            let (client, pod, served) = behind(&faulty, name, &[]);
            let file = published(&served, "file");
            let before = client.get(name, "file").unwrap();
            let held = Held::all(&faulty, ends);
            let program = thread::spawn(move || {
                (&file).write_all(b"more").unwrap();
                close(file)
            });
            held.wait();
            if is_replaced {
                client.put(name, "file", b"theirs").unwrap();
            }
            faulty.plan(|_, _| Fault::None);
            kill(&pod, between_requests);
            if is_replaced {
                ended(program).unwrap_err();
                is_file(&client, &served, name, b"theirs");
            } else {
                assert_eq!(ended(program), Ok(()));
                is_file(&client, &served, name, &[&before[..], b"more"].concat());
            }
        }
    });
}
