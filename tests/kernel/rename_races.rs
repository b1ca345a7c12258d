//! Renames while another client uses the same names: nothing of it is deleted or replaced, and no copy is a mixture.

use std::fs;
use std::io::{self, Read as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::io::Errno;
use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::killer::{between_requests, kill};
use s3_csi_tests::mountpoint_pod::{LIMIT, Served, eventually};

use crate::renames::{RENAMES, REPLACES, errno, rename};
use crate::successors::behind;

fn unchanged() -> Faulty {
    Faulty::before("s3.test:80", |_, _| Fault::None)
}

/// The server compares what it copies, and the deletion must not take what another client has written there since.
#[test]
fn a_rename_deletes_nothing_that_came_meanwhile() {
    const COPY: &str = "PUT /renamed-raced/to ";
    let faulty = unchanged();
    let (client, _pod, served) = behind(&faulty, "renamed-raced", REPLACES);
    let client = Arc::new(client);
    for (moment, left) in [(COPY, &["from"][..]), ("HEAD /renamed-raced/to ", &["from", "to"])] {
        client.put("renamed-raced", "from", b"before").unwrap();
        let (other, copies) = (Arc::clone(&client), AtomicUsize::new(0));
        faulty.plan(move |_, line| {
            copies.fetch_add(line.starts_with(COPY).into(), Ordering::Relaxed);
            if line.starts_with(moment) && copies.load(Ordering::Relaxed) > 0 {
                other.put("renamed-raced", "from", b"meanwhile").unwrap();
            }
            Fault::None
        });
        assert_eq!(errno(rename(&served, "from", "to")), Errno::IO, "{moment}");
        faulty.plan(|_, _| Fault::None);
        assert_eq!(client.get("renamed-raced", "from").unwrap(), b"meanwhile", "{moment}");
        assert_eq!(client.objects("renamed-raced", "").unwrap(), left, "{moment}");
    }
    assert_eq!(client.get("renamed-raced", "to").unwrap(), b"before");
}

/// The tests' server compares this only at the end of a multipart upload, so that its answers to a single request are invented.
#[test]
fn a_rename_replaces_nothing_that_came_meanwhile() {
    let faulty = unchanged();
    let (client, _pod, served) = behind(&faulty, "renamed-new", RENAMES);
    let client = Arc::new(client);
    client.put("renamed-new", "from", b"ours").unwrap();
    let other = Arc::clone(&client);
    faulty.plan(move |_, line| {
        if !line.starts_with("PUT /renamed-new/to ") {
            return Fault::None;
        }
        other.put("renamed-new", "to", b"theirs").unwrap();
        Fault::Refuse(412, "PreconditionFailed")
    });
    assert_eq!(errno(rename(&served, "from", "to")), Errno::EXIST);
    assert_eq!(client.get("renamed-new", "to").unwrap(), b"theirs");
    assert_eq!(served.read("from").unwrap(), b"ours");

    // Carried out and refused when it is repeated, or not known to the server.
    let lost = Fault::Lie(412, "PreconditionFailed");
    let unknown = Fault::Refuse(501, "NotImplemented");
    for (from, to, fault, requests) in [("a", "lost", lost, 1), ("b", "unconditional", unknown, 2)] {
        client.put("renamed-new", from, b"ours").unwrap();
        let copies = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&copies);
        faulty.plan(move |_, line| {
            let is_first = line.starts_with("PUT /") && seen.fetch_add(1, Ordering::Relaxed) == 0;
            if is_first { fault } else { Fault::None }
        });
        rename(&served, from, to).unwrap_or_else(|error| panic!("{to}: {error}"));
        assert_eq!(copies.load(Ordering::Relaxed), requests, "{to}");
        assert_eq!(client.get("renamed-new", to).unwrap(), b"ours");
    }
    assert_eq!(client.objects("renamed-new", "").unwrap(), ["from", "lost", "to", "unconditional"]);
}

/// As S3 answers a copy that fails after its answer has begun. An object of the same length is not taken for the copy.
#[test]
fn a_copy_that_fails_after_its_answer_has_begun_deletes_nothing() {
    let faulty = unchanged();
    let (client, _pod, served) = behind(&faulty, "renamed-failed", REPLACES);
    client.put("renamed-failed", "from", b"new").unwrap();
    client.put("renamed-failed", "to", b"old").unwrap();
    let failed = |_: &str| "<Error><Code>InternalError</Code></Error>".to_owned();
    faulty.plan(move |_, line| {
        if line.starts_with("PUT /renamed-failed/to ") { Fault::Invent(failed) } else { Fault::None }
    });
    assert_eq!(errno(rename(&served, "from", "to")), Errno::IO);
    assert_eq!(client.get("renamed-failed", "from").unwrap(), b"new");
    assert_eq!(client.get("renamed-failed", "to").unwrap(), b"old");
}

/// From 1 GiB on, an object is copied in parts.
#[test]
fn a_large_file_is_renamed_with_the_bytes_of_one_version() {
    const BUCKET: &str = "renamed-parts";
    const PART: usize = 64 << 20;
    let faulty = unchanged();
    let (client, _pod, served) = behind(&faulty, BUCKET, RENAMES);
    let client = Arc::new(client);
    let upload = client.begin_upload(BUCKET, "from", "text/large").unwrap();
    let part = |number: u8| client.upload_part(BUCKET, "from", &upload, number.into(), &vec![number; PART]);
    let parts: Vec<String> = (1..=16).map(|number| part(number).unwrap()).collect();
    client.complete_upload(BUCKET, "from", &upload, &parts).unwrap();
    rename(&served, "from", "to").unwrap();
    let parts = faulty.answered().iter().filter(|line| line.contains("partNumber=")).count();
    assert_eq!(parts, 2);
    assert_eq!(client.objects(BUCKET, "").unwrap(), ["to"]);
    assert_eq!(client.header(BUCKET, "to", "content-type").unwrap().as_deref(), Some("text/large"));
    let length = 16 * PART as u64;
    assert_eq!(served.touch("to", |path| fs::metadata(path).unwrap().len()), length);
    for (number, offset) in (1..=16).zip((0..length).step_by(PART)) {
        let mut bytes = Vec::new();
        let mut read = |range| client.stream(BUCKET, "to", range).unwrap().read_to_end(&mut bytes).unwrap();
        read(offset..offset + 10);
        read(offset + PART as u64 - 10..offset + PART as u64);
        assert_eq!(bytes, [number; 20]);
    }

    let other = Arc::clone(&client);
    faulty.plan(move |_, line| {
        if line.contains("partNumber=2&") {
            other.put(BUCKET, "to", b"theirs").unwrap();
        }
        Fault::None
    });
    assert_eq!(errno(rename(&served, "to", "mixture")), Errno::IO);
    faulty.plan(|_, _| Fault::None);
    assert_eq!(client.objects(BUCKET, "").unwrap(), ["to"]);
    assert_eq!(served.read("to").unwrap(), b"theirs");
    eventually("no upload is left on the server", || client.unfinished_uploads(BUCKET).unwrap().is_empty());
}

/// The mount process dies between the deletion on the server and its answer to the program.
#[test]
fn what_another_client_puts_in_the_place_of_a_removed_or_renamed_file_stays() {
    let remove = |served: &Served| served.touch("file", |path| fs::remove_file(path));
    let rename = |served: &Served| rename(served, "file", "other");
    for (name, act) in [("removed-twice", remove as fn(&Served) -> io::Result<()>), ("renamed-twice", rename)]
    {
        let faulty = unchanged();
        let (client, pod, served) = behind(&faulty, name, REPLACES);
        client.put(name, "file", b"ours").unwrap();
        assert_eq!(served.read("file").unwrap(), b"ours");
        faulty.plan(|_, line| if line.starts_with("DELETE /") { Fault::Delay(LIMIT) } else { Fault::None });
        let deleted = || faulty.answered().iter().any(|line| line.starts_with("DELETE /"));
        thread::scope(|scope| {
            let acting = scope.spawn(|| act(&served));
            eventually("the object is deleted", deleted);
            faulty.plan(|_, _| Fault::None);
            client.put(name, "file", b"theirs").unwrap();
            kill(&pod, between_requests);
            assert_eq!(errno(acting.join().unwrap()), Errno::IO, "{name}");
        });
        assert_eq!(client.get(name, "file").unwrap(), b"theirs", "{name}");
        assert_eq!(served.read("file").unwrap(), b"theirs", "{name}");
    }
}
