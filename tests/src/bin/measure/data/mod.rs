//! Files through the mount, compared in the same run with plain requests for the same bytes to the same server, and with the
//! library's own front and defaults: near the server, and through relays that make each round trip longer.

mod plain;
mod workload;

use std::fs;
use std::time::{Duration, Instant};

use s3_csi_tests::mountpoint_pod::{MountpointPod, bucket, with};
use s3_csi_tests::relay::Relay;
use xtask::s3::{ALICE, Client};

use crate::Samples;
use plain::Plain;
use workload::{Amount, Rates};

const BUCKET: &str = "bench-data";
/// Rounds; in each of them ours and the library's front take turns in being the first.
const ROUNDS: usize = 5;
const STARTS: usize = 25;
/// Names in one folder that is listed.
const LISTED: usize = 10_000;
/// Near the server, where transfers matter.
const NEAR: Amount = Amount { large: 1 << 30, random_reads: 128, small_files: 300 };
/// Far from it, where round trips matter.
const FAR: Amount = Amount { large: 64 << 20, random_reads: 32, small_files: 60 };

/// What serves the bucket.
struct Server<'a> {
    kind: &'a str,
    /// Arguments of the mounter.
    mounter: &'a [&'a str],
    /// Arguments of the mount process.
    mount: &'a [&'a str],
}

const OURS: Server<'_> = Server { kind: "own", mounter: &[], mount: &[] };
/// The same program with the library's front, client and defaults, as `mount-s3` uses them.
const LIBRARY: Server<'_> = Server { kind: "library", mounter: &[], mount: &["--library-front"] };

/// A place from which the server is used, and the keys of what is measured there.
struct Place {
    name: &'static str,
    round_trip: Duration,
    against_library: [&'static str; 6],
}

const PLACES: [Place; 3] = [
    Place {
        name: "near",
        round_trip: Duration::ZERO,
        against_library: [
            "seq_read_vs_library",
            "seq_write_vs_library",
            "random_256k_vs_library",
            "small_read_vs_library",
            "small_write_vs_library",
            "find_cat_vs_library",
        ],
    },
    Place {
        name: "5ms",
        round_trip: Duration::from_millis(5),
        against_library: [
            "seq_read_vs_library_5ms",
            "seq_write_vs_library_5ms",
            "random_256k_vs_library_5ms",
            "small_read_vs_library_5ms",
            "small_write_vs_library_5ms",
            "find_cat_vs_library_5ms",
        ],
    },
    Place {
        name: "20ms",
        round_trip: Duration::from_millis(20),
        against_library: [
            "seq_read_vs_library_20ms",
            "seq_write_vs_library_20ms",
            "random_256k_vs_library_20ms",
            "small_read_vs_library_20ms",
            "small_write_vs_library_20ms",
            "find_cat_vs_library_20ms",
        ],
    },
];

const AGAINST_PLAIN: [&str; 5] =
    ["seq_read_ratio", "seq_write_ratio", "random_read_ratio", "small_read_ratio", "small_write_ratio"];
const AGAINST_MOUNT_S3: [&str; 6] = [
    "seq_read_ratio_vs_mount_s3",
    "seq_write_ratio_vs_mount_s3",
    "random_read_ratio_vs_mount_s3",
    "small_read_ratio_vs_mount_s3",
    "small_write_ratio_vs_mount_s3",
    "find_cat_ratio_vs_mount_s3",
];

/// `other` is the folder of another `mount-s3`, measured in the same run.
pub(crate) fn measure(other: Option<&str>) -> Samples {
    let client = bucket(ALICE, BUCKET);
    let mut samples = Samples::new();
    eprintln!("objects");
    workload::fill(&client, &NEAR, LISTED);
    workload::fill_large(&client, &FAR);
    eprintln!("starts");
    starts(&mut samples);
    let mounter = other.map(|folder| ["--mountpoint-bin-dir", folder]);
    for round in 0..ROUNDS {
        for place in &PLACES {
            compare(&mut samples, &client, place, round);
        }
        if let Some(mounter) = &mounter {
            let ours = mounted(&client, &OURS, &PLACES[0], round + ROUNDS);
            let theirs = Server { kind: "other", mounter, mount: &[] };
            let theirs = mounted(&client, &theirs, &PLACES[0], round);
            record(&mut samples, &AGAINST_MOUNT_S3, &ours.per_second, &theirs.per_second);
        }
    }
    samples
}

fn compare(samples: &mut Samples, client: &Client, place: &Place, round: usize) {
    // Each of them is first as often as the other, because the second finds the machine in another state.
    let mut order = [&OURS, &LIBRARY];
    order.rotate_left(round % 2);
    let mut rates = order.map(|server| mounted(client, server, place, round));
    rates.rotate_left(round % 2);
    let [ours, library] = rates;
    record(samples, &place.against_library, &ours.per_second, &library.per_second);
    if !place.round_trip.is_zero() {
        return record_requests(samples, place, &ours, &library);
    }
    let plain = Plain::measure(client, &NEAR, round);
    record(samples, &AGAINST_PLAIN, &ours.per_second[..5], &plain.per_second);
    let mut add = |key, value| samples.entry(key).or_default().push(value);
    add("seq_read_vs_ranged_get", ours.per_second[0] / plain.ranged_read_per_second);
    add("list_10000_ms", ours.list_ms);
    add("find_ratio_to_library_front", library.list_ms / ours.list_ms);
    add("rss_after_reads_mb", ours.resident_mb);
    add("rss_after_reads_library_front_mb", library.resident_mb);
}

/// Rates: higher is better.
fn record(samples: &mut Samples, keys: &[&'static str], ours: &[f64], others: &[f64]) {
    for ((key, ours), others) in keys.iter().zip(ours).zip(others) {
        samples.entry(key).or_default().push(ours / others);
    }
}

/// They do not depend on the distance, so that one place is enough.
fn record_requests(samples: &mut Samples, place: &Place, ours: &Rates, library: &Rates) {
    if place.name != "5ms" {
        return;
    }
    let keys = ["requests_per_small_read", "requests_per_small_write", "requests_per_find_cat"];
    let library_keys = [
        "requests_per_small_read_library",
        "requests_per_small_write_library",
        "requests_per_find_cat_library",
    ];
    for (keys, rates) in [(keys, ours), (library_keys, library)] {
        for (key, requests) in keys.into_iter().zip(rates.requests_per_file) {
            samples.entry(key).or_default().push(requests);
        }
    }
}

fn mounted(client: &Client, front: &Server<'_>, place: &Place, round: usize) -> Rates {
    settle(client);
    let pod = MountpointPod::start_with(front.mounter);
    let request = pod.request(ALICE, BUCKET, front.mount);
    let name = format!("{}-{}-{round}", front.kind, place.name);
    if place.round_trip.is_zero() {
        let served = pod.mount(&request).unwrap();
        return Rates::measure(&served, &NEAR, &name, Some(LISTED), &|| 0, &|| settle(client));
    }
    let relay = Relay::to(Some("s3.test:80")).far_away(place.round_trip);
    let served = pod.mount(&with(request, "AWS_ENDPOINT_URL", &relay.url())).unwrap();
    Rates::measure(&served, &FAR, &name, None, &|| relay.request_count(), &|| settle(client))
}

/// A gigabyte that the server's disk is still writing would slow down the next measurement.
fn settle(client: &Client) {
    // Missing the first time.
    let _ = client.delete(BUCKET, "written");
    rustix::fs::sync();
}

/// The start of a mount, and the memory of the two processes while it is idle.
fn starts(samples: &mut Samples) {
    bucket(ALICE, "bench-start").put("bench-start", "file", b"x").unwrap();
    for _ in 0..STARTS {
        let pod = MountpointPod::start();
        let library = pod.serve(ALICE, "bench-start", LIBRARY.mount);
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

pub(crate) fn seconds(act: impl FnOnce()) -> f64 {
    let began = Instant::now();
    act();
    began.elapsed().as_secs_f64()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

pub(crate) fn resident_mb(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}
