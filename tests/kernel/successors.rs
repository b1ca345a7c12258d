//! What the successor of a mount process does when something else happens at the same time.

use std::fs::{self, File};
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use mounter::{JOURNAL, SURVIVAL};
use rustix::io::Errno;
use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::killer::{between_requests, kill};
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, Served, bucket, eventually, with};
use s3_csi_tests::within;
use xtask::s3::{ALICE, Client};

use crate::files::served;

fn behind(faulty: &Faulty, name: &str, arguments: &[&str]) -> (Client, MountpointPod, Served) {
    let client = bucket(ALICE, name);
    let pod = MountpointPod::start();
    let request = with(pod.request(ALICE, name, arguments), "AWS_ENDPOINT_URL", &faulty.url());
    let served = pod.mount(&request).unwrap();
    (client, pod, served)
}

/// It must not take the file for published, either.
#[test]
fn a_successor_that_cannot_open_a_file_again_tries_when_it_is_used() {
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
    let asked = AtomicUsize::new(0);
    faulty.plan(move |_, line| {
        // The successor looks whether the object is the published one, and then opens the file.
        if line.starts_with("HEAD /successor-refused/file") && asked.fetch_add(1, Ordering::Relaxed) > 0 {
            return Fault::Refuse(403, "AccessDenied");
        }
        Fault::None
    });
    kill(&pod, between_requests);
    let other = served.touch("other", |path| fs::metadata(path).map(drop)).unwrap_err();
    assert_eq!(other.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
    assert!(faulty.seen().iter().filter(|it| *it == "HEAD /successor-refused/file").count() > 1);
    faulty.plan(|_, _| Fault::None);
    within("a sync", LIMIT, move || file.sync_all()).unwrap();
    assert_eq!(client.get("successor-refused", "file").unwrap(), b"one,two");
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
    let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
    let (client, pod, served) = behind(&faulty, "successor-cannot", &[]);
    let file = served.touch("file", |path| File::create(path)).unwrap();
    let file = within("a write", LIMIT, move || (&file).write_all(b"content").map(|()| file)).unwrap();
    faulty.plan(|_, line| {
        if line.contains("/successor-cannot/file") { Fault::Refuse(403, "AccessDenied") } else { Fault::None }
    });
    kill(&pod, between_requests);
    let failed = within("a sync", LIMIT, move || file.sync_all()).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(Errno::IO.raw_os_error()));
    faulty.plan(|_, _| Fault::None);
    eventually("it is gone", || served.list("").unwrap().is_empty());
    served.write("file", "again").unwrap();
    assert_eq!(client.get("successor-cannot", "file").unwrap(), b"again");
}
