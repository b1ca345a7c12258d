//! `cargo xtask bench NAME`: measurements, which neither pass nor fail.

mod chaos;
mod controller;
mod data;
mod figures;
mod ground;
mod inside;
mod mount;
mod provision;
mod survive;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::cache::Cache;

#[derive(Args)]
pub struct Wanted {
    #[arg(value_enum)]
    name: Name,
    /// Number of repetitions; each benchmark has its own default.
    #[arg(long)]
    repetitions: Option<usize>,
    /// Path of a `mount-s3` to compare with (only for `data`).
    #[arg(long, value_name = "PATH")]
    mount_s3: Option<PathBuf>,
    /// Of `data`, only these rows, such as `seq_read,small_read`, or parts: `starts`, `with_options`, `knobs`. Of `mount`, `warm`. Of `chaos`,
    /// only the faults that are described by these words, such as `Kill Etcd Writing`; each repetition has another moment.
    #[arg(long, value_name = "WORDS")]
    only: Option<String>,
    /// The order of the faults and the moments at which they happen (only for `chaos`).
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Begin no other fault after so many minutes (only for `chaos`).
    #[arg(long, default_value_t = 120)]
    minutes: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    /// The cluster and the images: start-up time, memory and size.
    Ground,
    /// The controller on an API server with 500 simulated nodes: latencies, a burst of 5,000 workloads, memory.
    Controller,
    /// Mounts on a real node: stages of a cold mount, detach, memory, CPU.
    Mount,
    /// Claims, from creation to a bound volume: one, and 200 at once.
    Provision,
    /// The mount process, compared with plain requests to the same S3 server.
    Data,
    /// Readers and writers while mount processes die: pauses, errors, wrong bytes.
    Survive,
    /// Kills and stops every part at every moment; counts lost bytes, leftovers and stuck workloads.
    Chaos,
}

pub fn run(cache: &Cache, wanted: &Wanted) -> Result<()> {
    match wanted.name {
        Name::Chaos => {
            let (repetitions, only) = (wanted.repetitions.unwrap_or(1), wanted.only.as_deref());
            chaos::measure(cache, wanted.seed, wanted.minutes, repetitions, only)?.publish("chaos")
        }
        Name::Controller => controller::measure(cache, wanted.repetitions)?.publish("controller"),
        Name::Data => {
            let (other, only) = (wanted.mount_s3.as_deref(), wanted.only.as_deref());
            data::measure(cache, wanted.repetitions, other, only)?.publish("data")
        }
        Name::Mount => mount::measure(cache, wanted.repetitions, wanted.only.as_deref())?.publish("mount"),
        Name::Provision => provision::measure(cache, wanted.repetitions)?.publish("provision"),
        Name::Survive => survive::measure(cache, wanted.repetitions)?.publish("survive"),
        Name::Ground => ground::measure(cache, wanted.repetitions)?.publish("ground"),
    }
}
