//! Files through the mount, compared in the same run with plain requests for the same bytes to the same server, and with the
//! library's own front and defaults: near the server, and through relays that make each round trip longer.

mod amount;
mod knobs;
mod mounted;
mod place;
mod plain;
mod rows;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use s3_csi_tests::mountpoint_pod::{MountpointPod, bucket};
use s3_csi_tests::processes::memory_mb;
use xtask::s3::{ALICE, Client};

use crate::{Samples, show};
use mounted::{Figures, Front, Mounted, PROCESSES};
use place::{COUNTED, COUNTING, FAR, FARTHER, NEAR, PLACES, Place};
use rows::{LISTINGS, ONCE, ROWS, Row};

const BUCKET: &str = "bench-data";
/// Rounds; in each of them ours and the library's front take turns in being the first.
const ROUNDS: usize = 5;
const STARTS: usize = 25;
/// What is measured besides rows.
const PARTS: [&str; 3] = ["starts", "with_options", "knobs"];

/// What survival costs beside a front that cannot survive: keys, and their rows.
const SURVIVAL_COSTS: [(&str, &str); 4] = [
    ("read_ratio_to_library_front", "seq_read"),
    ("write_ratio_to_library_front", "seq_write"),
    ("small_ratio_to_library_front", "small_read"),
    ("find_ratio_to_library_front", "find_10000"),
];

const OURS: Front<'_> = Front { name: "own", mounter: &[], mount: &[], environment: &[], read_ahead: None };
/// The same program with the library's front, client and defaults, as `mount-s3` uses them; also with the kernel's default of
/// read-ahead, which the library does not set.
const LIBRARY: Front<'_> = Front { name: "library", mount: &["--library-front"], ..OURS };
const UPSTREAM: Front<'_> = Front { name: "upstream", read_ahead: Some("128"), ..LIBRARY };

/// `other` is the folder of another `mount-s3`, measured in the same run. With `only`, these rows and parts and nothing else,
/// with commas in between.
pub(crate) fn measure(other: Option<&str>, only: Option<&str>) -> Samples {
    let is_wanted = |key: &str| only.is_none_or(|only| only.split(',').any(|one| one == key));
    let wanted = |place: &Place| -> Vec<&'static Row> {
        place.rows.iter().copied().flatten().filter(|row| is_wanted(row.key)).collect()
    };
    let parts = PARTS.map(is_wanted);
    let rows = PLACES.iter().chain([&COUNTING]).flat_map(|place| place.rows.iter().copied().flatten());
    let known: Vec<&str> = rows.map(|row| row.key).chain(PARTS).collect();
    let unknown = only.into_iter().flat_map(|only| only.split(',')).find(|one| !known.contains(one));
    assert_eq!(unknown, None, "--only has a name that is neither a row nor one of {PARTS:?}");
    let client = bucket(ALICE, BUCKET);
    let mut samples = Samples::new();
    eprintln!("objects");
    NEAR.fill(&client);
    FAR.fill(&client);
    FARTHER.fill(&client);
    let mounter = other.map(|folder| ["--mountpoint-bin-dir", folder]);
    for round in 0..ROUNDS {
        for place in PLACES.iter().filter(|place| !wanted(place).is_empty()) {
            compare(&mut samples, &client, place, &wanted(place), round);
        }
        if let Some(mounter) = mounter.as_ref().filter(|_| !wanted(&PLACES[0]).is_empty()) {
            let theirs = Front { name: "other", mounter, ..OURS };
            let [place, ..] = &PLACES;
            let [ours, theirs] = in_turns(&client, [&OURS, &theirs], place, &wanted(place), round + ROUNDS);
            record(&mut samples, &ours, &theirs, "_vs_mount_s3");
        }
        show(&samples);
    }
    for (turn, row) in wanted(&COUNTING).into_iter().enumerate() {
        // Each in a mount of its own, which knows nothing of the files yet.
        let [ours, library] = in_turns(&client, [&OURS, &LIBRARY], &COUNTING, &[row], turn);
        record(&mut samples, &ours, &library, "_vs_library");
        record_requests(&mut samples, &ours, &library, "");
        record_seconds(&mut samples, &ours, ONCE);
    }
    show(&samples);
    let [of_starts, of_options, of_knobs] = parts;
    if of_starts {
        eprintln!("starts");
        starts(&mut samples);
        show(&samples);
    }
    if of_options {
        eprintln!("options");
        with_options(&mut samples, &client);
    }
    if of_knobs {
        eprintln!("knobs");
        knobs::measure(&mut samples, &client);
    }
    samples
}

fn compare(samples: &mut Samples, client: &Client, place: &Place, rows: &[&'static Row], round: usize) {
    let [ours, library] = in_turns(client, [&OURS, &LIBRARY], place, rows, round);
    let suffix = place.suffix;
    record(samples, &ours, &library, &format!("_vs_library{suffix}"));
    record_requests(samples, &ours, &library, suffix);
    if suffix == COUNTED {
        record_requests(samples, &ours, &library, "");
    }
    let plain = plain::measure(client, place, rows, round);
    for (key, seconds) in plain {
        let through_mount = ours.rows.get(mounted_key(key));
        if let Some(figure) = through_mount {
            add(samples, format!("{key}{suffix}"), seconds / figure.seconds);
        }
    }
    if place.round_trip.is_some() {
        return;
    }
    survival_costs(samples, &ours, &library);
    record_seconds(samples, &ours, LISTINGS);
    record_processor_seconds(samples, &ours, &library, place);
    if let Some(sequential) = rows.iter().copied().find(|row| row.key == "seq_read") {
        let upstream = Mounted::measure(client, &UPSTREAM, place, &[sequential], round + 2 * ROUNDS);
        let [ours, upstream] = [&ours, &upstream].map(|measured| measured.rows[sequential.key].seconds);
        add(samples, "seq_read_vs_upstream".to_owned(), upstream / ours);
    }
    add(samples, "peak_mb".to_owned(), ours.peak_mb);
    add(samples, "peak_library_mb".to_owned(), library.peak_mb);
}

/// The row that a comparison with plain requests is about.
fn mounted_key(key: &str) -> &str {
    key.split("_vs_").next().unwrap_or(key)
}

/// Each of them is first as often as the other, because the second finds the machine in another state.
fn in_turns(
    client: &Client,
    mut fronts: [&Front<'_>; 2],
    place: &Place,
    rows: &[&'static Row],
    round: usize,
) -> [Mounted; 2] {
    fronts.rotate_left(round % 2);
    let mut measured = fronts.map(|front| Mounted::measure(client, front, place, rows, round));
    measured.rotate_left(round % 2);
    measured
}

/// Rates divided by each other: higher is better.
fn record(samples: &mut Samples, ours: &Mounted, others: &Mounted, suffix: &str) {
    for (key, Figures { seconds, .. }) in &ours.rows {
        add(samples, format!("{key}{suffix}"), others.rows[key].seconds / seconds);
    }
}

fn record_requests(samples: &mut Samples, ours: &Mounted, library: &Mounted, suffix: &str) {
    for (front, measured) in [("", ours), ("_library", library)] {
        for (key, figure) in &measured.rows {
            if let Some(requests) = figure.requests {
                add(samples, format!("requests_per_{key}{front}{suffix}"), requests);
            }
        }
    }
}

fn record_seconds(samples: &mut Samples, ours: &Mounted, rows: &[Row]) {
    for figure in rows.iter().filter_map(|row| Some((row.key, ours.rows.get(row.key)?))) {
        add(samples, format!("{}_s", figure.0), figure.1.seconds);
    }
}

/// Of the mount process as a whole, and of each process that has a part in a transfer.
fn record_processor_seconds(samples: &mut Samples, ours: &Mounted, library: &Mounted, place: &Place) {
    let gib = place.amount.large as f64 / f64::from(1 << 30);
    for (front, measured) in [("", ours), ("_library", library)] {
        for row in ["seq_read", "seq_read_4", "seq_write", "seq_write_4"] {
            let Some(figure) = measured.rows.get(row) else { continue };
            let of_mount: f64 = figure.processor_seconds[0].iter().sum();
            add(samples, format!("{row}_cpu_s_per_gib{front}"), of_mount / gib);
            for (process, [user, system]) in PROCESSES.iter().zip(figure.processor_seconds) {
                add(samples, format!("{row}_{process}_user_s_per_gib{front}"), user / gib);
                add(samples, format!("{row}_{process}_system_s_per_gib{front}"), system / gib);
            }
        }
    }
}

fn survival_costs(samples: &mut Samples, ours: &Mounted, library: &Mounted) {
    for (key, row) in SURVIVAL_COSTS {
        if let (Some(ours), Some(library)) = (ours.rows.get(row), library.rows.get(row)) {
            add(samples, key.to_owned(), library.seconds / ours.seconds);
        }
    }
}

/// What `metadata-ttl` and a cache bring to files that are read once more, compared with ours without them.
fn with_options(samples: &mut Samples, client: &Client) {
    let rows: Vec<&'static Row> =
        ROWS.iter().filter(|row| ["seq_read", "small_read"].contains(&row.key)).collect();
    let twice: Vec<&'static Row> = [&rows[..], &rows[..]].concat();
    let [near, far, ..] = &PLACES;
    for (round, place) in (0..ROUNDS).flat_map(|round| [(round, near), (round, far)]) {
        let folder = tempfile::tempdir().unwrap();
        // The mount process is another user.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        let cache = format!("--cache={}", folder.path().display());
        let without = Mounted::measure(client, &OURS, place, &rows, round + 3 * ROUNDS);
        for (name, mount) in [("ttl", ["--metadata-ttl=3600"]), ("cache", [cache.as_str()])] {
            let front = Front { name, mount: &mount, ..OURS };
            let cold = Mounted::measure(client, &front, place, &rows, round + 4 * ROUNDS);
            record(samples, &cold, &without, &format!("_{name}_cold_vs_none{}", place.suffix));
            // The second time in the same mount.
            let warm = Mounted::measure(client, &front, place, &twice, round + 5 * ROUNDS);
            record(samples, &warm, &without, &format!("_{name}_warm_vs_none{}", place.suffix));
        }
        show(samples);
    }
}

fn add(samples: &mut Samples, key: String, sample: f64) {
    // Few, and needed until the program ends.
    samples.entry(key.leak()).or_default().push(sample);
}

/// The start of a mount, and the memory of the two processes while it is idle.
fn starts(samples: &mut Samples) {
    bucket(ALICE, "bench-start").put("bench-start", "file", b"x").unwrap();
    for _ in 0..STARTS {
        let pod = MountpointPod::start();
        let library = pod.serve(ALICE, "bench-start", LIBRARY.mount);
        assert_eq!(library.list("").unwrap(), ["file"]);
        samples.entry("rss_idle_library_front_mb").or_default().push(memory_mb(library.facts.pid, "VmRSS:"));
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
        let mut add = |key: &'static str, sample| samples.entry(key).or_default().push(sample);
        add("handover_to_serving_p50_ms", milliseconds(serving));
        add("first_ls_ms", milliseconds(listed));
        add("rss_idle_mb", memory_mb(served.facts.pid, "VmRSS:"));
        add("mounter_rss_mb", memory_mb(pod.process.id(), "VmRSS:"));
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

/// A gigabyte that the server's disk is still writing would slow down the next measurement.
fn settle(client: &Client) {
    // Missing the first time.
    let _ = client.delete(BUCKET, "written");
    rustix::fs::sync();
}
