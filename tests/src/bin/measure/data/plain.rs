//! The same bytes with plain requests.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use xtask::s3::{ALICE, Client};

use super::amount::{CHUNK, LARGE_READ, SMALL_SIZE};
use super::rows::{Row, in_parallel};
use super::{BUCKET, Place, seconds, settle};

/// Bytes of one of several requests for a large object, and how many of them at once: as the mount process does it.
const PART: u64 = 8 << 20;
const AT_ONCE: usize = 8;

/// Seconds, by the key of the comparison: a row, and what it is compared with.
pub(super) fn measure(
    near: &Client,
    place: &Place,
    rows: &[&'static Row],
    round: usize,
) -> BTreeMap<&'static str, f64> {
    let relay = place.relay();
    let far = relay.as_ref().map(|relay| Client::new(&relay.url(), ALICE).unwrap());
    let client = far.as_ref().unwrap_or(near);
    let (amount, large) = (place.amount, place.amount.large_key());
    let content = vec![b'x'; SMALL_SIZE];
    let get = |name: &str| drop(client.get(BUCKET, &format!("small/{name}")).unwrap());
    let act = |key: &str| match key {
        "seq_read_vs_get" => drain(client.stream(BUCKET, &large, 0..amount.large).unwrap()),
        "seq_read_vs_ranged_get" => ranged_read(client, &large, amount.large),
        "seq_write_vs_put" => {
            client.put(BUCKET, "written", &vec![0; usize::try_from(amount.large).unwrap()]).unwrap();
        }
        "seq_write_vs_multipart_put" => write_in_parts(client, "written", amount.large),
        "random_256k_vs_get" => {
            for from in amount.places() {
                drain(client.stream(BUCKET, &large, from..from + LARGE_READ).unwrap());
            }
        }
        "small_read_vs_get" => amount.names().iter().for_each(|name| get(name)),
        "small_read_16_vs_get" => in_parallel(&amount.names(), get),
        "small_write_vs_put" => {
            for name in amount.names() {
                let key = format!("plain{}-{round}/{name}", place.suffix);
                client.put(BUCKET, &key, &content).unwrap();
            }
        }
        _ => unreachable!("{key}"),
    };
    let keys = [
        "seq_read_vs_get",
        "seq_read_vs_ranged_get",
        "seq_write_vs_put",
        "seq_write_vs_multipart_put",
        "random_256k_vs_get",
        "small_read_vs_get",
        "small_read_16_vs_get",
        "small_write_vs_put",
    ];
    let keys = keys.into_iter().filter(|key| rows.iter().any(|row| row.key == super::mounted_key(key)));
    let times = keys.map(|key| {
        settle(near);
        (key, seconds(|| act(key)))
    });
    let times = times.collect();
    eprintln!("plain{}: {times:.2?} s", place.suffix);
    times
}

fn drain(mut reader: impl Read) {
    let mut buffer = vec![0; CHUNK];
    while reader.read(&mut buffer).unwrap() > 0 {}
}

fn ranged_read(client: &Client, key: &str, length: u64) {
    of_each_part(length, |part| {
        let from = part * PART;
        drain(client.stream(BUCKET, key, from..length.min(from + PART)).unwrap());
    });
}

fn write_in_parts(client: &Client, key: &str, length: u64) {
    let upload = client.begin_upload(BUCKET, key, "binary/octet-stream").unwrap();
    let content = vec![0; usize::try_from(PART).unwrap()];
    let parts =
        of_each_part(length, |part| client.upload_part(BUCKET, key, &upload, part + 1, &content).unwrap());
    client.complete_upload(BUCKET, key, &upload, &parts).unwrap();
}

/// The results in the order of the parts.
fn of_each_part<T: Send>(length: u64, act: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let next = AtomicU64::new(0);
    let work = || -> Vec<(u64, T)> {
        let parts = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        parts.take_while(|part| part * PART < length).map(|part| (part, act(part))).collect()
    };
    let mut results: Vec<(u64, T)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    results.sort_by_key(|(part, _)| *part);
    results.into_iter().map(|(_, result)| result).collect()
}
