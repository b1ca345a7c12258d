//! The same bytes with plain requests.

use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use xtask::s3::Client;

use super::workload::{Amount, CHUNK, RANDOM_SIZE, SMALL_SIZE};
use super::{BUCKET, seconds, settle};

/// Bytes of one of several requests for a large object, and how many of them at once: as the mount process does it.
const RANGE: u64 = 8 << 20;
const AT_ONCE: usize = 8;

pub(super) struct Plain {
    /// Sequential read and write in one request each, random reads, small files read and written.
    pub(super) per_second: [f64; 5],
    /// The sequential read with requests of the same shape as the mount's.
    pub(super) ranged_read_per_second: f64,
}

impl Plain {
    pub(super) fn measure(client: &Client, amount: &Amount, round: usize) -> Self {
        settle(client);
        let large = amount.large_key();
        let read = seconds(|| drain(client.stream(BUCKET, &large, 0..amount.large).unwrap()));
        let ranged = seconds(|| ranged_read(client, &large, amount.large));
        let zeros = vec![0; usize::try_from(amount.large).unwrap()];
        let write = seconds(|| client.put(BUCKET, "written", &zeros).unwrap());
        settle(client);
        let random = seconds(|| {
            for from in amount.places() {
                drain(client.stream(BUCKET, &large, from..from + RANDOM_SIZE).unwrap());
            }
        });
        let small_read = seconds(|| {
            for number in 0..amount.small_files {
                client.get(BUCKET, &format!("small/{number}")).unwrap();
            }
        });
        let content = vec![b'x'; SMALL_SIZE];
        let small_write = seconds(|| {
            for number in 0..amount.small_files {
                client.put(BUCKET, &format!("plain-small-{round}/{number}"), &content).unwrap();
            }
        });
        let times = [read, write, random, small_read, small_write];
        eprintln!("plain: {times:.2?} s, ranged {ranged:.2} s");
        Self { per_second: times.map(|time| 1.0 / time), ranged_read_per_second: 1.0 / ranged }
    }
}

fn drain(mut reader: impl Read) {
    let mut buffer = vec![0; CHUNK];
    while reader.read(&mut buffer).unwrap() > 0 {}
}

fn ranged_read(client: &Client, key: &str, length: u64) {
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let from = next.fetch_add(RANGE, Ordering::Relaxed);
                    if from >= length {
                        break;
                    }
                    drain(client.stream(BUCKET, key, from..length.min(from + RANGE)).unwrap());
                }
            });
        }
    });
}
