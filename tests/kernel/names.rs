//! Names, modes and attributes of files that programs may expect to be kept.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use rustix::io::Errno;
use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::mountpoint_pod::{MountpointPod, bucket, with};
use xtask::s3::ALICE;

use crate::files::served;

/// The last is the longest that other file systems, and the server of the tests, accept: 255 bytes.
pub(crate) const NAMES: [&str; 15] = [
    "emoji-🪣",
    "accent-é",
    "at@ plus+ percent% amp& equals=",
    "100%25",
    "trailing blank ",
    " leading blank",
    "tab\there",
    "new\nline",
    "back\\slash",
    "quote\"'`$(x)",
    "...",
    ".hidden",
    "-dash",
    "ends.",
    match str::from_utf8(&[b'n'; 255]) {
        Ok(longest) => longest,
        Err(_) => unreachable!(),
    },
];

#[test]
fn a_name_is_the_same_at_both_ends() {
    let (client, _pod, served) = served("names", &[]);
    for name in NAMES {
        served.write(name, name).unwrap_or_else(|error| panic!("{name:?}: {error}"));
        assert_eq!(client.get("names", name).unwrap(), name.as_bytes(), "{name:?}");
        let theirs = format!("theirs/{name}");
        client.put("names", &theirs, name.as_bytes()).unwrap();
        assert_eq!(served.read(&theirs).unwrap(), name.as_bytes(), "{name:?}");
    }
    let mut sorted: Vec<String> = NAMES.map(str::to_owned).into();
    sorted.sort();
    assert_eq!(served.list("theirs").unwrap(), sorted);
}

/// Modes are those of the mount, whatever a program wishes for what it creates.
#[test]
fn the_mode_of_a_new_folder_or_file_is_that_of_the_mount() {
    let (_client, _pod, served) = served("created-modes", &[]);
    let modes = served.touch("", |root| {
        let mkdir = |mode, name| Command::new("mkdir").args(["-m", mode, name]).current_dir(root).status();
        assert!(mkdir("755", "folder").unwrap().success());
        assert!(mkdir("700", "private").unwrap().success());
        let make = "umask 077; echo x > file";
        assert!(Command::new("sh").args(["-c", make]).current_dir(root).status().unwrap().success());
        ["folder", "private", "file"]
            .map(|name| fs::metadata(root.join(name)).unwrap().permissions().mode() & 0o777)
    });
    assert_eq!(modes, [0o755, 0o755, 0o644]);
}

#[test]
fn extended_attributes_are_not_supported() {
    let (client, _pod, served) = served("xattr", &[]);
    client.put("xattr", "file", b"x").unwrap();
    let (set, get) = served.touch("file", |path| {
        let flags = rustix::fs::XattrFlags::empty();
        let set = rustix::fs::setxattr(path, "user.a", b"b", flags).unwrap_err();
        (set, rustix::fs::getxattr(path, "user.a", &mut [0; 16]).unwrap_err())
    });
    assert_eq!((set, get), (Errno::NOTSUP, Errno::NOTSUP));
}

/// All that a bucket has, in which no file can have the names `.`, `..` and none at all. The server of the tests keeps objects
/// in files, so that it has the last two only.
const KEYS: [&str; 14] = [
    ".",
    "..",
    "../up",
    "./here",
    "//",
    "/leading",
    "folder/",
    "folder/.",
    "folder/..",
    "folder/../up",
    "folder/./here",
    "folder//double",
    "folder/file",
    "good",
];

/// The listing of a server that has them all, each with the content `x`.
fn listing(line: &str) -> String {
    let parameter = |name: &str| {
        let value = line.split(['?', '&', ' ']).find_map(|one| one.strip_prefix(name));
        value.unwrap_or_default().replace("%2F", "/")
    };
    let (prefix, delimiter) = (parameter("prefix="), parameter("delimiter="));
    let (mut objects, mut folders) = (Vec::new(), BTreeSet::new());
    for (key, name) in KEYS.iter().filter_map(|key| Some((key, key.strip_prefix(prefix.as_str())?))) {
        match name.split_once('/') {
            Some((folder, _)) if delimiter == "/" => {
                folders
                    .insert(format!("<CommonPrefixes><Prefix>{prefix}{folder}/</Prefix></CommonPrefixes>"));
            }
            _ => {
                objects.push(format!(
                    "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00Z</LastModified><Size>1</Size>\
                     <ETag>&quot;9dd4e461268c8034f5c8564e155c67a6&quot;</ETag></Contents>"
                ));
            }
        }
    }
    let entries = objects.into_iter().chain(folders).collect::<String>();
    format!("<ListBucketResult>{entries}<IsTruncated>false</IsTruncated></ListBucketResult>")
}

#[test]
fn keys_that_no_file_can_have_are_hidden_and_harm_nothing() {
    let client = bucket(ALICE, "hidden-names");
    for key in ["good", "folder/file"] {
        client.put("hidden-names", key, b"x").unwrap();
    }
    let faulty = Faulty::before("s3.test:80", |_, line| {
        if line.contains("list-type=2") { Fault::Invent(listing) } else { Fault::None }
    });
    let pod = MountpointPod::start();
    let request = pod.request(ALICE, "hidden-names", &["--allow-delete"]);
    let served = pod.mount(&with(request, "AWS_ENDPOINT_URL", &faulty.url())).unwrap();
    assert_eq!(served.list("").unwrap(), ["folder", "good"]);
    assert_eq!(served.list("folder").unwrap(), ["file"]);
    pod.logs("has an invalid name and will be unavailable");
    for name in ["good", "folder/file", "folder//file", "folder/./file", "folder/../good"] {
        assert_eq!(served.read(name).unwrap(), b"x", "{name}");
    }
    // These are other paths: of `folder/double`, `up` and `folder/here`.
    for name in ["folder//double", "folder/../up", "folder/./here"] {
        assert_eq!(served.read(name).unwrap_err().kind(), ErrorKind::NotFound, "{name}");
    }

    let remove =
        |root: &std::path::Path| Command::new("sh").args(["-c", "rm -r ./*"]).current_dir(root).output();
    let removed = served.touch("", remove).unwrap();
    assert!(!removed.status.success(), "the folder has other objects: {removed:?}");
    let mut deleted = faulty.seen();
    deleted.retain(|request| request.starts_with("DELETE "));
    assert_eq!(deleted, ["DELETE /hidden-names/folder/file", "DELETE /hidden-names/good"]);
    assert_eq!(client.objects("hidden-names", "").unwrap(), [""; 0]);
}
