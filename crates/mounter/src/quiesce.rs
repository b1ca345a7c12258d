//! Ends a mount process at a moment at which no request is lost. The kernel fails a request that is being read into memory
//! which was never used before, because a process that is being killed gets none.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::deadlines::THREADS_STOP;

/// How often to check whether the threads have stopped, which takes about that long.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Kills the process while none of its threads is reading a request.
pub fn kill_between_requests(process: Pid) {
    // It may have ended by itself.
    if kill_process(process, Signal::STOP).is_ok() {
        let until = Instant::now() + THREADS_STOP;
        while has_running_threads(process) && Instant::now() < until {
            sleep(POLL_INTERVAL);
        }
    }
    let _ = kill_process(process, Signal::KILL);
}

fn has_running_threads(process: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    threads.into_iter().flatten().flatten().any(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // After the name, which may contain anything: stopped, or ended.
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['T', 'Z', 'X']))
    })
}
