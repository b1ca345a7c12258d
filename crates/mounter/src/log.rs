//! One JSON object per line, without a time: the container runtime adds it. Lines are dropped while the runtime does not read
//! them: the mounter has one thread, and a mount whose process has died must not wait for a log.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::stdio::stdout;
use serde_json::{Map, Value};

/// A runtime that is only busy reads again within this.
const RUNTIME_READS: Duration = Duration::from_millis(100);
/// In bytes: a pipe that is writable takes as much without blocking (`PIPE_BUF`).
const PIECE: usize = 4096;

/// Lines since the last one that was written.
static DROPPED: AtomicU64 = AtomicU64::new(0);

type Fields<'a> = [(&'a str, &'a str)];

pub(crate) fn info(message: &str, fields: &Fields<'_>) {
    write("INFO", message, fields);
}

pub(crate) fn warn(message: &str, fields: &Fields<'_>) {
    write("WARN", message, fields);
}

pub(crate) fn error(message: &str, fields: &Fields<'_>) {
    write("ERROR", message, fields);
}

/// A line of the mount process, which has its own level.
pub(crate) fn forward(line: &str, fields: &Fields<'_>) {
    print(stdout(), &DROPPED, object(line, fields));
}

fn write(level: &str, message: &str, fields: &Fields<'_>) {
    print(stdout(), &DROPPED, with_level(level, object(message, fields)));
}

fn with_level(level: &str, mut line: Map<String, Value>) -> Map<String, Value> {
    line.insert("level".to_owned(), level.into());
    line
}

fn object(message: &str, fields: &Fields<'_>) -> Map<String, Value> {
    // An older node sends no trace id.
    let fields = fields.iter().filter(|(_, value)| !value.is_empty());
    let fields = fields.map(|(name, value)| ((*name).to_owned(), Value::from(*value)));
    fields.chain([("message".to_owned(), message.into())]).collect()
}

/// A mount must not end because its log cannot be written. Counts what was dropped, and reports it once that is possible.
fn print(to: impl AsFd, dropped: &AtomicU64, line: Map<String, Value>) {
    let mut count = dropped.load(Ordering::Relaxed);
    if count > 0 {
        let report =
            format!("lines dropped from this log, because the container runtime did not read it: {count}");
        let report = Value::Object(with_level("WARN", object(&report, &[])));
        // The line before may have been cut.
        if write_all(&to, &format!("\n{report}\n"), Duration::ZERO) {
            count = 0;
        }
    }
    if count > 0 || !write_all(&to, &format!("{}\n", Value::Object(line)), RUNTIME_READS) {
        count += 1;
    }
    dropped.store(count, Ordering::Relaxed);
}

/// `false` if that is not possible in time.
fn write_all(to: impl AsFd, text: &str, within: Duration) -> bool {
    let (mut text, until) = (text.as_bytes(), Instant::now() + within);
    while !text.is_empty() {
        let mut pipe = [PollFd::new(&to, PollFlags::OUT)];
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).unwrap_or_default();
        let is_ready = retry_on_intr(|| poll(&mut pipe, Some(&left))).is_ok_and(|ready| ready > 0);
        if !is_ready {
            return false;
        }
        match rustix::io::write(&to, &text[..text.len().min(PIECE)]) {
            Ok(written) => text = &text[written..],
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};

    #[test]
    fn a_runtime_that_does_not_read_blocks_nothing_and_finds_out_what_it_missed() {
        let (reader, writer) = std::io::pipe().unwrap();
        let dropped = AtomicU64::new(0);
        let line = || object(&"x".repeat(3 * PIECE), &[("bucket", "b")]);
        let (begun, mut printed) = (Instant::now(), 0);
        while dropped.load(Ordering::Relaxed) < 50 {
            print(&writer, &dropped, line());
            printed += 1;
        }
        assert!(begun.elapsed() < RUNTIME_READS * 20, "it waits once, not for each line");
        let reader = std::thread::spawn(|| BufReader::new(reader).lines().map(Result::unwrap).collect());
        while dropped.load(Ordering::Relaxed) > 0 {
            print(&writer, &dropped, line());
            printed += 1;
        }
        drop(writer);
        let lines: Vec<String> = reader.join().unwrap();
        let whole = format!("{}", Value::Object(line()));
        let count = lines.iter().filter(|line| **line == whole).count();
        let reports = lines.iter().filter_map(|line| line.split_once("did not read it: "));
        let missed = reports.map(|(_, count)| count.split('"').next().unwrap().parse::<usize>().unwrap());
        let missed: usize = missed.sum();
        assert_eq!(count + missed, printed, "each line is there or counted");
        assert!(missed >= 50 && count > 1);
    }
}
