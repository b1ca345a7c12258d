//! Counts what the mount does, and writes the figures for the node: after a change, every two seconds at most. While nothing
//! happens, nothing is written.

use std::collections::BTreeSet;
use std::fs;
use std::future::{Future, poll_fn};
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use mounter::figures::{Code, FILE, Figures, Operation, uptime};
use mountpoint_s3_crt::s3::client::RequestMetrics;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// Less than anything scrapes, and so little work that a busy mount does not notice it.
const WRITE_EVERY: Duration = Duration::from_secs(2);

/// A process serves one mount.
pub(crate) static METER: LazyLock<Meter> = LazyLock::new(Meter::default);

#[derive(Debug, Default)]
pub(crate) struct Meter {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    figures: Figures,
    /// When each request of the kernel that waits began, and a number of its own.
    waiting: BTreeSet<(Instant, u64)>,
    waits: u64,
    is_changed: bool,
}

impl Meter {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let result = change(&mut state);
        if !std::mem::replace(&mut state.is_changed, true) {
            self.changed.notify_one();
        }
        result
    }

    /// An attempt at a request to S3 has ended.
    pub(crate) fn attempted(&self, attempt: &RequestMetrics) {
        let code = match attempt.status_code() {
            _ if attempt.is_canceled() => Code::CANCELED,
            Some(status) => Code::of_status(status),
            None => Code::UNANSWERED,
        };
        // The server saw nothing of a request that was canceled before it was sent.
        if code == Code::CANCELED && attempt.send_start_timestamp_ns().is_none() {
            return;
        }
        let operation = Operation::of(attempt.operation_name().unwrap_or_default());
        let seconds = attempt.total_duration().as_secs_f64();
        self.change(|state| state.figures.count(operation, code, seconds));
    }

    pub(crate) fn read(&self, bytes: usize) {
        self.change(|state| state.figures.read_bytes += bytes as u64);
    }

    pub(crate) fn written(&self, bytes: usize) {
        self.change(|state| state.figures.written_bytes += bytes as u64);
    }

    /// The mount has new temporary keys.
    pub(crate) fn keys_expire(&self, at: SystemTime) {
        let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.change(|state| state.figures.keys_expire = Some(at.as_secs()));
    }

    pub(crate) fn looked_in_cache(&self, found: bool) {
        self.change(|State { figures, .. }| {
            *(if found { &mut figures.cache_hits } else { &mut figures.cache_misses }) += 1;
        });
    }

    /// An upload is in progress as long as this lives.
    pub(crate) fn upload(&self) -> InProgress<'_> {
        self.change(|state| state.figures.uploads += 1);
        InProgress(self)
    }

    /// The work of a request of the kernel. Most of it ends without waiting for anything, and is not noted.
    pub(crate) async fn track(&self, work: impl Future<Output = ()>) {
        let mut work = pin!(work);
        let (begun, mut waiting) = (Instant::now(), None);
        poll_fn(|context| {
            let polled = work.as_mut().poll(context);
            if polled.is_pending() && waiting.is_none() {
                waiting = Some(self.wait(begun));
            }
            polled
        })
        .await;
    }

    fn wait(&self, begun: Instant) -> Waiting<'_> {
        let entry = self.change(|state| {
            state.waits += 1;
            let entry = (begun, state.waits);
            state.waiting.insert(entry);
            entry
        });
        Waiting { meter: self, entry }
    }

    /// The figures as they are now. The next change is noticed again.
    fn take(state: &mut State) -> Figures {
        state.is_changed = false;
        let oldest =
            state.waiting.first().map(|(begun, _)| uptime().saturating_sub(begun.elapsed().as_secs()));
        Figures { waiting_since: oldest, ..state.figures.clone() }
    }

    /// Writes into this folder from now on.
    pub(crate) fn report(&'static self, folder: &'static Path) -> io::Result<()> {
        let report = move || self.write_changes(folder);
        thread::Builder::new().name("figures".to_owned()).spawn(report).map(drop)
    }

    /// Begins with the figures of a new process, which are zero, whatever its predecessor left.
    fn write_changes(&self, folder: &Path) {
        let mut figures = Self::take(&mut self.state());
        loop {
            if let Err(error) = write(folder, &figures) {
                tracing::debug!(%error, "cannot write the figures of the mount");
            }
            thread::sleep(WRITE_EVERY);
            let mut state = self.state();
            self.changed.wait_while(&mut state, |state| !state.is_changed);
            figures = Self::take(&mut state);
        }
    }
}

/// Replaces the file as a whole, because the node may read at any time.
fn write(folder: &Path, figures: &Figures) -> io::Result<()> {
    let new = folder.join(format!("{FILE}.new"));
    fs::write(&new, figures.to_bytes())?;
    fs::rename(new, folder.join(FILE))
}

#[derive(Debug)]
pub(crate) struct InProgress<'a>(&'a Meter);

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.0.change(|state| state.figures.uploads -= 1);
    }
}

struct Waiting<'a> {
    meter: &'a Meter,
    entry: (Instant, u64),
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.meter.change(|state| state.waiting.remove(&self.entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::channel::oneshot;
    use futures::executor::block_on;
    use futures::future::join;

    fn figures(meter: &Meter) -> Figures {
        Meter::take(&mut meter.state())
    }

    #[test]
    fn what_happens_is_counted_and_a_change_is_noticed_once() {
        let meter = Meter::default();
        meter.read(3);
        meter.read(4);
        meter.written(5);
        for found in [true, true, false] {
            meter.looked_in_cache(found);
        }
        let upload = meter.upload();
        meter.keys_expire(SystemTime::UNIX_EPOCH + Duration::from_secs(9));
        assert!(meter.state().is_changed);
        let expected = Figures {
            read_bytes: 7,
            written_bytes: 5,
            cache_hits: 2,
            cache_misses: 1,
            uploads: 1,
            keys_expire: Some(9),
            ..Figures::default()
        };
        assert_eq!(figures(&meter), expected);
        assert!(!meter.state().is_changed);
        drop(upload);
        assert!(meter.state().is_changed);
        assert_eq!(figures(&meter).uploads, 0);
    }

    #[test]
    fn a_request_that_waits_is_known_until_it_ends() {
        let meter = Meter::default();
        block_on(meter.track(async {}));
        assert!(!meter.state().is_changed, "it has not waited");
        let (go, gate) = oneshot::channel::<()>();
        let waits = meter.track(async { gate.await.unwrap() });
        let look = async {
            assert!(figures(&meter).waiting_since.is_some_and(|since| since <= uptime()));
            go.send(()).unwrap();
        };
        block_on(join(waits, look));
        assert_eq!(figures(&meter).waiting_since, None);
    }

    #[test]
    fn the_file_is_written_as_a_whole_and_again_after_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let mut seen = Figures::default();
        for bytes in [0, 1] {
            seen.read_bytes = bytes;
            write(folder.path(), &seen).unwrap();
            let written = fs::read(folder.path().join(FILE)).unwrap();
            assert_eq!(Figures::parse(&written), Some(seen.clone()));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
