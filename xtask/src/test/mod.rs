//! `cargo xtask test`: the cheap checks first, then the suites on real parts, each in a cluster made for it.

pub mod evidence;
mod suite;

use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::cache::{Cache, checkout};
use crate::cluster::{Cluster, Plan, Profile};
use crate::command::{cargo, run as run_command};
use crate::debian;
use crate::ground;
use crate::programs::Kubernetes;
use crate::progress::step;
use suite::{Count, Place, Suites};

/// The tests' own cluster, so that a person's cluster is left alone.
const CLUSTER: &str = "test";

#[derive(Args)]
pub struct Wanted {
    /// Run only this suite.
    #[arg(long, value_enum)]
    only: Option<Suite>,
    /// Leave the last cluster standing (`cargo xtask cluster status --name test`).
    #[arg(long)]
    keep: bool,
    /// Which Kubernetes to test on.
    #[arg(long, value_enum, default_value_t)]
    kubernetes: Kubernetes,
    /// Run only the tests whose name contains this.
    filter: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// Format and lints.
    Lint,
    /// Pure logic, beside the code it tests.
    Unit,
    /// On a real API server without anything that acts on objects.
    Api,
    /// Claims, with the cluster's own binder and the S3 server.
    Claims,
    /// Real mounts in a private namespace.
    Kernel,
    /// Whole journeys on a real node, and the node itself.
    Cluster,
}

pub fn run(cache: &Cache, wanted: &Wanted) -> Result<ExitCode> {
    let began = Instant::now();
    // Even lints build the C libraries of the mount process.
    debian::ensure_packages()?;
    let includes = |suite| wanted.only.is_none_or(|only| only == suite);
    let filter = wanted.filter.as_deref();
    let mut total = Count::default();
    if includes(Suite::Lint) {
        total += or_failed("lint", lint(cache).map(|()| Count::default()));
    }
    if includes(Suite::Unit) {
        total += or_failed("unit", suite::unit(cache, filter));
    }
    if [Suite::Api, Suite::Claims, Suite::Kernel, Suite::Cluster].into_iter().any(includes) {
        let built = ground::prepare(cache, wanted.kubernetes)
            .and_then(|()| step("building the suites", || Suites::build(cache)));
        match built {
            Ok(suites) => total += on_real_parts(cache, wanted, &suites, includes),
            Err(error) => total += or_failed("real parts", Err(error)),
        }
    }
    println!("\nin {:.0} s", began.elapsed().as_secs_f64());
    println!("{} passed, {} failed", total.passed, total.failed);
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Each suite in a cluster made for it; the last one stays if it is to be kept.
fn on_real_parts(cache: &Cache, wanted: &Wanted, suites: &Suites, includes: impl Fn(Suite) -> bool) -> Count {
    let cluster = Cluster::named(cache, CLUSTER);
    let filter = wanted.filter.as_deref();
    let mut total = Count::default();
    let in_a_fresh_cluster = |name: &str, profile| {
        // What an earlier run left, on purpose or not, is not what a test expects to find.
        let up = cluster.down().and_then(|()| cluster.up(Plan { profile, kubernetes: wanted.kubernetes }));
        match up {
            Ok(()) => or_failed(name, suites.run(name, Place::Inside(&cluster), filter)),
            Err(error) => {
                evidence::keep(&cluster, name);
                or_failed(name, Err(error))
            }
        }
    };
    if includes(Suite::Api) {
        total += in_a_fresh_cluster("api", Profile::Api);
    }
    if includes(Suite::Claims) {
        total += in_a_fresh_cluster("claims", Profile::Control);
    }
    if includes(Suite::Kernel) {
        total += in_a_fresh_cluster("kernel", Profile::Kernel);
    }
    if includes(Suite::Cluster) {
        // The tests of the node itself need the machine, not a node around them.
        let machine = Place::Machine(wanted.kubernetes);
        total += or_failed("ground", cluster.down().and_then(|()| suites.run("ground", machine, filter)));
        total += in_a_fresh_cluster("cluster", Profile::Node);
    }
    if !wanted.keep {
        total += or_failed("down", cluster.down().map(|()| Count::default()));
    }
    total
}

/// What could not even be run is a failure like others; the rest still gets its turn.
fn or_failed(what: &str, outcome: Result<Count>) -> Count {
    outcome.unwrap_or_else(|error| {
        println!("{what}: {error:#}");
        Count { passed: 0, failed: 1 }
    })
}

/// Newest at the time of writing; a lint must not change by itself.
const CARGO_DENY: &str = "0.20.2";

fn lint(cache: &Cache) -> Result<()> {
    check_dependencies(cache)?;
    step("format", || run_command(cargo(cache).args(["fmt", "--all", "--check"])))?;
    step("lints", || {
        run_command(
            cargo(cache)
                .args(["clippy", "--quiet", "--locked", "--workspace", "--all-targets", "--all-features"])
                .args(["--", "--deny", "warnings"]),
        )
    })
}

/// Licences, banned crates and sources, as `deny.toml` has them. Advisories are left out: they come from the network.
fn check_dependencies(cache: &Cache) -> Result<()> {
    let folder = cache.programs().join(format!("cargo-deny-{CARGO_DENY}"));
    let program = folder.join("bin/cargo-deny");
    if !program.exists() {
        step("building cargo-deny", || {
            let mut install = cargo(cache);
            install
                .args(["install", "--locked", "--version", CARGO_DENY, "cargo-deny", "--root"])
                .arg(&folder);
            // Its own: with ours, a change of either would build the other anew.
            run_command(install.env_remove("CARGO_TARGET_DIR"))
        })?;
    }
    step("dependencies", || {
        let mut check = Command::new(program);
        check.current_dir(checkout()).args(["check", "bans", "licenses", "sources"]);
        run_command(&mut check)
    })
}

/// The tests that find what is committed out of date also write it.
pub fn generate(cache: &Cache) -> Result<()> {
    debian::ensure_packages()?;
    run_command(cargo(cache).args([
        "run",
        "--quiet",
        "--package",
        "xtask",
        "--features",
        "generate",
        "--bin",
        "generate-csi",
    ]))?;
    run_command(cargo(cache).env("S3_CSI_GENERATE", "1").args([
        "test",
        "--workspace",
        "--lib",
        "--bins",
        "the_committed",
    ]))
}
