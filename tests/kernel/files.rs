//! Files and folders of a served bucket, as programs use them.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, Served, bucket, eventually};
use s3_csi_tests::within;
use xtask::s3::{ALICE, Client};

fn served(name: &str, arguments: &[&str]) -> (Client, MountpointPod, Served) {
    let client = bucket(ALICE, name);
    let pod = MountpointPod::start();
    let served = pod.serve(ALICE, name, arguments);
    (client, pod, served)
}

fn kind(result: &std::io::Result<()>) -> Option<i32> {
    result.as_ref().err().and_then(std::io::Error::raw_os_error)
}

const NOT_PERMITTED: Option<i32> = Some(1);
const DENIED: Option<i32> = Some(13);
const READ_ONLY: Option<i32> = Some(30);

#[test]
fn objects_are_files_and_prefixes_are_folders() {
    let (client, _pod, served) = served("reading", &[]);
    for (key, content) in [("top", "1"), ("a/one", "22"), ("a/b/two", "333")] {
        client.put("reading", key, content.as_bytes()).unwrap();
    }
    assert_eq!(served.list("").unwrap(), ["a", "top"]);
    assert_eq!(served.list("a").unwrap(), ["b", "one"]);
    assert_eq!(served.read("a/b/two").unwrap(), b"333");
    assert_eq!(served.touch("a/one", |path| fs::metadata(path).unwrap().len()), 2);
    let missing = served.read("a/none").unwrap_err();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn what_is_written_is_an_object() {
    let (client, _pod, served) = served("writing", &[]);
    served.write("new", "content").unwrap();
    assert_eq!(client.get("writing", "new").unwrap(), b"content");
    assert_eq!(served.read("new").unwrap(), b"content");
    served.touch("folder/deep", |path| fs::create_dir_all(path)).unwrap();
    assert_eq!(client.objects("writing", "").unwrap(), ["new"], "a folder is no object until it has one");
    served.write("folder/deep/file", "x").unwrap();
    assert_eq!(client.objects("writing", "").unwrap(), ["folder/deep/file", "new"]);
    served.write("empty", "").unwrap();
    eventually("an empty file is an object", || client.get("writing", "empty").is_ok_and(|it| it.is_empty()));
}

#[test]
fn overwriting_needs_its_option() {
    let (client, _pod, plain) = served("no-overwrite", &[]);
    client.put("no-overwrite", "file", b"old").unwrap();
    assert_eq!(kind(&plain.write("file", "new")), NOT_PERMITTED);
    assert_eq!(client.get("no-overwrite", "file").unwrap(), b"old");

    let (client, _pod, allowed) = served("overwrite", &["--allow-overwrite"]);
    client.put("overwrite", "file", b"old and longer").unwrap();
    allowed.write("file", "new").unwrap();
    assert_eq!(client.get("overwrite", "file").unwrap(), b"new");
    assert_eq!(allowed.read("file").unwrap(), b"new");
}

#[test]
fn deleting_needs_its_option() {
    let (client, _pod, plain) = served("no-delete", &[]);
    client.put("no-delete", "file", b"old").unwrap();
    let refused = plain.touch("file", |path| fs::remove_file(path));
    assert_eq!(kind(&refused), NOT_PERMITTED);
    assert_eq!(client.get("no-delete", "file").unwrap(), b"old");

    let (client, _pod, allowed) = served("delete", &["--allow-delete"]);
    client.put("delete", "folder/file", b"old").unwrap();
    allowed.touch("folder/file", |path| fs::remove_file(path)).unwrap();
    assert_eq!(client.objects("delete", "").unwrap(), [""; 0]);
    assert_eq!(allowed.read("folder/file").unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn folders_without_objects_can_be_made_and_removed() {
    let (client, _pod, served) = served("folders", &["--allow-delete"]);
    served.touch("made", |path| fs::create_dir(path)).unwrap();
    assert_eq!(served.list("").unwrap(), ["made"]);
    served.touch("made", |path| fs::remove_dir(path)).unwrap();
    assert_eq!(served.list("").unwrap(), [""; 0]);
    client.put("folders", "full/file", b"x").unwrap();
    assert!(served.touch("full", |path| fs::remove_dir(path)).is_err(), "it has an object");
    assert_eq!(client.objects("folders", "").unwrap(), ["full/file"]);
}

#[test]
fn a_large_file_is_the_same_at_both_ends() {
    const SIZE: usize = 1 << 30;
    let (client, _pod, served) = served("large", &["--memory-target=1024"]);
    // A pattern that no shifted or swapped part would keep.
    let block = |number: usize| -> Vec<u8> {
        let mut state = number as u64 + 1;
        (0..1 << 17)
            .flat_map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                state.to_le_bytes()
            })
            .collect()
    };
    served
        .touch("file", move |path| {
            let mut file = File::create(path)?;
            (0..SIZE >> 20).try_for_each(|number| file.write_all(&block(number)))?;
            file.sync_all()
        })
        .unwrap();
    let stored = client.get("large", "file").unwrap();
    assert_eq!(stored.len(), SIZE);
    for (number, piece) in stored.chunks(1 << 20).enumerate() {
        assert!(piece == block(number), "megabyte {number} as the server has it");
    }
    drop(stored);
    let wrong = served.touch("file", move |path| {
        let mut file = File::open(path).unwrap();
        let mut piece = vec![0; 1 << 20];
        (0..SIZE >> 20).find(|number| {
            file.read_exact(&mut piece).unwrap();
            piece != block(*number)
        })
    });
    assert_eq!(wrong, None, "the first megabyte that is read wrong");
}

#[test]
fn ten_thousand_small_files_are_listed_and_read() {
    const COUNT: usize = 10_000;
    let (client, _pod, served) = served("many", &[]);
    std::thread::scope(|scope| {
        for part in 0..4 {
            let client = &client;
            scope.spawn(move || {
                for number in (part..COUNT).step_by(4) {
                    client.put("many", &format!("all/{number:05}"), number.to_string().as_bytes()).unwrap();
                }
            });
        }
    });
    let names = served.list("all").unwrap();
    assert_eq!(names.len(), COUNT);
    assert!(names.iter().enumerate().all(|(number, name)| *name == format!("{number:05}")));
    for number in (0..COUNT).step_by(97) {
        assert_eq!(served.read(&format!("all/{number:05}")).unwrap(), number.to_string().as_bytes());
    }
}

#[test]
fn readers_do_not_disturb_each_other() {
    const SIZE: usize = 32 << 20;
    let (client, _pod, served) = served("readers", &[]);
    let content: Vec<u8> = (0..SIZE).map(|at| u8::try_from(at / 4099 % 251).unwrap()).collect();
    client.put("readers", "file", &content).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert!(served.read("file").unwrap() == content));
        }
        let (served, content) = (&served, &content);
        scope.spawn(move || {
            let piece = |at: usize| {
                served.touch("file", move |path| {
                    let mut piece = vec![0; 1000];
                    File::open(path).unwrap().read_exact_at(&mut piece, at as u64).map(|()| piece)
                })
            };
            for at in [SIZE - 1000, 17, SIZE / 2, 8 << 20] {
                assert_eq!(piece(at).unwrap(), content[at..at + 1000]);
            }
        });
    });
}

#[test]
fn owners_and_modes_are_as_ordered() {
    let client = bucket(ALICE, "modes");
    client.put("modes", "folder/file", b"x").unwrap();
    let status = |arguments: &[&str], name: &str| {
        let pod = MountpointPod::start();
        let served = pod.serve(ALICE, "modes", arguments);
        served.touch(name, |path| {
            let metadata = fs::metadata(path).unwrap();
            (metadata.uid(), metadata.gid(), metadata.permissions().mode() & 0o777)
        })
    };
    assert_eq!(status(&[], "folder"), (1000, 1000, 0o755));
    assert_eq!(status(&[], "folder/file"), (1000, 1000, 0o644));
    let ordered = &["--uid=2001", "--gid=2002", "--dir-mode=750", "--file-mode=640"];
    assert_eq!(status(ordered, "folder"), (2001, 2002, 0o750));
    assert_eq!(status(ordered, "folder/file"), (2001, 2002, 0o640));
}

/// Reads as another user, in a process of its own.
fn read_as(user: u32, group: u32, served: &Served, name: &str) -> bool {
    let path = served.path(name);
    let mut cat = Command::new("cat")
        .arg(path)
        .uid(user)
        .gid(group)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    within("cat", LIMIT, move || cat.wait().unwrap().success())
}

#[test]
fn other_users_come_in_as_far_as_the_modes_allow() {
    let client = bucket(ALICE, "users");
    client.put("users", "file", b"x").unwrap();
    let pod = MountpointPod::start();
    let arguments = ["--allow-other", "--gid=3000", "--dir-mode=770", "--file-mode=660"];
    let served = pod.serve(ALICE, "users", &arguments);
    assert!(read_as(4000, 3000, &served, "file"), "a member of the group");
    assert!(!read_as(4000, 4000, &served, "file"), "a stranger");
    assert!(read_as(1000, 1000, &served, "file"), "the owner");
}

#[test]
fn only_root_and_the_owner_come_in_without_allow_other() {
    bucket(ALICE, "only-root").put("only-root", "file", b"x").unwrap();
    let pod = MountpointPod::start();
    let served = pod.serve(ALICE, "only-root", &[]);
    assert_eq!(served.read("file").unwrap(), b"x");
    assert!(read_as(1000, 1000, &served, "file"), "the owner");
    assert!(!read_as(4000, 4000, &served, "file"));
}

#[test]
fn read_only_refuses_every_change() {
    let (client, _pod, served) = served("read-only", &["--read-only", "--allow-delete", "--allow-overwrite"]);
    client.put("read-only", "file", b"old").unwrap();
    assert_eq!(served.read("file").unwrap(), b"old");
    let errors = [
        served.write("new", "x"),
        served.write("file", "x"),
        served.touch("file", |path| fs::remove_file(path)),
        served.touch("folder", |path| fs::create_dir(path)),
    ];
    for error in &errors {
        assert!([READ_ONLY, DENIED, NOT_PERMITTED].contains(&kind(error)) && error.is_err(), "{error:?}");
    }
    assert_eq!(client.objects("read-only", "").unwrap(), ["file"]);
    assert_eq!(client.get("read-only", "file").unwrap(), b"old");
}

#[test]
fn a_prefix_is_all_that_is_seen() {
    let client = bucket(ALICE, "prefixed");
    client.put("prefixed", "in/side/file", b"mine").unwrap();
    client.put("prefixed", "out", b"not mine").unwrap();
    let pod = MountpointPod::start();
    let served = pod.serve(ALICE, "prefixed", &["--prefix=in/side/"]);
    assert_eq!(served.list("").unwrap(), ["file"]);
    served.write("new", "x").unwrap();
    assert_eq!(client.objects("prefixed", "in/").unwrap(), ["in/side/file", "in/side/new"]);
}

#[test]
fn a_cache_answers_for_the_server_and_is_removed_at_the_end() {
    let folder = tempfile::tempdir_in("/run").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let client = bucket(ALICE, "cached");
    client.put("cached", "file", &vec![7; 3 << 20]).unwrap();
    let mut pod = MountpointPod::start();
    let served = pod.serve(ALICE, "cached", &[&format!("--cache={}", folder.path().display())]);
    let first = served.read("file").unwrap();
    let blocks = || walk(folder.path());
    eventually("the content is cached", || blocks() >= 3);
    // Behind the mount's back: the cache does not know, and answers for a minute.
    client.delete("cached", "file").unwrap();
    assert_eq!(served.read("file").unwrap(), first);
    pod.ask_to_exit();
    served.unmount();
    assert_eq!(pod.ended().code(), Some(0));
    assert_eq!(blocks(), 0);
}

/// How many files there are below.
fn walk(folder: &std::path::Path) -> usize {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries.flatten().map(|entry| if entry.path().is_dir() { walk(&entry.path()) } else { 1 }).sum()
}

#[test]
fn without_a_cache_changes_are_seen_and_with_a_ttl_they_are_not() {
    let client = bucket(ALICE, "ttl");
    client.put("ttl", "file", b"old").unwrap();
    let (fresh, lazy) = (MountpointPod::start(), MountpointPod::start());
    let fresh = (fresh.serve(ALICE, "ttl", &[]), fresh);
    let lazy = (lazy.serve(ALICE, "ttl", &["--metadata-ttl=indefinite"]), lazy);
    for (served, _) in [&fresh, &lazy] {
        assert_eq!(served.touch("file", |path| fs::metadata(path).unwrap().len()), 3);
        assert_eq!(served.read("later").unwrap_err().kind(), std::io::ErrorKind::NotFound);
    }
    client.put("ttl", "file", b"newer").unwrap();
    client.put("ttl", "later", b"x").unwrap();
    eventually("the change is seen", || {
        fresh.0.touch("file", |path| fs::metadata(path).unwrap().len()) == 5 && fresh.0.read("later").is_ok()
    });
    assert_eq!(lazy.0.touch("file", |path| fs::metadata(path).unwrap().len()), 3);
    assert_eq!(lazy.0.read("later").unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn seeking_while_reading_works_and_while_writing_is_refused() {
    let (client, _pod, served) = served("seeking", &[]);
    client.put("seeking", "file", b"0123456789").unwrap();
    let read = served.touch("file", |path| {
        let mut file = File::open(path).unwrap();
        let mut text = String::new();
        file.seek(SeekFrom::End(-3)).unwrap();
        file.read_to_string(&mut text).unwrap();
        text
    });
    assert_eq!(read, "789");
    let written = served.touch("new", |path| {
        let mut file = File::create(path)?;
        file.write_all(b"begin")?;
        file.seek(SeekFrom::Start(1000))?;
        file.write_all(b"end").and_then(|()| file.sync_all())
    });
    assert!(written.is_err(), "a hole cannot be uploaded");
}
