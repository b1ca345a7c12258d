//! Benchmarks that run inside a cluster, in a separate program.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::figures::OUTPUT;
use crate::cache::{Cache, checkout};
use crate::cargo;
use crate::cluster::{Cluster, Plan, Profile};
use crate::ground;
use crate::process::listen;
use crate::progress::{say, step};
use crate::test::evidence;

/// Most take a few minutes. A whole run of `data` may take longer on a slow machine; it shows its samples as they come. One that
/// hangs on a mount ends with its cluster.
const MEASURED_WITHIN: Duration = Duration::from_hours(1);

pub(super) type Samples = BTreeMap<String, Vec<f64>>;

/// Runs `measure ARGUMENTS` this often in a new cluster and collects its samples.
pub(super) fn measure(
    cache: &Cache,
    profile: Profile,
    arguments: &[&str],
    repetitions: usize,
) -> Result<Samples> {
    let plan = Plan { profile, ..Plan::default() };
    measure_on(cache, plan, arguments, repetitions, MEASURED_WITHIN, |_| false)
}

/// The same in a cluster of another plan, with another deadline for each run. Of a run that `found` something, the evidence is
/// kept as of one that failed.
pub(super) fn measure_on(
    cache: &Cache,
    plan: Plan,
    arguments: &[&str],
    repetitions: usize,
    limit: Duration,
    found: impl Fn(&Samples) -> bool,
) -> Result<Samples> {
    let kubernetes = plan.kubernetes;
    ground::prepare(cache, kubernetes)?;
    let programs = cargo::benchmark(cache)?;
    let cluster = Cluster::named(cache, "bench");
    let mut all = Samples::new();
    for _ in 0..repetitions {
        cluster.down()?;
        cluster.up(plan)?;
        let run = || run_inside(&cluster, &programs, arguments, limit);
        let samples = step("measuring", run);
        if samples.as_ref().map_or(true, &found) {
            evidence::keep(&cluster, "bench");
        }
        let down = cluster.down();
        for (key, more) in samples? {
            all.entry(key).or_default().extend(more);
        }
        down?;
    }
    Ok(all)
}

/// What it says while it measures is also written to `target/bench/NAME.log`: a run that fails has no figures.
fn run_inside(cluster: &Cluster, programs: &Path, arguments: &[&str], limit: Duration) -> Result<Samples> {
    let mut measure = cluster.command(programs.join("measure"))?;
    measure.args(arguments).env("S3_CSI_CLUSTER", cluster.dir()).env("S3_CSI_PROGRAMS", programs);
    let folder = checkout().join(OUTPUT);
    fs::create_dir_all(&folder)?;
    let mut log = File::create(folder.join(format!("{}.log", arguments[0])))?;
    let printed = listen(&mut measure, limit, |line| {
        // Measuring goes on when the disk is full.
        let _ = writeln!(log, "{line}");
        say(line);
    })?;
    let last = printed.lines().last().context("the benchmark printed nothing")?;
    Ok(serde_json::from_str(last)?)
}
