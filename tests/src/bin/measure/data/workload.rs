//! What programs do with files: the same with every server.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use s3_csi_tests::mountpoint_pod::{LIMIT, Served};
use s3_csi_tests::within;
use xtask::s3::Client;

use super::{BUCKET, resident_mb, seconds};

/// Bytes of each read and write of a large file, through the mount and with plain requests.
pub(super) const CHUNK: usize = 1 << 20;
pub(super) const RANDOM_SIZE: u64 = 256 << 10;
pub(super) const SMALL_SIZE: usize = 4 << 10;
/// For a gigabyte on a busy machine.
const LARGE_LIMIT: Duration = Duration::from_mins(3);

/// How much of everything.
#[derive(Clone, Copy)]
pub(super) struct Amount {
    /// Bytes of the large file.
    pub(super) large: u64,
    pub(super) random_reads: u64,
    /// Files that are read, as many that are written, and as many that are found and read.
    pub(super) small_files: usize,
}

impl Amount {
    pub(super) fn large_key(&self) -> String {
        format!("large-{}", self.large)
    }

    /// Offsets all over the large object, the same in every round.
    pub(super) fn places(&self) -> impl Iterator<Item = u64> + use<> {
        let slots = self.large / RANDOM_SIZE;
        // A step that shares no factor with the number of slots visits each once.
        (0..self.random_reads).map(move |number| number * 1021 % slots * RANDOM_SIZE)
    }
}

pub(super) fn fill(client: &Client, amount: &Amount, listed: usize) {
    fill_large(client, amount);
    for number in 0..amount.small_files {
        client.put(BUCKET, &format!("small/{number}"), &vec![b'x'; SMALL_SIZE]).unwrap();
        client.put(BUCKET, &format!("found/{number}"), &vec![b'x'; SMALL_SIZE]).unwrap();
    }
    for number in 0..listed {
        client.put(BUCKET, &format!("listed/{number}"), b"x").unwrap();
    }
}

pub(super) fn fill_large(client: &Client, amount: &Amount) {
    client.put(BUCKET, &amount.large_key(), &vec![7; usize::try_from(amount.large).unwrap()]).unwrap();
}

pub(super) struct Rates {
    /// Sequential read and write, random reads, small files read, written, found and read.
    pub(super) per_second: [f64; 6],
    /// Of the small files.
    pub(super) requests_per_file: [f64; 3],
    pub(super) list_ms: f64,
    pub(super) resident_mb: f64,
}

impl Rates {
    /// `requests` counts those that the server has got so far; `settle` waits until its disk is quiet.
    pub(super) fn measure(
        served: &Served,
        amount: &Amount,
        name: &str,
        listed: Option<usize>,
        requests: &dyn Fn() -> usize,
        settle: &dyn Fn(),
    ) -> Self {
        let Amount { large, small_files, .. } = *amount;
        let read = on_mount(served, &amount.large_key(), |path| {
            let mut file = File::open(path).unwrap();
            let mut buffer = vec![0; CHUNK];
            while file.read(&mut buffer).unwrap() > 0 {}
        });
        let write = on_mount(served, "written", move |path| {
            let mut file = File::create(path).unwrap();
            let chunk = vec![0; CHUNK];
            for _ in 0..large / CHUNK as u64 {
                file.write_all(&chunk).unwrap();
            }
            file.sync_all().unwrap();
        });
        settle();
        let places = amount.places();
        let random = on_mount(served, &amount.large_key(), |path| {
            let file = File::open(path).unwrap();
            let mut buffer = vec![0; usize::try_from(RANDOM_SIZE).unwrap()];
            for from in places {
                file.read_exact_at(&mut buffer, from).unwrap();
            }
        });
        let resident_mb = resident_mb(served.facts.pid);
        let mut counts = vec![requests()];
        let small_read = on_mount(served, "small", move |path| {
            for number in 0..small_files {
                assert_eq!(fs::read(path.join(number.to_string())).unwrap().len(), SMALL_SIZE);
            }
        });
        counts.push(requests());
        let small_write = on_mount(served, &format!("written-{name}"), move |path| {
            fs::create_dir(path).unwrap();
            for number in 0..small_files {
                fs::write(path.join(number.to_string()), vec![b'x'; SMALL_SIZE]).unwrap();
            }
        });
        counts.push(requests());
        let find_cat = on_mount(served, "found", move |path| {
            let found: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
            for path in &found[..small_files] {
                assert_eq!(fs::read(path).unwrap().len(), SMALL_SIZE);
            }
        });
        counts.push(requests());
        let list = listed.map_or(0.0, |names| {
            on_mount(served, "listed", move |path| assert_eq!(fs::read_dir(path).unwrap().count(), names))
        });
        let times = [read, write, random, small_read, small_write, find_cat];
        eprintln!("{name}: {times:.2?} s, list {list:.2} s, requests {counts:?}");
        let mut requests_per_file = [0.0; 3];
        for (each, pair) in requests_per_file.iter_mut().zip(counts.windows(2)) {
            *each = (pair[1] - pair[0]) as f64 / small_files as f64;
        }
        Self {
            per_second: times.map(|time| 1.0 / time),
            requests_per_file,
            list_ms: list * 1000.0,
            resident_mb,
        }
    }
}

fn on_mount(served: &Served, name: &str, act: impl FnOnce(&Path) + Send + 'static) -> f64 {
    let path = served.path(name);
    within(name, LARGE_LIMIT.max(LIMIT), move || seconds(|| act(&path)))
}
