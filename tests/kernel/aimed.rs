//! Deaths at the worst moment: as soon as a process serves, while it reads the requests that its predecessor has not answered.

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::fs::statvfs;
use s3_csi_tests::killer::{at_once, kill};
use s3_csi_tests::mountpoint_pod::eventually;

use crate::files::served;

const ROUNDS: usize = 100;
const PROGRAMS: usize = 8;

/// The kernel fails a request while it is being read into memory that the dying process has not used before.
#[test]
fn no_request_fails_when_processes_die_as_soon_as_they_serve() {
    let (_client, pod, served) = served("aimed", &["--allow-overwrite"]);
    let (done, failed) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let progress: Vec<AtomicU32> = (0..PROGRAMS).map(|_| AtomicU32::new(0)).collect();
    std::thread::scope(|scope| {
        for (program, progress) in progress.iter().enumerate() {
            let (served, done, failed) = (&served, &done, &failed);
            scope.spawn(move || {
                let name = format!("file-{program}");
                let content = name.repeat(1000);
                while !done.load(Ordering::Relaxed) {
                    let written = served.write(&name, content.clone());
                    let is_written = written.is_ok();
                    let is_right = |read: &[u8]| !is_written || read == content.as_bytes();
                    let outcomes = [
                        served.touch("", |path| statvfs(path).map(drop).map_err(Into::into)),
                        written,
                        served.touch(&name, |path| fs::metadata(path).map(drop)),
                        served.read(&name).map(|read| assert!(is_right(&read), "wrong bytes")),
                    ];
                    progress.fetch_add(1, Ordering::Relaxed);
                    let errors = outcomes.into_iter().enumerate();
                    let errors = errors.filter_map(|(number, outcome)| Some((number, outcome.err()?)));
                    failed.lock().unwrap().extend(errors);
                }
            });
        }
        let now = || progress.iter().map(|of| of.load(Ordering::Relaxed)).collect::<Vec<_>>();
        for _ in 0..ROUNDS {
            kill(&pod, at_once);
            kill(&pod, at_once);
            // Else requests are refused, because process after process dies of them.
            let before = now();
            eventually("programs go on", || now().iter().zip(&before).all(|(now, before)| now > before));
        }
        done.store(true, Ordering::Relaxed);
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} operations in {ROUNDS} rounds: {failed:?}", failed.len());
}
