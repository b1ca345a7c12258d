//! The controller on a real API server with simulated nodes.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::figures::Figures;
use crate::cache::{Cache, checkout};
use crate::cluster::{Cluster, Plan, Profile};
use crate::command::{capture, run};
use crate::ground;
use crate::programs::Kubernetes;
use crate::progress::step;

pub(super) fn measure(cache: &Cache) -> Result<Figures> {
    let kubernetes = Kubernetes::default();
    ground::prepare(cache, kubernetes)?;
    step("building the benchmark", || {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        run(std::process::Command::new(cargo)
            .current_dir(checkout())
            .args(["build", "--release", "--locked", "--package", "s3-csi-tests", "--bin", "measure"])
            .args(["--features", "real-parts", "--target-dir"])
            .arg(cache.target()))
    })?;
    let cluster = Cluster::named(cache, "bench");
    cluster.down()?;
    cluster.up(Plan { profile: Profile::Api, kubernetes })?;
    let figures = step("measuring", || run_inside(&cluster));
    cluster.down()?;
    figures
}

fn run_inside(cluster: &Cluster) -> Result<Figures> {
    let programs = cluster.cache().target().join("release");
    let printed = capture(
        cluster
            .command(programs.join("measure"))?
            .arg("controller")
            .env("S3_CSI_CLUSTER", cluster.dir())
            .env("S3_CSI_PROGRAMS", programs),
    )?;
    let last = printed.lines().last().context("the benchmark printed nothing")?;
    let samples: BTreeMap<String, Vec<f64>> = serde_json::from_str(last)?;
    let mut figures = Figures::default();
    for (key, samples) in samples {
        figures.add(&key, samples);
    }
    Ok(figures)
}
