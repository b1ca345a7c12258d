//! What programs notice when the mount process dies, or when the mount moves to another Mountpoint Pod: how long a read takes, and
//! whether anything is wrong.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mounter::handover::MountReply;
use rustix::fs::OFlags;
use s3_csi_tests::killer::{at_once, kill, while_killing};
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, bucket};
use s3_csi_tests::processes::memory_mb;
use s3_csi_tests::relocation::{Kept, leaves};
use s3_csi_tests::within;
use xtask::s3::{ALICE, Client};

use crate::Samples;
use crate::data::seconds;

const BUCKET: &str = "bench-survive";
/// Deaths for each pause that is measured, and while files are written.
const KILLS: usize = 25;
/// Until the next process reads ahead again as before.
const REST: Duration = Duration::from_millis(300);
const OPTIONS: &[&str] = &["--allow-overwrite"];
/// Keys of what is measured of moves: half of the pauses are shorter, the longest, and errors of the reader.
const UPGRADE: [&str; 3] = ["upgrade_pause_p50_ms", "upgrade_pause_worst_ms", "upgrade_errors"];
const EVICTION: [&str; 3] = ["evict_pause_p50_ms", "evict_pause_worst_ms", "evict_errors"];
const LENGTH: usize = 8 << 20;
const PAGE: usize = 4096;
/// Files that the kernel knows when the process dies.
const KNOWN: usize = 100_000;
/// Threads that create them.
const FILLERS: usize = 8;
/// How long each process lives while files are written.
const LIFE: Duration = Duration::from_secs(1);
/// Files of each of two sizes in one round.
const WRITTEN: usize = 100;
/// Until that many have died: each lives for a second at most, and on an idle machine, the next one serves soon.
const WRITERS_WITHIN: Duration = Duration::from_mins(10);

pub(crate) fn measure() -> Samples {
    let client = bucket(ALICE, BUCKET);
    let content: Arc<Vec<u8>> =
        Arc::new((0..LENGTH).map(|at| u8::try_from(at / PAGE % 251).unwrap()).collect());
    client.put(BUCKET, "file", &content).unwrap();
    let mut samples = Samples::new();
    eprintln!("costs");
    costs(&client, &mut samples);
    let mut pod = MountpointPod::start();
    let served = pod.serve(ALICE, BUCKET, OPTIONS);
    let file = served.touch("file", |path| {
        let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap();
        File::options().read(true).custom_flags(direct).open(path)
    });
    let reader = Reader::start(file.unwrap(), content);
    eprintln!("pauses");
    pauses(&pod, &reader, samples.entry("crash_pause_p50_ms").or_default());
    let worst = samples["crash_pause_p50_ms"].clone();
    samples.insert("crash_pause_worst_ms", worst);
    eprintln!("moves");
    for (killed, keys) in [(false, UPGRADE), (true, EVICTION)] {
        let before = reader.errors.load(Ordering::Relaxed);
        let pauses = moves(&mut pod, &reader, killed);
        samples.insert(keys[0], pauses.clone());
        samples.insert(keys[1], pauses);
        samples.insert(keys[2], vec![(reader.errors.load(Ordering::Relaxed) - before) as f64]);
    }
    eprintln!("pauses with {KNOWN} known files");
    thread::scope(|scope| {
        for filler in 0..FILLERS {
            let client = &client;
            scope.spawn(move || {
                for number in (filler..KNOWN).step_by(FILLERS) {
                    client.put(BUCKET, &format!("known/{number}"), b"x").unwrap();
                }
            });
        }
    });
    let known = served.touch("known", |path| {
        fs::read_dir(path)?.map(|entry| entry?.metadata()).collect::<io::Result<Vec<_>>>()
    });
    assert_eq!(known.unwrap().len(), KNOWN);
    pauses(&pod, &reader, samples.entry("crash_pause_100000_files_p50_ms").or_default());
    eprintln!("writers");
    let (partial, writer_kills) = writers(&client, &pod, |name| served.path(name));
    let killing = ["crash_pause_p50_ms", EVICTION[0], "crash_pause_100000_files_p50_ms"];
    let reader_kills: usize = killing.iter().map(|key| samples[key].len()).sum();
    assert!(writer_kills > 0 && reader_kills > 0, "{writer_kills} of writers, {reader_kills} of readers");
    let count = |count: u64| vec![count as f64];
    samples.insert("reader_errors", count(reader.errors.load(Ordering::Relaxed)));
    samples.insert("wrong_bytes", count(reader.wrong.load(Ordering::Relaxed)));
    for (key, number) in [
        ("partial_objects", partial),
        ("kills", writer_kills + reader_kills),
        ("writer_kills", writer_kills),
        ("reader_kills", reader_kills),
    ] {
        samples.insert(key, vec![number as f64]);
    }
    samples
}

/// Bytes of a file that is read from the beginning to the end.
const SEQUENTIAL: usize = 512 << 20;
const ROUNDS: usize = 5;

/// What survival costs: memory, and the speed of a sequential read beside that of the library's own front, which cannot survive.
fn costs(client: &Client, samples: &mut Samples) {
    client.put(BUCKET, "sequential", &vec![b'x'; SEQUENTIAL]).unwrap();
    let mut read = |options: &[&str]| {
        let pod = MountpointPod::start();
        let served = pod.serve(ALICE, BUCKET, options);
        let memory = memory_mb(served.facts.pid, "VmRSS:");
        let mut dd = Command::new("dd");
        let source = format!("if={}", served.path("sequential").display());
        dd.args([source.as_str(), "of=/dev/null", "bs=1M", "status=none"]);
        let took = within("a read", LIMIT, move || seconds(|| assert!(dd.status().unwrap().success())));
        (took, memory)
    };
    for round in 0..ROUNDS {
        // Each of them is first as often as the other.
        let mut order = [&[][..], &["--library-front"][..]];
        order.rotate_left(round % 2);
        let mut results = order.map(&mut read);
        results.rotate_left(round % 2);
        let [(ours, memory), (library, _)] = results;
        samples.entry("read_ratio_to_library_front").or_default().push(library / ours);
        samples.entry("idle_rss_mb").or_default().push(memory);
    }
    client.delete(BUCKET, "sequential").unwrap();
}

/// Reads one page after the other, past the page cache.
struct Reader {
    /// The longest read since it was taken, in microseconds.
    longest: Arc<AtomicU64>,
    errors: Arc<AtomicU64>,
    wrong: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Reader {
    fn start(file: File, content: Arc<Vec<u8>>) -> Self {
        let reader = Self {
            longest: Arc::default(),
            errors: Arc::default(),
            wrong: Arc::default(),
            stop: Arc::default(),
        };
        let (longest, errors, wrong, stop) = (
            Arc::clone(&reader.longest),
            Arc::clone(&reader.errors),
            Arc::clone(&reader.wrong),
            Arc::clone(&reader.stop),
        );
        // Not joined: without an answer it waits without end.
        thread::spawn(move || {
            let mut pages = (0..LENGTH / PAGE).cycle();
            while !stop.load(Ordering::Relaxed) {
                let at = pages.next().unwrap_or_default() * PAGE;
                let mut page = vec![0; PAGE];
                let began = Instant::now();
                match file.read_exact_at(&mut page, at as u64) {
                    Ok(()) if page != content[at..at + PAGE] => _ = wrong.fetch_add(1, Ordering::Relaxed),
                    Ok(()) => {}
                    Err(_) => _ = errors.fetch_add(1, Ordering::Relaxed),
                }
                let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                longest.fetch_max(took, Ordering::Relaxed);
            }
        });
        reader
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// To other pods and back, with the old process ended in order, or killed with its container. The start of the next pod is not
/// part of it.
fn moves(pod: &mut MountpointPod, reader: &Reader, killed: bool) -> Vec<f64> {
    let one = |_| {
        let next = MountpointPod::start();
        thread::sleep(REST);
        reader.longest.store(0, Ordering::Relaxed);
        let kept = Kept::of(pod);
        if killed {
            pod.end_container();
        } else {
            assert_eq!(leaves(pod), MountReply::Left);
        }
        let reply = kept.arrives_at(&next, BUCKET, OPTIONS);
        assert!(matches!(reply, MountReply::Serving(_)), "{reply:?}");
        *pod = next;
        thread::sleep(REST);
        reader.longest.load(Ordering::Relaxed) as f64 / 1000.0
    };
    (0..KILLS).map(one).collect()
}

fn pauses(pod: &MountpointPod, reader: &Reader, milliseconds: &mut Vec<f64>) {
    for _ in 0..KILLS {
        thread::sleep(REST);
        reader.longest.store(0, Ordering::Relaxed);
        kill(pod, at_once);
        thread::sleep(REST);
        milliseconds.push(reader.longest.load(Ordering::Relaxed) as f64 / 1000.0);
    }
}

/// Writes until as many processes have died as for each pause; returns how many objects are not what was written, and how many
/// died.
fn writers(client: &Client, pod: &MountpointPod, path: impl Fn(&str) -> PathBuf) -> (usize, usize) {
    let (mut rounds, mut kills) = (0, 0);
    let until = Instant::now() + WRITERS_WITHIN;
    while kills < KILLS && Instant::now() < until {
        let round = || {
            rounds += 1;
            write(path(&format!("written-{rounds}")));
        };
        let ((), died) = while_killing(pod, LIFE, at_once, round);
        kills += usize::try_from(died).unwrap();
    }
    ((1..=rounds).map(|round| partial(client, &format!("written-{round}"))).sum(), kills)
}

/// Small and medium files, by programs that check each result.
fn write(prefix: PathBuf) {
    let script = format!(
        "for i in $(seq {WRITTEN}); do echo $i > \"$1-$i\" || exit 1
         head -c 1000000 /dev/zero | dd of=\"$1-dd-$i\" bs=100000 iflag=fullblock conv=fsync status=none || exit 1; done"
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, "sh"]).arg(prefix).stdin(Stdio::null());
    let status = within("the writers", LIMIT * 3, move || shell.status().unwrap());
    assert!(status.success());
}

/// How many objects are not what was written.
fn partial(client: &Client, prefix: &str) -> usize {
    let wrong = (1..=WRITTEN).filter(|number| {
        let line = format!("{number}\n").into_bytes();
        client.get(BUCKET, &format!("{prefix}-{number}")).ok() != Some(line)
            || client.get(BUCKET, &format!("{prefix}-dd-{number}")).ok() != Some(vec![0; 1_000_000])
    });
    wrong.count()
}
