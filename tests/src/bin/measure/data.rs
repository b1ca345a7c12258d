//! Files through the mount, compared with plain requests for the same bytes to the same server in the same run.

use std::fs::{self, File};
use std::io::{Read, Write as _};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, Served, bucket};
use s3_csi_tests::within;
use xtask::s3::{ALICE, Client};

use crate::Samples;

const BUCKET: &str = "bench-data";
const LARGE: u64 = 1 << 30;
/// Size of each read and write, through the mount and with plain requests.
const CHUNK: usize = 1 << 20;
/// Repetitions for a gigabyte; each takes a second or two.
const LARGE_ROUNDS: usize = 5;
const RANDOM_READS: u64 = 256;
const RANDOM_SIZE: u64 = 256 << 10;
const SMALL_FILES: usize = 1000;
const SMALL_SIZE: usize = 4 << 10;
const LISTED: usize = 10_000;
const STARTS: usize = 25;
/// For a gigabyte on a busy machine.
const LARGE_LIMIT: Duration = Duration::from_mins(3);

/// `other` is the folder of another `mount-s3`, measured in the same run.
pub(crate) fn measure(other: Option<&str>) -> Samples {
    let client = bucket(ALICE, BUCKET);
    let mut samples = Samples::new();
    eprintln!("objects");
    fill(&client);
    eprintln!("starts");
    starts(&mut samples);
    eprintln!("plain requests and the mount");
    let arguments = other.map(|folder| ["--mountpoint-bin-dir", folder]);
    let own = Server { kind: "own", mounter: &[], mount: &[] };
    let library_front = Server { kind: "library", mounter: &[], mount: &["--library-front"] };
    for round in 0..LARGE_ROUNDS {
        let plain = Rates::plain(&client, round);
        // Each of them is first as often as the other, because the second finds the machine in another state.
        let mut order = [&own, &library_front];
        order.rotate_left(round % 2);
        let mut rates = order.map(|server| Rates::mounted(&client, server, round));
        rates.rotate_left(round % 2);
        let [ours, library] = rates;
        record(&mut samples, OURS, &ours, &plain);
        record_front(&mut samples, &ours, &library);
        samples.entry("list_10000_ms").or_default().push(ours.list_ms);
        if let Some(mounter) = &arguments {
            let theirs = Rates::mounted(&client, &Server { kind: "other", mounter, mount: &[] }, round);
            record(&mut samples, AGAINST, &ours, &theirs);
        }
    }
    samples
}

/// What serves the bucket.
struct Server<'a> {
    kind: &'a str,
    /// Arguments of the mounter.
    mounter: &'a [&'a str],
    /// Arguments of the mount process.
    mount: &'a [&'a str],
}

/// Our FUSE front compared with the library's own, in the same program with the same options.
fn record_front(samples: &mut Samples, ours: &Rates, library: &Rates) {
    let [read, write, _, small_read, small_write] = ours.per_second;
    let [their_read, their_write, _, their_small_read, their_small_write] = library.per_second;
    let small = |read: f64, write: f64| 1.0 / (1.0 / read + 1.0 / write);
    for (key, ratio) in [
        ("read_ratio_to_library_front", read / their_read),
        ("write_ratio_to_library_front", write / their_write),
        (
            "small_ratio_to_library_front",
            small(small_read, small_write) / small(their_small_read, their_small_write),
        ),
        ("find_ratio_to_library_front", library.list_ms / ours.list_ms),
    ] {
        samples.entry(key).or_default().push(ratio);
    }
}

const OURS: [&str; 5] =
    ["seq_read_ratio", "seq_write_ratio", "random_read_ratio", "small_read_ratio", "small_write_ratio"];
const AGAINST: [&str; 5] = [
    "seq_read_ratio_vs_mount_s3",
    "seq_write_ratio_vs_mount_s3",
    "random_read_ratio_vs_mount_s3",
    "small_read_ratio_vs_mount_s3",
    "small_write_ratio_vs_mount_s3",
];

/// Higher is better.
fn record(samples: &mut Samples, keys: [&'static str; 5], ours: &Rates, others: &Rates) {
    for ((key, ours), others) in keys.into_iter().zip(ours.per_second).zip(others.per_second) {
        samples.entry(key).or_default().push(ours / others);
    }
}

/// Rates per second, in the order of the keys.
struct Rates {
    per_second: [f64; 5],
    list_ms: f64,
}

impl Rates {
    fn plain(client: &Client, round: usize) -> Self {
        settle(client);
        let mut buffer = vec![0; CHUNK];
        let mut drain = |mut reader: Box<dyn Read>| while reader.read(&mut buffer).unwrap() > 0 {};
        let read = seconds(|| drain(Box::new(client.stream(BUCKET, "large", 0..LARGE).unwrap())));
        let zeros = vec![0; usize::try_from(LARGE).unwrap()];
        let write = seconds(|| client.put(BUCKET, "written", &zeros).unwrap());
        settle(client);
        let random = seconds(|| {
            for from in places() {
                drain(Box::new(client.stream(BUCKET, "large", from..from + RANDOM_SIZE).unwrap()));
            }
        });
        let small_read = seconds(|| {
            for number in 0..SMALL_FILES {
                client.get(BUCKET, &format!("small/{number}")).unwrap();
            }
        });
        let content = vec![b'x'; SMALL_SIZE];
        let small_write = seconds(|| {
            for number in 0..SMALL_FILES {
                client.put(BUCKET, &format!("plain-small-{round}/{number}"), &content).unwrap();
            }
        });
        eprintln!("plain: {read:.2} {write:.2} {random:.2} {small_read:.2} {small_write:.2} s");
        Self {
            per_second: [read, write, random, small_read, small_write].map(|time| 1.0 / time),
            list_ms: 0.0,
        }
    }

    fn mounted(client: &Client, Server { kind, mounter, mount }: &Server<'_>, round: usize) -> Self {
        settle(client);
        let pod = MountpointPod::start_with(mounter);
        let served = pod.serve(ALICE, BUCKET, mount);
        let read = on_mount(&served, "large", |path| {
            let mut file = File::open(path).unwrap();
            let mut buffer = vec![0; CHUNK];
            while file.read(&mut buffer).unwrap() > 0 {}
        });
        let write = on_mount(&served, "written", |path| {
            let mut file = File::create(path).unwrap();
            let chunk = vec![0; CHUNK];
            for _ in 0..LARGE / CHUNK as u64 {
                file.write_all(&chunk).unwrap();
            }
            file.sync_all().unwrap();
        });
        settle(client);
        let random = on_mount(&served, "large", |path| {
            let file = File::open(path).unwrap();
            let mut buffer = vec![0; usize::try_from(RANDOM_SIZE).unwrap()];
            for from in places() {
                file.read_exact_at(&mut buffer, from).unwrap();
            }
        });
        let small_read = on_mount(&served, "small", |path| {
            for number in 0..SMALL_FILES {
                fs::read(path.join(number.to_string())).unwrap();
            }
        });
        let small_write = on_mount(&served, &format!("{kind}-small-{round}"), |path| {
            fs::create_dir(path).unwrap();
            for number in 0..SMALL_FILES {
                fs::write(path.join(number.to_string()), vec![b'x'; SMALL_SIZE]).unwrap();
            }
        });
        let list = on_mount(&served, "listed", |path| {
            assert_eq!(fs::read_dir(path).unwrap().count(), LISTED);
        });
        eprintln!("{kind}: {read:.2} {write:.2} {random:.2} {small_read:.2} {small_write:.2} {list:.2} s");
        Self {
            per_second: [read, write, random, small_read, small_write].map(|time| 1.0 / time),
            list_ms: list * 1000.0,
        }
    }
}

/// A gigabyte that the server's disk is still writing would slow down the next measurement.
fn settle(client: &Client) {
    // Missing the first time.
    let _ = client.delete(BUCKET, "written");
    rustix::fs::sync();
}

fn fill(client: &Client) {
    client.put(BUCKET, "large", &vec![7; usize::try_from(LARGE).unwrap()]).unwrap();
    for number in 0..SMALL_FILES {
        client.put(BUCKET, &format!("small/{number}"), &vec![b'x'; SMALL_SIZE]).unwrap();
    }
    for number in 0..LISTED {
        client.put(BUCKET, &format!("listed/{number}"), b"x").unwrap();
    }
}

/// The start of a mount, and the memory of the two processes while it is idle.
fn starts(samples: &mut Samples) {
    bucket(ALICE, "bench-start").put("bench-start", "file", b"x").unwrap();
    for _ in 0..STARTS {
        let pod = MountpointPod::start();
        let library = pod.serve(ALICE, "bench-start", &["--library-front"]);
        assert_eq!(library.list("").unwrap(), ["file"]);
        samples.entry("rss_idle_library_front_mb").or_default().push(resident_mb(library.facts.pid));
        drop(library);
        drop(pod);
        let began = Instant::now();
        let pod = MountpointPod::start();
        let request = pod.request(ALICE, "bench-start", &[]);
        let handed = Instant::now();
        let served = pod.mount(&request).unwrap();
        let serving = handed.elapsed();
        assert_eq!(served.list("").unwrap(), ["file"]);
        let listed = began.elapsed();
        samples.entry("handover_to_serving_p50_ms").or_default().push(milliseconds(serving));
        samples.entry("first_ls_ms").or_default().push(milliseconds(listed));
        samples.entry("rss_idle_mb").or_default().push(resident_mb(served.facts.pid));
        samples.entry("mounter_rss_mb").or_default().push(resident_mb(pod.process.id()));
    }
}

fn on_mount(served: &Served, name: &str, act: impl FnOnce(&std::path::Path) + Send + 'static) -> f64 {
    let path = served.path(name);
    within(name, LARGE_LIMIT.max(LIMIT), move || seconds(|| act(&path)))
}

fn seconds(act: impl FnOnce()) -> f64 {
    let began = Instant::now();
    act();
    began.elapsed().as_secs_f64()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Offsets all over the large object, the same in every round.
fn places() -> impl Iterator<Item = u64> {
    let slots = LARGE / RANDOM_SIZE;
    // A step that shares no factor with the number of slots visits each once.
    (0..RANDOM_READS).map(move |number| number * 1021 % slots * RANDOM_SIZE)
}

fn resident_mb(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}
