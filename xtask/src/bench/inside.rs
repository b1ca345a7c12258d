//! Benchmarks that run inside a cluster, in a program of their own.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::cluster::{Cluster, Plan, Profile};
use crate::command::{capture, release_build, run};
use crate::ground;
use crate::programs::Kubernetes;
use crate::progress::step;
use crate::test::evidence;

pub(super) type Samples = BTreeMap<String, Vec<f64>>;

/// Has `measure ARGUMENTS` run in a fresh cluster, this often, and gathers what it measured.
pub(super) fn measure(
    cache: &Cache,
    profile: Profile,
    arguments: &[&str],
    repetitions: usize,
) -> Result<Samples> {
    let kubernetes = Kubernetes::default();
    ground::prepare(cache, kubernetes)?;
    step("building the benchmark", || {
        run(release_build(cache).args([
            "--package",
            "s3-csi-tests",
            "--bin",
            "measure",
            "--features",
            "real-parts",
        ]))
    })?;
    let cluster = Cluster::named(cache, "bench");
    let mut all = Samples::new();
    for _ in 0..repetitions {
        cluster.down()?;
        cluster.up(Plan { profile, kubernetes })?;
        let samples = step("measuring", || run_inside(&cluster, arguments)).inspect_err(|_| {
            evidence::keep(&cluster, "bench");
            let _ = cluster.down();
        })?;
        for (key, more) in samples {
            all.entry(key).or_default().extend(more);
        }
    }
    cluster.down()?;
    Ok(all)
}

fn run_inside(cluster: &Cluster, arguments: &[&str]) -> Result<Samples> {
    let programs = cluster.cache().target().join("release");
    let printed = capture(
        cluster
            .command(programs.join("measure"))?
            .args(arguments)
            .env("S3_CSI_CLUSTER", cluster.dir())
            .env("S3_CSI_PROGRAMS", programs),
    )?;
    let last = printed.lines().last().context("the benchmark printed nothing")?;
    Ok(serde_json::from_str(last)?)
}
