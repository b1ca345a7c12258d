//! The figures of a mount are true: they are compared with what the server got, and with what programs read and wrote. The
//! mount process writes them a moment later, so tests wait until they agree.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::thread;
use std::time::{Duration, Instant};

use mounter::figures::{Code, FILE, Figures, Operation, uptime};
use s3_csi_tests::alone::alone;
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, Served, bucket, eventually, with};
use s3_csi_tests::relay::Relay;
use s3_csi_tests::within;
use xtask::s3::{ALICE, Client};

use crate::files::served;

/// More than a part, so that it is uploaded in parts.
const LARGE: usize = (9 << 20) + 7;

fn relayed(name: &str, variables: &[(&str, &str)]) -> (Client, MountpointPod, Served, Relay) {
    let client = bucket(ALICE, name);
    let relay = Relay::to(Some("s3.test:80"));
    let pod = MountpointPod::start();
    let mut request = with(pod.request(ALICE, name, &[]), "AWS_ENDPOINT_URL", &relay.url());
    for (variable, value) in variables {
        request = with(request, variable, value);
    }
    let served = pod.mount(&request).unwrap();
    (client, pod, served, relay)
}

fn figures(pod: &MountpointPod) -> Figures {
    Figures::parse(&fs::read(pod.comm.path().join(FILE)).unwrap_or_default()).unwrap_or_default()
}

/// Waits until the figures are so, and returns them.
fn counts(pod: &MountpointPod, what: &str, so: impl Fn(&Figures) -> bool) -> Figures {
    let until = Instant::now() + LIMIT;
    loop {
        let last = figures(pod);
        if so(&last) {
            return last;
        }
        assert!(Instant::now() < until, "{what}: {last:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Attempts at these operations, with any code or this one.
fn attempts(figures: &Figures, operations: &[&str], code: Option<Code>) -> usize {
    let requests = operations.iter().filter_map(|name| figures.requests.get(&Operation::of(name)));
    let codes = requests.flat_map(|requests| &requests.codes);
    let counted = codes.filter(|(of, _)| code.is_none_or(|code| code == **of)).map(|(_, count)| *count);
    usize::try_from(counted.sum::<u64>()).unwrap()
}

fn all(figures: &Figures) -> usize {
    let counted = figures.requests.values().flat_map(|requests| requests.codes.values());
    usize::try_from(counted.sum::<u64>()).unwrap()
}

#[test]
fn every_request_and_every_byte_is_counted() {
    let (client, pod, served, relay) = relayed("figures", &[]);
    client.put("figures", "file", &vec![1; LARGE]).unwrap();
    assert_eq!(served.read("file").unwrap().len(), LARGE);
    // So many names come before a folder of that name that a listing does not say whether there is one.
    for number in 1..=3 {
        client.put("figures", &format!("folder/absent-{number}"), b"x").unwrap();
    }
    assert_eq!(served.read("folder/absent").unwrap_err().kind(), ErrorKind::NotFound);
    served.write("small", "content").unwrap();
    assert_eq!(served.list("").unwrap(), ["file", "folder", "small"]);
    let method = |name: &str| relay.requests().iter().filter(|request| request.starts_with(name)).count();
    let seen = counts(&pod, "the methods that the server has seen", |figures| {
        attempts(figures, &["GetObject", "ListObjectsV2"], None) == method("GET ")
            && attempts(figures, &["HeadObject"], None) == method("HEAD ")
            && attempts(figures, &["PutObject"], None) == method("PUT ")
            && all(figures) == relay.request_count()
    });
    assert!(attempts(&seen, &["GetObject"], None) >= 2, "in parts: {seen:?}");
    assert_eq!(seen.keys_expire, None, "keys of a Secret stay");
    assert!(attempts(&seen, &["HeadObject"], Some(Code::of_status(404))) >= 1, "{seen:?}");
    assert_eq!(attempts(&seen, &["PutObject"], Some(Code::of_status(200))), 1, "{seen:?}");
    served.write("large", vec![2; LARGE]).unwrap();
    let written = (LARGE + "content".len()) as u64;
    let seen = counts(&pod, "the bytes of programs, and parts", |figures| {
        (figures.read_bytes, figures.written_bytes) == (LARGE as u64, written)
            && (figures.uploads, figures.waiting_since) == (0, None)
            && attempts(figures, &["UploadPart"], Some(Code::of_status(200))) == 2
            && all(figures) == relay.request_count()
    });
    for (operation, requests) in &seen.requests {
        let counted: u64 = requests.codes.values().sum();
        assert_eq!(counted, requests.durations.iter().sum::<u64>(), "each has a duration: {operation:?}");
        assert!(requests.microseconds > 0, "{operation:?}");
    }
}

#[test]
fn errors_of_the_server_are_counted_by_their_status() {
    let (_client, pod, served, relay) = relayed("figures-errors", &[("AWS_MAX_ATTEMPTS", "3")]);
    relay.break_server();
    served.list("").unwrap_err();
    let broken = Some(Code::of_status(500));
    counts(&pod, "as many as the server has refused", |figures| {
        let counted = attempts(figures, &["ListObjectsV2", "HeadObject"], broken);
        counted > 1 && counted == relay.refused()
    });
}

#[test]
fn what_waits_is_known_until_it_does_not_wait_any_more() {
    // A process that another test starts would close the file, which publishes it.
    alone(|| {
        let (client, pod, served, relay) = relayed("figures-waiting", &[]);
        client.put("figures-waiting", "file", b"content").unwrap();
        let mut file = served.touch("written", |path| File::create(path).unwrap());
        file = within("writing", LIMIT, move || {
            file.write_all(b"some").unwrap();
            file
        });
        counts(&pod, "an upload", |figures| (figures.uploads, figures.written_bytes) == (1, 4));
        relay.fall_silent();
        let path = served.path("file");
        let reader = thread::spawn(move || within("reading", LIMIT, move || fs::read(path).unwrap()));
        counts(&pod, "a request waits", |figures| {
            figures.waiting_since.is_some_and(|since| since <= uptime())
        });
        relay.speak();
        assert_eq!(reader.join().unwrap(), b"content");
        within("closing", LIMIT, move || drop(file));
        counts(&pod, "nothing waits", |figures| (figures.uploads, figures.waiting_since) == (0, None));
    });
}

#[test]
fn hits_and_misses_of_the_cache_are_counted() {
    const BLOCKS: u64 = 3;
    const SIZE: u64 = BLOCKS << 20;
    let folder = tempfile::tempdir_in("/run").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let (client, pod, served) = served("figures-cache", &[&format!("--cache={}", folder.path().display())]);
    client.put("figures-cache", "file", &vec![7; 3 << 20]).unwrap();
    let cache = |figures: &Figures| (figures.cache_hits, figures.cache_misses);
    served.read("file").unwrap();
    // What follows a missing block is fetched together with it.
    counts(&pod, "nothing was there", |figures| cache(figures) == (0, 1));
    eventually("everything is there", || {
        let before = figures(&pod);
        served.read("file").unwrap();
        let after = counts(&pod, "the read", |after| after.read_bytes == before.read_bytes + SIZE);
        after.cache_hits - before.cache_hits == BLOCKS
    });
}

#[test]
fn a_successor_begins_with_figures_of_its_own() {
    let (client, pod, served) = served("figures-successor", &[]);
    client.put("figures-successor", "file", b"content").unwrap();
    served.read("file").unwrap();
    counts(&pod, "of the first process", |figures| figures.read_bytes == 7 && all(figures) > 0);
    served.kill();
    counts(&pod, "of the second process", |figures| *figures == Figures::default());
    assert_eq!(served.read("file").unwrap(), b"content");
    counts(&pod, "what it has done", |figures| figures.read_bytes == 7);
}
