//! Progress output: the current work, how long it has taken and how far it is.

use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;

/// How often a terminal's line is rewritten, and how often a log gets a new one.
const REWRITE_EVERY: Duration = Duration::from_millis(500);
const LOG_EVERY: Duration = Duration::from_secs(30);

static IS_TERMINAL: LazyLock<bool> = LazyLock::new(|| std::io::stderr().is_terminal());
/// All work in progress; on a terminal it shares the last line.
static METERS: Mutex<Vec<Arc<Meter>>> = Mutex::new(Vec::new());

/// Runs `work`, and prints a line before it and a line with its duration after it.
pub fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    say(&format!("     … {name}"));
    let outcome = work();
    let mark = if outcome.is_ok() { "✓" } else { "✗" };
    say(&format!("{:>6.1}s {mark} {name}", began.elapsed().as_secs_f64()));
    outcome
}

/// The same for work that takes minutes and reports its progress to the meter.
pub fn metered<T>(name: &str, pieces: &'static str, work: impl FnOnce(&Meter) -> Result<T>) -> Result<T> {
    let meter = Arc::new(Meter {
        name: name.to_owned(),
        pieces,
        began: Instant::now(),
        done: AtomicUsize::new(0),
        total: AtomicUsize::new(0),
        now: Mutex::default(),
    });
    step(name, || {
        shown().push(Arc::clone(&meter));
        let (finished, running) = mpsc::channel::<()>();
        let outcome = std::thread::scope(|scope| {
            let shown = &meter;
            scope.spawn(move || show(shown, &running));
            let outcome = work(&meter);
            drop(finished);
            outcome
        });
        shown().retain(|other| !Arc::ptr_eq(other, &meter));
        outcome
    })
}

/// The progress of some work.
pub struct Meter {
    name: String,
    pieces: &'static str,
    began: Instant,
    done: AtomicUsize,
    /// 0 if unknown.
    total: AtomicUsize,
    now: Mutex<String>,
}

impl Meter {
    pub fn expect(&self, total: usize) {
        self.total.store(total, Ordering::Relaxed);
    }

    /// The number of finished pieces, and the current one.
    pub fn at(&self, done: usize, now: &str) {
        self.done.store(done, Ordering::Relaxed);
        self.doing(now);
    }

    /// Counts one more piece.
    pub fn advance(&self, now: &str) {
        self.at(self.done.load(Ordering::Relaxed) + 1, now);
    }

    pub fn doing(&self, now: &str) {
        now.clone_into(&mut self.now.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn line(&self) -> String {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let done = self.done.load(Ordering::Relaxed);
        let count = match self.total.load(Ordering::Relaxed) {
            0 => format!("{done} {}", self.pieces),
            // The total may be an estimate, so the count never exceeds it.
            total => format!("{} of {total} {}", done.min(total), self.pieces),
        };
        let now = if now.is_empty() { String::new() } else { format!(", {now}") };
        format!("{}: {count}{now}", self.name)
    }
}

fn shown() -> MutexGuard<'static, Vec<Arc<Meter>>> {
    METERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shows the progress until the work is finished.
fn show(meter: &Meter, running: &mpsc::Receiver<()>) {
    let every = if *IS_TERMINAL { REWRITE_EVERY } else { LOG_EVERY };
    while let Err(RecvTimeoutError::Timeout) = running.recv_timeout(every) {
        let seconds = meter.began.elapsed().as_secs();
        if *IS_TERMINAL {
            let all: Vec<String> = shown().iter().map(|meter| meter.line()).collect();
            // Without wrapping, a long line is cut at the margin and can still be rewritten.
            eprint!("\r\x1b[?7l{seconds:>6}s … {}\x1b[?7h\x1b[K", all.join("; "));
            let _ = std::io::stderr().flush();
        } else {
            say(&format!("{seconds:>6}s … {}", meter.line()));
        }
    }
}

/// Prints a line that replaces the progress line.
pub fn say(line: &str) {
    let clear = if *IS_TERMINAL { "\r\x1b[K" } else { "" };
    eprintln!("{clear}{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_says_how_far_it_is() {
        let seen = metered("images", "crates", |meter| {
            let mut seen = vec![meter.line()];
            meter.advance("serde");
            seen.push(meter.line());
            meter.expect(20);
            meter.at(12, "kube-client, tokio");
            seen.push(meter.line());
            meter.at(21, "");
            seen.push(meter.line());
            Ok(seen)
        });
        let expected = [
            "images: 0 crates",
            "images: 1 crates, serde",
            "images: 12 of 20 crates, kube-client, tokio",
            "images: 20 of 20 crates",
        ];
        assert_eq!(seen.unwrap(), expected);
    }
}
