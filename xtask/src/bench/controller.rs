//! The controller on a real API server with simulated nodes.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::figures::Figures;
use crate::cache::Cache;
use crate::cluster::{Cluster, Plan, Profile};
use crate::command::{capture, release_build, run};
use crate::ground;
use crate::programs::Kubernetes;
use crate::progress::step;
use crate::test::evidence;

pub(super) fn measure(cache: &Cache, repetitions: Option<usize>) -> Result<Figures> {
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
    let mut all = BTreeMap::<String, Vec<f64>>::new();
    for _ in 0..repetitions.unwrap_or(1) {
        cluster.down()?;
        cluster.up(Plan { profile: Profile::Api, kubernetes })?;
        let samples =
            step("measuring", || run_inside(&cluster)).inspect_err(|_| evidence::keep(&cluster, "bench"))?;
        for (key, more) in samples {
            all.entry(key).or_default().extend(more);
        }
    }
    cluster.down()?;
    let mut figures = Figures::default();
    for (key, samples) in all {
        let reference = (key == "burst_writes_per_s").then_some("raw_writes_per_s");
        figures.add_against(&key, samples, reference);
    }
    Ok(figures)
}

fn run_inside(cluster: &Cluster) -> Result<BTreeMap<String, Vec<f64>>> {
    let programs = cluster.cache().target().join("release");
    let printed = capture(
        cluster
            .command(programs.join("measure"))?
            .arg("controller")
            .env("S3_CSI_CLUSTER", cluster.dir())
            .env("S3_CSI_PROGRAMS", programs),
    )?;
    let last = printed.lines().last().context("the benchmark printed nothing")?;
    Ok(serde_json::from_str(last)?)
}
