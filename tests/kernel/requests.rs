//! How many requests the server gets for what programs do, and that saving them hides nothing that other clients do. What a
//! lookup or a listing says is kept for less than a second, and a busy machine may take longer for a few files: so there are
//! several attempts.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use s3_csi_tests::alone::alone;
use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, bucket, eventually, with};
use s3_csi_tests::relay::Relay;
use s3_csi_tests::within;
use xtask::s3::ALICE;

use crate::files::{relayed, served};

/// The methods of the requests that this takes, sorted.
pub(crate) fn methods(relay: &Relay, act: impl FnOnce()) -> Vec<String> {
    let before = relay.requests().len();
    act();
    let mut made = relay.requests().split_off(before);
    for request in &mut made {
        request.truncate(request.find(' ').unwrap_or(request.len()));
    }
    made.sort();
    made
}

#[test]
fn a_small_file_is_written_with_two_requests() {
    alone(|| {
        for (bucket, arguments) in
            [("counted-new", &[][..]), ("counted-new-overwrite", &["--allow-overwrite"])]
        {
            let (client, _pod, served, relay) = relayed(bucket, arguments);
            let mut number = 0;
            eventually("one for the lookup and one for the upload", || {
                number += 1;
                let name = format!("file-{number}");
                let made = methods(&relay, || served.write(&name, "content").unwrap());
                assert_eq!(client.get(bucket, &name).unwrap(), b"content");
                assert_eq!(made.iter().filter(|method| *method == "PUT").count(), 1, "{made:?}");
                made == ["GET", "PUT"]
            });
            let puts = relay.heard().to_lowercase().matches("if-none-match: *").count();
            assert_eq!(puts, number, "each is for a new object only");
        }
    });
}

/// A request with all of the content could be carried out long after the writer has got its error.
#[test]
fn a_file_that_replaces_another_is_sent_in_parts() {
    alone(|| {
        let (client, _pod, served, relay) = relayed("counted-replaced", &["--allow-overwrite"]);
        client.put("counted-replaced", "file", b"old").unwrap();
        let made = methods(&relay, || served.write("file", "new").unwrap());
        assert_eq!(client.get("counted-replaced", "file").unwrap(), b"new");
        assert_eq!(made.iter().filter(|method| *method == "POST").count(), 2, "begin and complete: {made:?}");
        assert_eq!(made.iter().filter(|method| *method == "PUT").count(), 1, "one part: {made:?}");
    });
}

#[test]
fn a_listed_file_is_read_with_one_request_and_another_with_two() {
    const FILES: usize = 5;
    let (client, _pod, served, relay) = relayed("counted-reads", &[]);
    for number in 0..FILES {
        client
            .put("counted-reads", &format!("folder/{number}"), format!("content {number}").as_bytes())
            .unwrap();
    }
    let read = |number: usize| {
        let content = served.read(&format!("folder/{number}")).unwrap();
        assert_eq!(content, format!("content {number}").as_bytes());
    };
    served.touch("folder", |path| fs::metadata(path).unwrap().is_dir());
    eventually("what the name stands for, and content", || methods(&relay, || read(0)) == ["GET"; 2]);
    eventually("one listing, and one request for each file", || {
        served.touch("folder", |path| fs::metadata(path).unwrap().is_dir());
        let made = methods(&relay, || {
            assert_eq!(served.list("folder").unwrap().len(), FILES);
            (0..FILES).for_each(read);
        });
        made == ["GET"; FILES + 1]
    });
}

/// Instead of one more request for each file.
#[test]
fn a_folder_that_is_read_for_long_is_listed_again() {
    const FILES: usize = 40;
    let (client, _pod, served, relay) = relayed("counted-pages", &[]);
    for number in 0..FILES {
        client.put("counted-pages", &format!("folder/{number}"), b"content").unwrap();
    }
    assert_eq!(served.list("folder").unwrap().len(), FILES);
    let before = relay.requests().len();
    eventually("a page is listed without a program that lists", || {
        for number in 0..FILES {
            assert_eq!(served.read(&format!("folder/{number}")).unwrap(), b"content");
        }
        relay.requests()[before..].iter().any(|request| request.contains("max-keys=1000"))
    });
}

#[test]
fn a_folder_that_is_read_by_name_is_listed() {
    const FILES: usize = 60;
    let (client, _pod, served, relay) = relayed("counted-names", &[]);
    for number in 0..FILES {
        client.put("counted-names", &format!("folder/{number}"), b"content").unwrap();
    }
    eventually("one more request for some of the files, and none for most of them", || {
        served.touch("folder", |path| fs::metadata(path).unwrap().is_dir());
        let made = methods(&relay, || {
            for number in 0..FILES {
                assert_eq!(served.read(&format!("folder/{number}")).unwrap(), b"content");
            }
        });
        made.len() < FILES * 3 / 2
    });
    assert!(relay.requests().iter().any(|request| request.contains("max-keys=1000")));
}

/// The answers are late, so that lookups that wait for each other would not all be asked before the first of them.
#[test]
fn names_of_one_directory_are_looked_up_at_the_same_time() {
    const NAMES: usize = 8;
    let client = bucket(ALICE, "at-once");
    client.put("at-once", "folder/keeper", b"x").unwrap();
    let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
    let pod = MountpointPod::start();
    let request = pod.request(ALICE, "at-once", &[]);
    let served = pod.mount(&with(request, "AWS_ENDPOINT_URL", &faulty.url())).unwrap();
    served.touch("folder", |path| fs::metadata(path).map(drop)).unwrap();
    let is_of_name = |line: &str| line.contains("prefix=folder%2F");
    let late = Fault::Delay(Duration::from_secs(20));
    faulty.plan(move |_, line| if is_of_name(line) { late } else { Fault::None });
    let lookups: Vec<_> = (0..NAMES)
        .map(|number| {
            let path = served.path(&format!("folder/{number}"));
            std::thread::spawn(move || fs::metadata(path).is_ok())
        })
        .collect();
    eventually("all names are asked about", || {
        faulty.answered().iter().filter(|line| is_of_name(line)).count() >= NAMES
    });
    assert!(!lookups.iter().any(std::thread::JoinHandle::is_finished), "and no answer has arrived");
    for lookup in lookups {
        assert!(!within("a lookup", LIMIT, move || lookup.join().unwrap()), "it does not exist");
    }
}

#[test]
fn what_is_known_of_a_file_is_confirmed_when_it_is_opened() {
    let (client, _pod, served) = served("confirmed", &["--allow-overwrite"]);
    client.put("confirmed", "folder/keeper", b"x").unwrap();
    // Small files are fetched when they are opened, larger ones and empty ones are not.
    for size in [0, 1, 4 << 10, 1 << 20, (1 << 20) + 1, 3 << 20] {
        for round in 0..5_u8 {
            let content = vec![round; size];
            client.put("confirmed", "folder/file", &content).unwrap();
            assert!(served.list("folder").unwrap().contains(&"file".to_owned()));
            assert!(served.read("folder/file").unwrap() == content, "{size} bytes in round {round}");
            client.put("confirmed", "folder/file", b"other").unwrap();
            assert_eq!(served.read("folder/file").unwrap(), b"other");
            client.delete("confirmed", "folder/file").unwrap();
            let missing = served.read("folder/file").unwrap_err();
            assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
            client.put("confirmed", "folder/file", b"again").unwrap();
            assert!(served.list("folder").unwrap().contains(&"file".to_owned()));
            client.delete("confirmed", "folder/file").unwrap();
            served.write("folder/file", "created").unwrap();
            assert_eq!(client.get("confirmed", "folder/file").unwrap(), b"created");
        }
    }
}

#[test]
fn a_change_by_another_client_is_seen_by_programs_that_open_nothing() {
    let (client, _pod, served) = served("seen", &[]);
    client.put("seen", "file", b"1").unwrap();
    let length = || served.touch("file", |path| fs::metadata(path).map(|file| file.len()).ok());
    assert_eq!(length(), Some(1));
    client.put("seen", "file", b"22").unwrap();
    eventually("the new length", || length() == Some(2));
    client.delete("seen", "file").unwrap();
    eventually("nothing", || length().is_none());
    client.put("seen", "file", b"333").unwrap();
    eventually("another file", || length() == Some(3));
}

/// The entries that a program has not read yet were fetched with the others.
#[test]
fn a_listing_that_is_read_slowly_hides_no_change() {
    const FILES: usize = 600;
    let (client, _pod, served) = served("slowly", &[]);
    for number in 0..FILES {
        client.put("slowly", &format!("folder/{number:03}"), b"1").unwrap();
    }
    let stream = served.touch("folder", |path| fs::read_dir(path)).unwrap();
    let (first, stream) = within("an entry", LIMIT, move || {
        let mut stream = stream;
        (stream.next().unwrap().unwrap().file_name(), stream)
    });
    assert_eq!(first, "000");
    client.put("slowly", "folder/598", b"22").unwrap();
    client.delete("slowly", "folder/599").unwrap();
    // Longer than anything that was known before may be said.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(within("the others", LIMIT, move || stream.count()), FILES - 1);
    let length = |name| served.touch(name, |path| fs::metadata(path).map(|file| file.len()).ok());
    assert_eq!((length("folder/597"), length("folder/598"), length("folder/599")), (Some(1), Some(2), None));
}

/// The server had answered before, and the answer arrives later. With a TTL it would be believed for that long.
#[test]
fn a_listing_that_is_under_way_hides_nothing_that_is_done_here() {
    for (bucket, ttl) in [("under-way", &[][..]), ("under-way-ttl", &["--metadata-ttl=3600"])] {
        done_here_while_a_listing_is_under_way(bucket, ttl);
    }
}

fn done_here_while_a_listing_is_under_way(name: &str, ttl: &[&str]) {
    let client = bucket(ALICE, name);
    let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
    let pod = MountpointPod::start();
    let request = pod.request(ALICE, name, &[&["--allow-overwrite", "--allow-delete"], ttl].concat());
    let served = pod.mount(&with(request, "AWS_ENDPOINT_URL", &faulty.url())).unwrap();
    for file in ["deleted", "other", "written"] {
        client.put(name, &format!("folder/{file}"), b"1").unwrap();
    }
    served.touch("folder", |path| fs::metadata(path).map(drop)).unwrap();
    let is_listing = |line: &str| line.contains("max-keys=1000");
    let late = Fault::Delay(Duration::from_secs(3));
    faulty.plan(move |_, line| if is_listing(line) { late } else { Fault::None });
    let listings = || faulty.answered().iter().filter(|line| is_listing(line)).count();
    let before = listings();
    let path = served.path("folder");
    let listing = std::thread::spawn(move || fs::read_dir(path).unwrap().count());
    eventually("the server has answered from what is there now", || listings() > before);
    served.write("folder/written", "22").unwrap();
    served.touch("folder/deleted", |path| fs::remove_file(path)).unwrap();
    assert_eq!(within("a listing", LIMIT, move || listing.join().unwrap()), 3);
    let length = |name| served.touch(name, |path| fs::metadata(path).map(|file| file.len()).ok());
    assert_eq!((length("folder/written"), length("folder/deleted")), (Some(2), None));
}

#[test]
fn a_read_at_a_random_place_fetches_what_it_needs() {
    const READ: usize = 256 << 10;
    let (client, _pod, served, relay) = relayed("counted-places", &[]);
    let content: Vec<u8> = (0..20_u32 << 8).flat_map(|block| [block.to_le_bytes()[0]; 4 << 10]).collect();
    client.put("counted-places", "file", &content).unwrap();
    let file = served.touch("file", |path| File::open(path).unwrap());
    let before = relay.heard().len();
    let places = [17_usize << 20, 3 << 20, 11 << 20, 7 << 20];
    let read = served.touch("", move |_| {
        places.map(|place| {
            let mut read = vec![0; READ];
            file.read_exact_at(&mut read, place as u64).map(|()| read)
        })
    });
    for (place, read) in places.iter().zip(read) {
        assert!(read.unwrap() == content[*place..place + READ]);
    }
    let heard = relay.heard().split_off(before).to_lowercase();
    let ranges: Vec<u64> =
        heard.lines().filter_map(|line| line.strip_prefix("range: bytes=")).map(bytes).collect();
    assert_eq!(ranges.len(), places.len(), "{heard}");
    assert_eq!(ranges, [READ as u64; 4]);
}

/// `first-last`
fn bytes(range: &str) -> u64 {
    let (first, last) = range.split_once('-').unwrap();
    last.parse::<u64>().unwrap() - first.parse::<u64>().unwrap() + 1
}
