//! `cargo xtask bench NAME`: where figures live. Nothing here passes or fails.

mod controller;
mod figures;
mod ground;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::cache::Cache;

#[derive(Args)]
pub struct Wanted {
    #[arg(value_enum)]
    name: Name,
    /// How often each thing is measured; each benchmark has a default of its own.
    #[arg(long)]
    repetitions: Option<usize>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    /// The cluster and the images: how long a person waits for them, and what they take.
    Ground,
    /// The controller on an API server with 500 simulated nodes: latencies, a burst of 5,000 workloads, memory.
    Controller,
}

pub fn run(cache: &Cache, wanted: &Wanted) -> Result<()> {
    match wanted.name {
        Name::Controller => controller::measure(cache, wanted.repetitions)?.publish("controller"),
        Name::Ground => ground::measure(cache, wanted.repetitions)?.publish("ground"),
    }
}
