//! Files and folders of a served bucket, as programs use them.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use s3_csi_tests::killer::{between_requests, kill};
use s3_csi_tests::mountpoint_pod::{MountpointPod, Served, bucket, eventually, with};
use s3_csi_tests::relay::Relay;
use xtask::s3::{ALICE, Client};

pub(crate) fn served(name: &str, arguments: &[&str]) -> (Client, MountpointPod, Served) {
    let client = bucket(ALICE, name);
    let pod = MountpointPod::start();
    let served = pod.serve(ALICE, name, arguments);
    (client, pod, served)
}

/// The same through a relay, at which the requests can be counted and stopped.
pub(crate) fn relayed(name: &str, arguments: &[&str]) -> (Client, MountpointPod, Served, Relay) {
    let client = bucket(ALICE, name);
    let relay = Relay::to(Some("s3.test:80"));
    let pod = MountpointPod::start();
    let request = with(pod.request(ALICE, name, arguments), "AWS_ENDPOINT_URL", &relay.url());
    let served = pod.mount(&request).unwrap();
    (client, pod, served, relay)
}

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
fn a_written_file_is_an_object() {
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
    // Each page is filled with its own number, so that no shifted or swapped part would pass.
    let block = |number: usize| -> Vec<u8> {
        let page = |page: usize| (number * 256 + page).to_le_bytes().repeat(4096 / size_of::<usize>());
        (0..256).map(page).collect::<Vec<_>>().concat()
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
    // By another client: the cache does not notice, and answers for a minute.
    client.delete("cached", "file").unwrap();
    assert_eq!(served.read("file").unwrap(), first);
    pod.ask_to_exit();
    served.unmount();
    assert_eq!(pod.ended().code(), Some(0));
    assert_eq!(blocks(), 0);
}

/// A cache may have many files, and programs wait for the next process.
#[test]
fn the_next_mount_process_does_not_wait_until_the_cache_is_removed() {
    let folder = tempfile::tempdir_in("/run").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let client = bucket(ALICE, "cached-next");
    client.put("cached-next", "file", &vec![7; 3 << 20]).unwrap();
    let pod = MountpointPod::start();
    let served = pod.serve(ALICE, "cached-next", &[&format!("--cache={}", folder.path().display())]);
    let content = served.read("file").unwrap();
    eventually("the content is cached", || walk(folder.path()) >= 3);
    // It cannot be removed as long as something is mounted in it.
    let cache = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let within = cache.join("kept");
    fs::create_dir(&within).unwrap();
    mount("tmpfs", &within, "tmpfs", MountFlags::empty(), None).unwrap();
    kill(&pod, between_requests);
    client.put("cached-next", "other", b"other").unwrap();
    assert_eq!(served.read("other").unwrap(), b"other");
    let leftover = || {
        let folders = fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path());
        folders.filter(|path| *path != cache).collect::<Vec<_>>()
    };
    assert_eq!(leftover().len(), 1);
    unmount(leftover()[0].join("kept"), UnmountFlags::empty()).unwrap();
    kill(&pod, between_requests);
    eventually("the caches of all that died are removed", || leftover().is_empty());
    assert!(served.read("file").unwrap() == content);
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
