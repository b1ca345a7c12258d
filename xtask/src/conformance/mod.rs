//! `cargo xtask conformance`: Kubernetes' own storage suite against the driver, on a cluster of two nodes.

mod left_out;
mod outcome;
mod page;
mod suite;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::cache::{Cache, checkout};
use crate::cluster::{Cluster, Plan};
use crate::programs::{Kubernetes, Programs, Purpose};
use crate::progress::step;
use crate::test::evidence;
use crate::{driver, ground, image};
use outcome::{Outcome, Spec};

/// Some specs move a volume from one node to another.
const NODES: u8 = 2;
const CLUSTER: &str = "conformance";

#[derive(Args)]
pub struct Wanted {
    /// Kubernetes release to run, with its own suite.
    #[arg(long, value_enum, default_value_t)]
    kubernetes: Kubernetes,
    /// Keep the cluster.
    #[arg(long)]
    keep: bool,
    /// Run only specs whose name contains this text, and leave the page as it is.
    filter: Option<String>,
}

pub fn run(cache: &Cache, wanted: &Wanted) -> Result<ExitCode> {
    ground::prepare_with(cache, &[wanted.kubernetes], Purpose::Conformance, || Ok(()))?;
    let programs = Programs::of(cache, wanted.kubernetes)?;
    let folder = checkout().join("target/conformance");
    fs::create_dir_all(&folder)?;
    let cluster = Cluster::named(cache, CLUSTER);
    let specs = run_on(&cluster, wanted, &programs, &folder);
    let failed = specs.as_ref().map_or(true, |specs| specs.iter().any(has_failed));
    if failed {
        evidence::keep(&cluster, CLUSTER);
    }
    let down = if wanted.keep { Ok(()) } else { cluster.down() };
    let specs = specs?;
    down?;
    show(&specs, &folder)?;
    ensure!(!specs.is_empty(), "no spec was run");
    if wanted.filter.is_some() {
        return Ok(code(failed));
    }
    let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    if let Some(part) = left_out::outdated(&names) {
        bail!("the suite has no spec `{part}`: remove it from left_out.rs");
    }
    if wanted.kubernetes == Kubernetes::default() {
        let page = checkout().join("docs/conformance.md");
        fs::write(&page, page::write(programs.version(), &specs)).context("cannot write the page")?;
        println!("{}", page.display());
    }
    Ok(code(failed))
}

fn run_on(cluster: &Cluster, wanted: &Wanted, programs: &Programs, folder: &Path) -> Result<Vec<Spec>> {
    cluster.down()?;
    step("cluster of two nodes", || {
        cluster.up(Plan { kubernetes: wanted.kubernetes, nodes: NODES, ..Plan::default() })
    })?;
    step("images of the suite", || {
        let archives = image::suite::build(cluster.cache(), programs, &suite::images(programs)?)?;
        for node in cluster.nodes()? {
            archives.iter().try_for_each(|archive| cluster.import_image_on(node, archive))?;
        }
        Ok(())
    })?;
    step("helm install", || driver::install(cluster, &[]))?;
    suite::run(cluster, programs, folder, wanted.filter.as_deref())
}

fn has_failed(spec: &Spec) -> bool {
    matches!(spec.outcome, Outcome::Failed(_))
}

fn code(failed: bool) -> ExitCode {
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Prints what failed and the numbers, and writes the outcome of each spec as JSON.
fn show(specs: &[Spec], folder: &Path) -> Result<()> {
    let results = folder.join("results.json");
    fs::write(&results, serde_json::to_vec_pretty(specs)?)?;
    for spec in specs {
        if let Outcome::Failed(message) = &spec.outcome {
            println!("failed: {} ({}): {}\n    {}", spec.suite, spec.pattern, spec.name, message.trim());
        }
    }
    let (passed, skipped, failed) = outcome::count(specs);
    println!("{passed} passed, {skipped} skipped, {failed} failed");
    println!("{}\n{}", results.display(), folder.join(suite::LOG).display());
    Ok(())
}
