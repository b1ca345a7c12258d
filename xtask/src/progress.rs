//! One line per step of work, with the time it took: a person who waits wants to know for what.

use std::time::Instant;

use anyhow::Result;

/// Runs `work` between a line that names it and a line that says how long it took.
pub fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    eprintln!("     … {name}");
    let outcome = work();
    let mark = if outcome.is_ok() { "✓" } else { "✗" };
    eprintln!("{:>6.1}s {mark} {name}", began.elapsed().as_secs_f64());
    outcome
}
