//! `rename-by-copy`: a file is copied on the server, and deleted under its old name once the copy is complete.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;

use rustix::io::Errno;
use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::killer::{between_requests, while_killing};
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, Served, bucket, with};
use s3_csi_tests::within;
use xtask::s3::ALICE;

use crate::files::served;
use crate::names::NAMES;
use crate::survival::{LIFE, content};

pub(crate) const RENAMES: &[&str] = &["--allow-delete", "--rename-by-copy"];
pub(crate) const REPLACES: &[&str] = &["--allow-delete", "--allow-overwrite", "--rename-by-copy"];

pub(crate) fn rename(served: &Served, from: &str, to: &str) -> io::Result<()> {
    let to = served.path(to);
    served.touch(from, move |path| fs::rename(path, to))
}

pub(crate) fn errno(outcome: io::Result<()>) -> Errno {
    Errno::from_raw_os_error(outcome.unwrap_err().raw_os_error().unwrap())
}

#[test]
fn a_file_is_renamed_by_a_copy() {
    let (client, _pod, served) = served("renamed", RENAMES);
    let number = |name: &str| served.touch(name, |path| fs::metadata(path).unwrap().ino());
    served.touch("folder", |path| fs::create_dir(path)).unwrap();
    // Uploaded in parts.
    let large = content(20 << 20, 1);
    for (from, to, content) in [
        ("small", "other", b"content".to_vec()),
        ("empty", "still empty", Vec::new()),
        ("large", "folder/large", large),
        ("folder/large", "up", content(20 << 20, 1)),
        ("other", "folder/other", b"content".to_vec()),
    ] {
        if served.read(from).is_err() {
            served.write(from, content.clone()).unwrap();
        }
        let before = number(from);
        rename(&served, from, to).unwrap_or_else(|error| panic!("{from} to {to}: {error}"));
        assert_eq!(served.read(from).unwrap_err().kind(), io::ErrorKind::NotFound, "{from}");
        assert!(served.read(to).unwrap() == content, "{to} has another content");
        assert!(client.get("renamed", to).unwrap() == content, "the object {to} has another content");
        assert_eq!(number(to), before, "{to} is the same file");
    }
    assert_eq!(client.objects("renamed", "").unwrap(), ["folder/other", "still empty", "up"]);
    assert_eq!(served.list("folder").unwrap(), ["other"]);
}

#[test]
fn names_of_all_kinds_are_renamed() {
    let (client, _pod, served) = served("renamed-names", RENAMES);
    for name in NAMES {
        served.write("plain", name).unwrap();
        rename(&served, "plain", name).unwrap_or_else(|error| panic!("to {name:?}: {error}"));
        assert_eq!(client.get("renamed-names", name).unwrap(), name.as_bytes(), "{name:?}");
        rename(&served, name, "again").unwrap_or_else(|error| panic!("from {name:?}: {error}"));
        assert_eq!(client.objects("renamed-names", "").unwrap(), ["again"], "{name:?}");
        assert_eq!(served.read("again").unwrap(), name.as_bytes(), "{name:?}");
        served.touch("again", |path| fs::remove_file(path)).unwrap();
    }
}

/// What the mount process remembers of names does not hide a renamed file.
#[test]
fn a_renamed_file_is_seen_although_its_name_was_missing() {
    let options = [RENAMES, &["--metadata-ttl=300", "--negative-metadata-ttl=300"]].concat();
    let (_client, _pod, served) = served("renamed-cached", &options);
    for round in ["first", "second"] {
        served.write("from", round).unwrap();
        assert!(served.read("to").is_err());
        rename(&served, "from", "to").unwrap();
        assert_eq!(served.read("to").unwrap(), round.as_bytes());
        assert!(served.read("from").is_err());
        rename(&served, "to", "from").unwrap();
        assert_eq!(served.read("from").unwrap(), round.as_bytes());
        served.touch("from", |path| fs::remove_file(path)).unwrap();
    }
}

#[test]
fn a_rename_replaces_only_what_may_be_overwritten() {
    let (client, _pod, served) = self::served("renamed-over", RENAMES);
    let both = || ["from", "to"].map(|key| client.get("renamed-over", key).unwrap());
    client.put("renamed-over", "from", b"source").unwrap();
    client.put("renamed-over", "to", b"destination").unwrap();
    client.put("renamed-over", "folder/file", b"x").unwrap();
    assert_eq!(errno(rename(&served, "from", "to")), Errno::EXIST);
    assert_eq!(errno(rename(&served, "folder", "other")), Errno::PERM);
    assert_eq!(errno(rename(&served, "from", "folder")), Errno::ISDIR);
    assert_eq!(errno(rename(&served, "none", "new")), Errno::NOENT);
    assert_eq!(both(), [b"source".to_vec(), b"destination".to_vec()]);

    let pod = MountpointPod::start();
    let served = pod.serve(ALICE, "renamed-over", REPLACES);
    assert_eq!(served.read("to").unwrap(), b"destination");
    rename(&served, "from", "to").unwrap();
    assert_eq!(served.read("to").unwrap(), b"source");
    assert_eq!(client.objects("renamed-over", "").unwrap(), ["folder/file", "to"]);
}

#[test]
fn a_file_that_is_being_written_is_not_renamed() {
    let (client, _pod, served) = served("renamed-open", REPLACES);
    client.put("renamed-open", "other", b"other").unwrap();
    let mut file = served.touch("open", |path| File::create(path)).unwrap();
    for step in ["nothing is written", "a line is written"] {
        assert_eq!(errno(rename(&served, "open", "new")), Errno::PERM, "{step}");
        assert_eq!(errno(rename(&served, "other", "open")), Errno::PERM, "{step}");
        file = served.touch("open", move |_| file.write_all(b"line\n").map(|()| file)).unwrap();
    }
    file = served.touch("open", move |_| file.sync_all().map(|()| file)).unwrap();
    rename(&served, "open", "new").unwrap();
    // It does not come back under its old name, and does not change under the new one.
    served.touch("open", move |_| file.write_all(b"more\n")).unwrap_err();
    assert_eq!(client.objects("renamed-open", "").unwrap(), ["new", "other"]);
    assert_eq!(client.get("renamed-open", "new").unwrap(), b"line\nline\n");
    assert_eq!(client.get("renamed-open", "other").unwrap(), b"other");
}

/// It reads an object that is not there any more.
#[test]
fn a_reader_of_a_renamed_file_gets_its_content_or_an_error() {
    let (client, _pod, served) = served("renamed-read", RENAMES);
    let large = content(40 << 20, 1);
    client.put("renamed-read", "from", &large).unwrap();
    let (mut file, begun) = served.touch("from", |path| {
        let mut file = File::open(path).unwrap();
        let mut begun = vec![0; 4096];
        file.read_exact(&mut begun).unwrap();
        (file, begun)
    });
    rename(&served, "from", "to").unwrap();
    let mut read = begun;
    let (read, outcome) = within("the rest", LIMIT, move || {
        let outcome = file.read_to_end(&mut read);
        (read, outcome)
    });
    assert!(large.starts_with(&read), "wrong bytes");
    match outcome {
        Ok(_) => assert_eq!(read.len(), large.len()),
        Err(error) => {
            let errno = errno(Err(error));
            assert!([Errno::STALE, Errno::IO].contains(&errno), "{errno:?}");
        }
    }
    assert!(served.read("to").unwrap() == large);
}

#[test]
fn a_rename_whose_copy_or_deletion_fails_leaves_the_file() {
    for (bucket_name, method) in [("renamed-uncopied", "PUT /"), ("renamed-undeleted", "DELETE /")] {
        let client = bucket(ALICE, bucket_name);
        client.put(bucket_name, "from", b"content").unwrap();
        let faulty = Faulty::before("s3.test:80", move |_, line| {
            if line.starts_with(method) { Fault::Refuse(403, "AccessDenied") } else { Fault::None }
        });
        let pod = MountpointPod::start();
        let request = with(pod.request(ALICE, bucket_name, RENAMES), "AWS_ENDPOINT_URL", &faulty.url());
        let served = pod.mount(&request).unwrap();
        assert_eq!(errno(rename(&served, "from", "to")), Errno::IO, "{method}");
        assert_eq!(served.read("from").unwrap(), b"content", "{method}");
        assert_eq!(served.read("to").is_ok(), method == "DELETE /");
    }
}

#[test]
fn a_rename_is_finished_when_mount_processes_die() {
    let (client, pod, served) = served("renamed-deaths", RENAMES);
    let mut done = Vec::new();
    let ((), kills) = while_killing(&pod, LIFE, between_requests, || {
        for _ in 0..30 {
            let number = done.len();
            let (from, to) = (format!("from-{number}"), format!("to-{number:04}"));
            served.write(&from, to.as_str()).unwrap();
            rename(&served, &from, &to).unwrap_or_else(|error| panic!("{from}: {error}"));
            assert_eq!(served.read(&to).unwrap(), to.as_bytes());
            done.push(to);
        }
    });
    assert!(kills > 0);
    assert_eq!(client.objects("renamed-deaths", "").unwrap(), done);
}
