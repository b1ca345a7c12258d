//! Large files that are continued after a close: the server copies what was published to the beginning of the next object.

use std::fs::{self, File};
use std::io::{Result, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mounter::{JOURNAL, SURVIVAL};
use s3_csi_tests::alone::alone;
use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::killer::{between_requests, kill};
use s3_csi_tests::mountpoint_pod::{LIMIT, Served, eventually};
use s3_csi_tests::within;

use crate::successors::behind;
use crate::survival::content;

/// More than is kept in memory.
const FIRST: usize = 10 << 20;
/// A part and a bit, so that two parts are sent.
const SECOND: usize = 9 << 20;

pub(crate) fn unchanged() -> Faulty {
    Faulty::before("s3.test:80", |_, _| Fault::None)
}

/// Whether a request begins, or ends, the upload of a file.
fn begins(line: &str) -> bool {
    line.starts_with("POST ") && line.contains("?uploads")
}

pub(crate) fn ends(line: &str) -> bool {
    line.starts_with("POST ") && line.contains("?uploadId=")
}

/// Writes a file and closes a duplicate, which publishes it: on the thread that opened it, as the mount process takes that of
/// another one for that of another program.
pub(crate) fn published(served: &Served, name: &str) -> File {
    let written = served.touch(name, |path| {
        let mut file = File::create(path)?;
        file.write_all(&content(FIRST, 1))?;
        drop(file.try_clone()?);
        Result::Ok(file)
    });
    written.unwrap()
}

fn continued(file: File) -> Result<()> {
    within("continuing", LIMIT, move || {
        (&file).write_all(&content(SECOND, 2))?;
        Ok(nix::unistd::close(file)?)
    })
}

fn whole() -> Vec<u8> {
    [content(FIRST, 1), content(SECOND, 2)].concat()
}

#[test]
fn a_large_file_that_is_continued_is_copied_on_the_server() {
    let faulty = unchanged();
    let (client, _pod, served) = behind(&faulty, "copied", &[]);
    let file = published(&served, "file");
    let before = faulty.answered().len();
    continued(file).unwrap();
    assert!(client.get("copied", "file").unwrap() == whole());
    let requests = faulty.answered().split_off(before);
    let of_file = |method: &str| {
        requests.iter().filter(|line| line.starts_with(&format!("{method} /copied/file"))).count()
    };
    assert_eq!((of_file("GET"), of_file("POST"), of_file("PUT")), (0, 2, 3), "{requests:?}");
    assert!(served.read("file").unwrap() == whole());
    // Without end: each close publishes all that was written.
    let file = published(&served, "again");
    for part in 0..3 {
        let file = file.try_clone().unwrap();
        let written = within("continuing", LIMIT, move || {
            (&file).write_all(&content(1 << 20, part))?;
            Ok::<_, std::io::Error>(nix::unistd::close(file)?)
        });
        written.unwrap();
    }
    drop(file);
    let parts = (0..3).map(|part| content(1 << 20, part));
    let expected = [content(FIRST, 1)].into_iter().chain(parts).collect::<Vec<_>>().concat();
    assert!(client.get("copied", "again").unwrap() == expected);
    assert_eq!(client.unfinished_uploads("copied").unwrap(), [""; 0]);
}

/// In the moment in which the upload is completed: the server itself compares.
#[test]
fn what_replaces_a_file_that_is_being_copied_stays() {
    let faulty = unchanged();
    let (client, _pod, served) = behind(&faulty, "copied-replaced", &["--allow-overwrite"]);
    let client = Arc::new(client);
    let file = published(&served, "file");
    let other = Arc::clone(&client);
    faulty.plan(move |_, line| {
        if ends(line) {
            other.put("copied-replaced", "file", b"theirs").unwrap();
        }
        Fault::None
    });
    continued(file).unwrap_err();
    faulty.plan(|_, _| Fault::None);
    assert_eq!(client.get("copied-replaced", "file").unwrap(), b"theirs");
    assert_eq!(served.read("file").unwrap(), b"theirs");
    eventually("no upload is left on the server", || {
        client.unfinished_uploads("copied-replaced").unwrap().is_empty()
    });
}

/// The S3 client repeats the request, which the server then refuses: the upload is no longer there, or the object is no longer
/// the one that was copied.
#[test]
fn a_file_whose_last_answer_is_lost_is_published() {
    let faulty = unchanged();
    let (client, _pod, served) = behind(&faulty, "copied-lost", &[]);
    let file = published(&served, "file");
    let ended = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&ended);
    faulty.plan(move |_, line| {
        if ends(line) && seen.fetch_add(1, Ordering::Relaxed) == 0 { Fault::DropAnswer } else { Fault::None }
    });
    continued(file).unwrap();
    assert!(ended.load(Ordering::Relaxed) > 1, "it was not repeated");
    assert!(client.get("copied-lost", "file").unwrap() == whole());
    assert!(served.read("file").unwrap() == whole());
}

#[test]
fn a_large_file_is_read_back_where_the_server_cannot_copy() {
    let faulty = unchanged();
    let (client, pod, served) = behind(&faulty, "read-back", &[]);
    let file = published(&served, "file");
    let begun = AtomicUsize::new(0);
    faulty.plan(move |_, line| {
        let is_first = begins(line) && begun.fetch_add(1, Ordering::Relaxed) == 0;
        if is_first { Fault::Refuse(501, "NotImplemented") } else { Fault::None }
    });
    continued(file).unwrap();
    pod.logs("reading back a large file");
    // By another thread than the one that opened it: it is published when nothing has it open any more.
    eventually("the whole file is published", || client.get("read-back", "file").unwrap() == whole());
    assert!(served.read("file").unwrap() == whole());
}

/// The keys have expired, for example, and the next ones are valid.
#[test]
fn a_large_file_is_copied_although_another_copy_was_refused() {
    let faulty = unchanged();
    let (client, pod, served) = behind(&faulty, "copied-later", &[]);
    let file = published(&served, "file");
    let parts = AtomicUsize::new(0);
    faulty.plan(move |_, line| {
        let is_first = line.contains("partNumber=1&") && parts.fetch_add(1, Ordering::Relaxed) == 0;
        if is_first { Fault::Refuse(400, "ExpiredToken") } else { Fault::None }
    });
    continued(file).unwrap();
    pod.logs("reading back a large file");
    eventually("the whole file is published", || client.get("copied-later", "file").unwrap() == whole());

    let file = published(&served, "next");
    let before = faulty.answered().len();
    continued(file).unwrap();
    assert!(client.get("copied-later", "next").unwrap() == whole());
    let requests = faulty.answered().split_off(before);
    assert!(!requests.iter().any(|line| line.starts_with("GET /copied-later/next")), "{requests:?}");
}

#[test]
fn an_upload_whose_process_dies_before_anything_is_copied_is_aborted() {
    // A process that another test starts would close the file, which publishes it.
    alone(|| {
        let faulty = unchanged();
        let (client, pod, served) = behind(&faulty, "copied-dies", &[]);
        let file = published(&served, "file");
        faulty.plan(|_, line| if line.contains("partNumber=1&") { Fault::Cut } else { Fault::None });
        let writer = std::thread::spawn(move || (&file).write_all(b"more").map(|()| file));
        let journal = pod.comm.path().join(SURVIVAL).join(JOURNAL);
        eventually("the mount process knows that the upload has begun", || {
            let known = fs::read_to_string(&journal).unwrap();
            let unfinished = client.unfinished_uploads("copied-dies").unwrap();
            unfinished.first().is_some_and(|id| known.contains(id))
        });
        kill(&pod, between_requests);
        faulty.plan(|_, _| Fault::None);
        // The write was not answered and is sent again.
        let file = within("the write", LIMIT, move || writer.join().unwrap()).unwrap();
        within("closing", LIMIT, move || nix::unistd::close(file)).unwrap();
        assert!(client.get("copied-dies", "file").unwrap() == [&content(FIRST, 1)[..], b"more"].concat());
        eventually("no upload is left on the server", || {
            client.unfinished_uploads("copied-dies").unwrap().is_empty()
        });
    });
}
