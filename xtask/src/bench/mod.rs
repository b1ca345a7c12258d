//! `cargo xtask bench NAME`: where figures live. Nothing here passes or fails.

mod controller;
mod data;
mod figures;
mod ground;
mod inside;
mod mount;
mod provision;

use std::path::PathBuf;

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
    /// A `mount-s3` to compare with, where a benchmark can.
    #[arg(long, value_name = "PATH")]
    mount_s3: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    /// The cluster and the images: how long a person waits for them, and what they take.
    Ground,
    /// The controller on an API server with 500 simulated nodes: latencies, a burst of 5,000 workloads, memory.
    Controller,
    /// Mounts as workloads wait for them, on a real node: where a cold one's time goes, detach, memory, processor.
    Mount,
    /// Claims, from their creation to a bound volume with a bucket: one, and 200 at once.
    Provision,
    /// The mount process against plain requests to the same S3 server.
    Data,
}

pub fn run(cache: &Cache, wanted: &Wanted) -> Result<()> {
    match wanted.name {
        Name::Controller => controller::measure(cache, wanted.repetitions)?.publish("controller"),
        Name::Data => data::measure(cache, wanted.repetitions, wanted.mount_s3.as_deref())?.publish("data"),
        Name::Mount => mount::measure(cache, wanted.repetitions)?.publish("mount"),
        Name::Provision => provision::measure(cache, wanted.repetitions)?.publish("provision"),
        Name::Ground => ground::measure(cache, wanted.repetitions)?.publish("ground"),
    }
}
