//! What the successor of a mount process does when something else happens at the same time.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use mounter::{JOURNAL, SURVIVAL};
use rustix::io::Errno;
use s3_csi_tests::alone::alone;
use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::killer::{between_requests, kill};
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, Served, bucket, eventually, with};
use s3_csi_tests::within;
use xtask::s3::{ALICE, Client};

use crate::files::served;
use crate::survival::Waiting;

pub(crate) fn behind(faulty: &Faulty, name: &str, arguments: &[&str]) -> (Client, MountpointPod, Served) {
    let client = bucket(ALICE, name);
    let pod = MountpointPod::start();
    let request = with(pod.request(ALICE, name, arguments), "AWS_ENDPOINT_URL", &faulty.url());
    let served = pod.mount(&request).unwrap();
    (client, pod, served)
}

/// It must not take the file for published, either.
#[test]
fn a_successor_that_cannot_open_a_file_again_tries_when_it_is_used() {
    alone(|| {
        let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
        let (client, pod, served) = behind(&faulty, "successor-refused", &[]);
        let file = served.touch("file", |path| File::create(path)).unwrap();
        let written = within("writes", LIMIT, move || {
            (&file).write_all(b"one,")?;
            drop(file.try_clone()?);
            (&file).write_all(b"two")?;
            std::io::Result::Ok(file)
        });
        let file = written.unwrap();
        assert_eq!(client.get("successor-refused", "file").unwrap(), b"one,", "published by a close");
        let asked = Arc::new(AtomicUsize::new(0));
        let heads = Arc::clone(&asked);
        faulty.plan(move |_, line| {
            // The successor looks whether the object is the published one, and then opens the file.
            if line.starts_with("HEAD /successor-refused/file") && heads.fetch_add(1, Ordering::Relaxed) > 0 {
                return Fault::Refuse(403, "AccessDenied");
            }
            Fault::None
        });
        kill(&pod, between_requests);
        eventually("it was refused, although no program asked for it", || asked.load(Ordering::Relaxed) > 1);
        let other = served.touch("other", |path| fs::metadata(path).map(drop)).unwrap_err();
        assert_eq!(other.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
        faulty.plan(|_, _| Fault::None);
        within("a sync", LIMIT, move || file.sync_all()).unwrap();
        assert_eq!(client.get("successor-refused", "file").unwrap(), b"one,two");
    });
}

/// Programs create files and folders as locks. The first process dies before it has recorded that it created the name.
#[test]
fn a_name_that_another_client_has_created_is_not_taken_for_ones_own() {
    let create_file = |path: PathBuf| File::create_new(path).map(drop);
    for (name, theirs, create) in [
        ("successor-lock-file", "lock", create_file as fn(PathBuf) -> std::io::Result<()>),
        ("successor-lock-folder", "lock/owner", |path| fs::create_dir(path)),
    ] {
        let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
        // So that the server is asked for the name once more when it is created.
        let (client, pod, served) = behind(&faulty, name, &["--metadata-ttl=minimal"]);
        let asked = Arc::new(AtomicUsize::new(0));
        let heads = Arc::clone(&asked);
        let head = format!("HEAD /{name}/lock");
        faulty.plan(move |_, line| {
            if line.starts_with(&head) && heads.fetch_add(1, Ordering::Relaxed) > 0 {
                return Fault::Delay(LIMIT);
            }
            Fault::None
        });
        let path = served.path("lock");
        let creator = std::thread::spawn(move || create(path));
        eventually("it is being created", || asked.load(Ordering::Relaxed) > 1);
        client.put(name, theirs, b"theirs").unwrap();
        faulty.plan(|_, _| Fault::None);
        kill(&pod, between_requests);
        let failed = within("a program", LIMIT, move || creator.join().unwrap()).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(Errno::EXIST.raw_os_error()), "{name}");
        assert_eq!(client.get(name, theirs).unwrap(), b"theirs");
    }
}

#[test]
fn a_folder_with_new_folders_in_it_is_not_empty_for_a_successor() {
    let (_client, pod, served) = served("successor-folders", &["--allow-delete"]);
    served.touch("outer/inner", |path| fs::create_dir_all(path)).unwrap();
    kill(&pod, between_requests);
    let failed = served.touch("outer", |path| fs::remove_dir(path)).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(Errno::NOTEMPTY.raw_os_error()));
    assert_eq!(served.list("outer").unwrap(), ["inner"]);
    served.touch("outer/inner", |path| fs::remove_dir(path)).unwrap();
    served.touch("outer", |path| fs::remove_dir(path)).unwrap();
}

/// The library would refuse every writer of the file, as long as the mount process lives.
#[test]
fn a_reader_that_is_closed_while_a_successor_opens_it_is_gone() {
    let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
    let (client, pod, served) = behind(&faulty, "successor-reader", &["--allow-overwrite"]);
    client.put("successor-reader", "file", b"old").unwrap();
    let file = served.touch("file", |path| File::open(path)).unwrap();
    let (answer, answers) = mpsc::channel::<()>();
    let answers = Arc::new(Mutex::new(answers));
    faulty.plan(move |_, line| {
        if line.starts_with("GET /successor-reader/file") {
            let _ = answers.lock().unwrap().recv();
        }
        Fault::None
    });
    let before = faulty.seen().len();
    kill(&pod, between_requests);
    // Opening the file for writing first opens the reader again, to find out whether both are possible.
    let path = served.path("file");
    let writer = std::thread::spawn(move || File::create(path).map(drop));
    eventually("the reader is being opened", || {
        faulty.seen()[before..].iter().any(|request| request == "GET /successor-reader/file")
    });
    within("a close", LIMIT, move || drop(file));
    let journal = pod.comm.path().join(SURVIVAL).join(JOURNAL);
    eventually("the close is recorded", || fs::read_to_string(&journal).unwrap().contains("{\"I\":"));
    drop(answer);
    // The reader was there when this one began.
    let _ = within("a writer", LIMIT, move || writer.join().unwrap());
    eventually("the reader is gone", || served.write("file", "new").is_ok());
    assert_eq!(client.get("successor-reader", "file").unwrap(), b"new");
}

/// It is an object like any other then.
#[test]
fn a_file_that_was_complete_when_the_mount_process_died_can_be_deleted_elsewhere() {
    let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
    let (client, pod, served) = behind(&faulty, "successor-complete", &[]);
    faulty.plan(|_, line| {
        if line.starts_with("PUT /successor-complete/file") { Fault::Delay(LIMIT) } else { Fault::None }
    });
    let path = served.path("file");
    let writer = std::thread::spawn(move || fs::write(path, "content"));
    eventually("the server has it", || client.get("successor-complete", "file").is_ok());
    kill(&pod, between_requests);
    within("a writer", LIMIT, move || writer.join().unwrap()).unwrap();
    assert_eq!(faulty.seen().iter().filter(|request| request.starts_with("PUT ")).count(), 1);
    client.delete("successor-complete", "file").unwrap();
    eventually("it is gone", || {
        let found = served.touch("file", |path| fs::metadata(path).map(drop));
        found.is_err_and(|error| error.raw_os_error() == Some(Errno::NOENT.raw_os_error()))
    });
}

#[test]
fn a_new_file_that_a_successor_cannot_upload_is_gone() {
    alone(|| {
        let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
        let (client, pod, served) = behind(&faulty, "successor-cannot", &[]);
        let file = served.touch("file", |path| File::create(path)).unwrap();
        let file = within("a write", LIMIT, move || (&file).write_all(b"content").map(|()| file)).unwrap();
        faulty.plan(|_, line| {
            if line.contains("/successor-cannot/file") {
                Fault::Refuse(403, "AccessDenied")
            } else {
                Fault::None
            }
        });
        kill(&pod, between_requests);
        let failed = within("a sync", LIMIT, move || file.sync_all()).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(Errno::IO.raw_os_error()));
        faulty.plan(|_, _| Fault::None);
        eventually("it is gone", || served.list("").unwrap().is_empty());
        served.write("file", "again").unwrap();
        assert_eq!(client.get("successor-cannot", "file").unwrap(), b"again");
    });
}

/// The kernel sends it when the program has gone on already.
fn last_close_is_recorded(pod: &MountpointPod) {
    let journal = pod.comm.path().join(SURVIVAL).join(JOURNAL);
    eventually("the last close is recorded", || fs::read_to_string(&journal).unwrap().contains("{\"C\":"));
}

/// It was complete, and no program had written to it: it is theirs now.
#[test]
fn an_empty_file_that_was_complete_does_not_empty_what_another_client_puts_there() {
    let (client, pod, served) = served("successor-empty", &["--allow-overwrite"]);
    let script = "exec 3> \"$1\" && exec 4>&3 4>&- && echo ready && read -r _";
    let program = Waiting::start("sh", &["-c", script, "sh"], &served.path("file"));
    assert_eq!(client.get("successor-empty", "file").unwrap(), b"", "published by the first close");
    kill(&pod, between_requests);
    client.put("successor-empty", "file", b"theirs").unwrap();
    program.finish();
    last_close_is_recorded(&pod);
    assert_eq!(client.get("successor-empty", "file").unwrap(), b"theirs");
}

/// Creates or empties a file that `io_uring` has open, but no descriptor: the kernel sends no flush for it, only the last close.
const WITHOUT_A_FLUSH: &str = "
import ctypes, mmap, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    result = libc.syscall(*arguments)
    assert result >= 0, (arguments, ctypes.get_errno())
    return result
setup = ctypes.create_string_buffer(120)
ring = call(425, 2, setup)
sq, cq = struct.unpack_from('10I', setup.raw, 40), struct.unpack_from('10I', setup.raw, 80)
queue, entries = mmap.mmap(ring, 4096), mmap.mmap(ring, 4096, offset=0x10000000)
call(427, ring, 2, (ctypes.c_int * 1)(-1), 1)
def do(number, operation, fd=0, address=0, mode=0, flags=0):
    struct.pack_into('BBHiQQIIQHHIQQ', entries, 64 * number,
        operation, 0, 0, fd, 0, address, mode, flags, 0, 0, 0, 1, 0, 0)
    struct.pack_into('I', queue, sq[6] + 4 * number, number)
    struct.pack_into('I', queue, sq[1], number + 1)
    call(426, ring, 1, number + 1, 1, None, 0)
    result = struct.unpack_from('QiI', queue, cq[5] + 16 * number)[1]
    assert result >= 0, (operation, result)
path = ctypes.create_string_buffer(sys.argv[1].encode())
do(0, 18, -100, ctypes.addressof(path), 0o644, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
print('ready', flush=True)
sys.stdin.readline()
do(1, 19)
";

#[test]
fn a_new_file_without_content_does_not_empty_what_another_client_puts_there() {
    let (client, pod, served) = served("successor-truncates", &["--allow-overwrite"]);
    let program = Waiting::start("python3", &["-c", WITHOUT_A_FLUSH], &served.path("file"));
    kill(&pod, between_requests);
    client.put("successor-truncates", "file", b"theirs").unwrap();
    program.finish();
    last_close_is_recorded(&pod);
    assert_eq!(client.get("successor-truncates", "file").unwrap(), b"theirs");
    eventually("it is an object like any other", || served.read("file").is_ok_and(|it| it == b"theirs"));
}

#[test]
fn a_file_that_is_to_be_emptied_does_not_empty_what_another_client_puts_there() {
    for (name, replaced, opened_again) in [
        ("successor-empties", false, false),
        ("successor-leaves", true, false),
        ("successor-leaves-opened", true, true),
    ] {
        let (client, pod, served) = served(name, &["--allow-overwrite"]);
        client.put(name, "file", b"old").unwrap();
        let program = Waiting::start("python3", &["-c", WITHOUT_A_FLUSH], &served.path("file"));
        kill(&pod, between_requests);
        if replaced {
            client.put(name, "file", b"theirs").unwrap();
        }
        if opened_again {
            // A listing waits for what is being written in the directory.
            served.list("").unwrap();
        }
        program.finish();
        last_close_is_recorded(&pod);
        let content: &[u8] = if replaced { b"theirs" } else { b"" };
        eventually("the file is complete", || served.read("file").is_ok_and(|it| it == content));
        assert_eq!(client.get(name, "file").unwrap(), content);
    }
}

/// The kernel knows the size of the old object, and reads no more of a new one.
#[test]
fn a_file_that_is_open_for_writing_and_replaced_elsewhere_is_read_whole() {
    alone(|| {
        let (client, pod, served) = served("successor-size", &["--allow-overwrite"]);
        let file = served.touch("file", |path| File::create(path)).unwrap();
        let file = within("a write", LIMIT, move || {
            (&file).write_all(b"short").unwrap();
            file.sync_all().unwrap();
            file
        });
        kill(&pod, between_requests);
        assert_eq!(served.list("").unwrap(), ["file"]);
        let sizes = served.touch("", |root| {
            let entries = fs::read_dir(root).unwrap();
            entries.map(|entry| entry.unwrap().metadata().unwrap().len()).collect::<Vec<_>>()
        });
        assert_eq!(sizes, [5]);
        client.put("successor-size", "file", b"much longer").unwrap();
        assert_eq!(served.read("file").unwrap(), b"much longer");
        within("a close", LIMIT, move || drop(file));
    });
}
