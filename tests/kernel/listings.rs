//! What the answer to a listing says of files and folders that programs have open.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, statat};
use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, Served, bucket, eventually, with};
use s3_csi_tests::within;
use xtask::s3::ALICE;

use crate::files::relayed;

/// To list a folder, the library looks up its parent, too, which must not be asked for from the middle of the folder's names on.
#[test]
fn a_folder_whose_later_pages_are_listed_keeps_its_parent() {
    // More than a page.
    const FILES: usize = 1040;
    let (client, _pod, served, relay) = relayed("listed-pages", &[]);
    for number in 0..FILES {
        client.put("listed-pages", &format!("parent/folder/{number:04}"), b"content").unwrap();
    }
    let open = |name: &str| served.touch(name, |path| File::open(path).unwrap());
    let (parent, folder) = (open("parent"), open("parent/folder"));
    let known = parent.metadata().unwrap().ino();
    let later_pages = || relay.requests().iter().filter(|it| it.contains("continuation-token")).count();
    let folder = Arc::new(folder);
    // Each time later than the last one by as long as a listing is kept, so that what is known of the parent is not new any more.
    eventually("a later page is listed four times", || {
        let folder = Arc::clone(&folder);
        within("looking at files of the folder", LIMIT, move || {
            for number in (0..20).chain(1010..1030) {
                statat(&*folder, format!("{number:04}"), AtFlags::empty()).unwrap();
            }
        });
        later_pages() >= 4
    });
    assert_eq!(within("looking at the parent", LIMIT, move || parent.metadata().unwrap().ino()), known);
    assert_eq!(served.touch("parent", |path| fs::metadata(path).unwrap().ino()), known);
}

/// The server had answered before, and the answer arrives when there is another version.
#[test]
fn a_listing_that_is_late_does_not_separate_a_file_from_its_writer() {
    let client = bucket(ALICE, "late-listing");
    let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
    let pod = MountpointPod::start();
    let request = pod.request(ALICE, "late-listing", &["--allow-overwrite"]);
    let served = pod.mount(&with(request, "AWS_ENDPOINT_URL", &faulty.url())).unwrap();
    let file = served.touch("log", |path| {
        let mut file = File::create(path).unwrap();
        file.write_all(b"one ").and_then(|()| file.sync_all()).unwrap();
        file
    });
    let is_listing = |line: &str| line.contains("max-keys=1000");
    let late = Fault::Delay(Duration::from_secs(3));
    faulty.plan(move |_, line| if is_listing(line) { late } else { Fault::None });
    let path = served.path("");
    let listing = std::thread::spawn(move || fs::read_dir(path).unwrap().count());
    eventually("the server has answered with the first version", || {
        faulty.answered().iter().any(|line| is_listing(line))
    });
    let append = |words: &'static [u8]| {
        let mut open = file.try_clone().unwrap();
        within("a write", LIMIT, move || open.write_all(words).and_then(|()| open.sync_all()))
    };
    append(b"two ").unwrap();
    assert_eq!(within("a listing", LIMIT, move || listing.join().unwrap()), 1);
    append(b"three").unwrap();
    assert_eq!(within("its size", LIMIT, move || file.metadata().unwrap().len()), 13);
    assert_eq!(client.get("late-listing", "log").unwrap(), b"one two three");
    assert_eq!(served.read("log").unwrap(), b"one two three");
}

fn read_by_name(served: &Served, folder: &str, files: usize) {
    for number in 0..files {
        assert_eq!(served.read(&format!("{folder}/{number}")).unwrap(), b"content");
    }
}

/// Where a page serves all lookups until the TTL is over.
#[test]
fn a_folder_that_is_read_by_name_is_listed_with_a_ttl_or_a_cache_too() {
    const FILES: usize = 60;
    let cache = tempfile::tempdir_in("/run").unwrap();
    fs::set_permissions(cache.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let cache = format!("--cache={}", cache.path().display());
    for (bucket, argument) in [("listed-ttl", "--metadata-ttl=3600"), ("listed-cache", cache.as_str())] {
        let (client, _pod, served, relay) = relayed(bucket, &[argument]);
        let mut attempt = 0;
        eventually("one more request for some of the files, and none for most of them", || {
            attempt += 1;
            // What is known of the last one is still believed.
            let folder = format!("folder-{attempt}");
            for number in 0..FILES {
                client.put(bucket, &format!("{folder}/{number}"), b"content").unwrap();
            }
            let before = relay.requests().len();
            read_by_name(&served, &folder, FILES);
            relay.requests().len() - before < FILES * 3 / 2
        });
    }
}

#[test]
fn a_folder_is_not_listed_where_each_lookup_asks_the_server() {
    const FILES: usize = 60;
    let (client, _pod, served, relay) = relayed("listed-minimal", &["--metadata-ttl=minimal"]);
    for number in 0..FILES {
        client.put("listed-minimal", &format!("folder/{number}"), b"content").unwrap();
    }
    read_by_name(&served, "folder", FILES);
    let requests = relay.requests();
    assert!(requests.len() >= 3 * FILES, "{}", requests.len());
    assert!(!requests.iter().any(|request| request.contains("max-keys=1000")), "{requests:?}");
}
