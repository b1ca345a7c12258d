//! `cargo xtask test`: the cheap checks first, then the suites on real parts, each in a cluster made for it.

mod evidence;
mod suite;

use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::cache::{Cache, checkout};
use crate::cluster::{Cluster, Plan, Profile};
use crate::command::run as run_command;
use crate::ground;
use crate::programs::Kubernetes;
use crate::progress::step;
use suite::{Count, Suites};

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
    /// Real mounts in a private namespace.
    Kernel,
    /// Whole journeys on a real node, and the node itself.
    Cluster,
}

pub fn run(cache: &Cache, wanted: &Wanted) -> Result<ExitCode> {
    let began = Instant::now();
    let includes = |suite| wanted.only.is_none_or(|only| only == suite);
    let mut total = Count::default();
    if includes(Suite::Lint) {
        lint(cache)?;
    }
    if includes(Suite::Unit) {
        total += suite::unit(cache, wanted.filter.as_deref())?;
    }
    if [Suite::Api, Suite::Kernel, Suite::Cluster].into_iter().any(includes) {
        ground::prepare(cache, wanted.kubernetes)?;
        let suites = step("building the suites", || Suites::build(cache))?;
        let cluster = Cluster::named(cache, CLUSTER);
        let filter = wanted.filter.as_deref();
        if includes(Suite::Cluster) {
            // The tests of the node itself need the machine, not a node around them.
            cluster.down()?;
            total += suites.run("ground", None, filter)?;
        }
        for (suite, name, profile) in [
            (Suite::Api, "api", Profile::Api),
            (Suite::Kernel, "kernel", Profile::Kernel),
            (Suite::Cluster, "cluster", Profile::Node),
        ] {
            if includes(suite) {
                cluster.up(Plan { profile, kubernetes: wanted.kubernetes })?;
                total += suites.run(name, Some(&cluster), filter)?;
            }
        }
        if !wanted.keep {
            cluster.down()?;
        }
    }
    println!("\nin {:.0} s", began.elapsed().as_secs_f64());
    println!("{} passed, {} failed", total.passed, total.failed);
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
    run_command(cargo(cache).env("S3_CSI_GENERATE", "1").args([
        "test",
        "--workspace",
        "--lib",
        "the_committed",
    ]))
}

/// Cargo on this checkout, with its output in the cache.
fn cargo(cache: &Cache) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(checkout()).env("CARGO_TARGET_DIR", cache.target());
    command
}
