//! `cargo xtask test`: the cheap checks first, then the suites with real components, each in its own cluster.

pub mod evidence;
mod suite;

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};

use crate::cache::{Cache, checkout};
use crate::cargo::{self, Built, TestProgram, cargo};
use crate::cluster::{Cluster, Plan, Profile};
use crate::command::run as run_command;
use crate::debian;
use crate::ground;
use crate::image;
use crate::process::listen;
use crate::programs::{Kubernetes, Purpose};
use crate::progress::step;
use suite::{Count, Place, or_failed, suite};

#[derive(Args)]
pub struct Wanted {
    /// Run only this suite.
    #[arg(long, value_enum)]
    only: Option<Suite>,
    /// Keep each suite's cluster (`cargo xtask cluster status --name test-cluster`).
    #[arg(long)]
    keep: bool,
    /// Keep every processor busy while the tests run, to find tests that depend on an idle machine.
    #[arg(long)]
    busy: bool,
    /// Kubernetes release to test on.
    #[arg(long, value_enum, default_value_t)]
    kubernetes: Kubernetes,
    /// Run only tests whose name contains this text.
    filter: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// Format and lints.
    Lint,
    /// Pure logic, next to the code it tests.
    Unit,
    /// The controller and the node service on a real API server, without other controllers.
    Api,
    /// Provisioning, with controller-manager and the S3 server.
    Claims,
    /// Real mounts in a private namespace.
    Kernel,
    /// Behaviour that needs several nodes.
    Nodes,
    /// User journeys on a real node, and the node itself.
    Cluster,
}

impl Wanted {
    fn includes(&self, suite: Suite) -> bool {
        self.only.is_none_or(|only| only == suite)
    }

    fn needs_real_parts(&self) -> bool {
        !matches!(self.only, Some(Suite::Lint | Suite::Unit))
    }
}

pub fn run(cache: &Cache, wanted: &Wanted) -> Result<ExitCode> {
    let began = Instant::now();
    // Even lints build the C libraries of the mount process.
    debian::ensure_test_packages()?;
    let mut total = Count::default();
    if wanted.includes(Suite::Lint) {
        total += or_failed("lint", lint(cache).map(|()| Count::default()));
    }
    let built = if wanted.needs_real_parts() {
        ground::prepare_with(cache, wanted.kubernetes, Purpose::Tests, || compile(cache, wanted))
    } else {
        compile(cache, wanted)
    };
    total += match built {
        Ok(built) => test(cache, wanted, &built),
        Err(error) => or_failed("build", Err(error)),
    };
    println!("\nin {:.0} s", began.elapsed().as_secs_f64());
    println!("{} passed, {} failed", total.passed, total.failed);
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All test programs that are wanted.
fn compile(cache: &Cache, wanted: &Wanted) -> Result<Built> {
    let mut built = cargo::tests(cache)?;
    if wanted.includes(Suite::Lint) || wanted.includes(Suite::Unit) {
        let more = cargo::mountpoint_tests(cache)?;
        built.tests.extend(more.tests);
        built.warnings += more.warnings;
    }
    if wanted.includes(Suite::Cluster) {
        image::next::build(cache)?;
    }
    Ok(built)
}

fn test(cache: &Cache, wanted: &Wanted, built: &Built) -> Count {
    let mut total = Count::default();
    if wanted.includes(Suite::Lint) && built.warnings > 0 {
        total += or_failed("lint", Err(anyhow!("{} warnings, shown above", built.warnings)));
    }
    if wanted.busy {
        keep_busy();
    }
    let filter = wanted.filter.as_deref();
    let mut tested = Count::default();
    if wanted.includes(Suite::Unit) {
        tested += or_failed("unit", suite::unit(&built.tests, filter));
    }
    if wanted.needs_real_parts() {
        tested += on_real_parts(cache, wanted, &built.tests);
    }
    total += or_failed("filter", tested.of_filtered(filter));
    total
}

/// One thread for each processor, until this process ends, however it ends.
fn keep_busy() {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    for _ in 0..processors {
        std::thread::spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        });
    }
}

/// The suite of journeys mostly waits for the kubelet, and the others mostly compute: they run side by side.
fn on_real_parts(cache: &Cache, wanted: &Wanted, programs: &[TestProgram]) -> Count {
    let on = |suite, profile| in_own_cluster(cache, wanted, programs, suite, profile);
    std::thread::scope(|scope| {
        let journeys = scope.spawn(|| on(Suite::Cluster, Profile::Node));
        let mut total = Count::default();
        total += on(Suite::Api, Profile::Api);
        total += on(Suite::Claims, Profile::Control);
        total += on(Suite::Kernel, Profile::Kernel);
        total += on(Suite::Nodes, Profile::Node);
        if wanted.includes(Suite::Cluster) {
            // The tests of the node itself make clusters of their own.
            let machine = Place::Machine(wanted.kubernetes);
            total += or_failed("ground", suite(programs, "ground", machine, wanted.filter.as_deref()));
        }
        total += journeys.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        total
    })
}

/// The first node runs the control plane, so that tests can stop the two others.
const NODES: u8 = 3;

/// The cluster is made for the suite, so that a person's own is left as it is.
fn in_own_cluster(
    cache: &Cache,
    wanted: &Wanted,
    programs: &[TestProgram],
    name: Suite,
    profile: Profile,
) -> Count {
    if !wanted.includes(name) {
        return Count::default();
    }
    let nodes = if name == Suite::Nodes { NODES } else { 1 };
    let plan = Plan { profile, kubernetes: wanted.kubernetes, nodes };
    let name = format!("{name:?}").to_lowercase();
    let cluster = Cluster::named(cache, &format!("test-{name}"));
    // What an earlier run left, on purpose or not, is not what a test expects to find.
    let up = cluster.down().and_then(|()| cluster.up(plan));
    let mut total = match up {
        Ok(()) => or_failed(&name, suite(programs, &name, Place::Inside(&cluster), wanted.filter.as_deref())),
        Err(error) => {
            evidence::keep(&cluster, &name);
            or_failed(&name, Err(error))
        }
    };
    if !wanted.keep {
        total += or_failed("down", cluster.down().map(|()| Count::default()));
    }
    total
}

/// What needs no compiler; the rest is linted while it is compiled.
fn lint(cache: &Cache) -> Result<()> {
    check_dependencies(cache)?;
    step("format", || check(cargo(cache).args(["fmt", "--all", "--check"])))
}

/// Compiling cargo-deny takes minutes; the rest is for slower or busy machines.
const LINT_WITHIN: Duration = Duration::from_mins(40);

fn check(command: &mut Command) -> Result<()> {
    listen(command, LINT_WITHIN, |_| {}).map(drop)
}

/// Newest at the time of writing; a lint must not change by itself.
const CARGO_DENY: &str = "0.20.2";

/// Licences, banned crates and sources, as `deny.toml` has them. Advisories are left out: they come from the network.
fn check_dependencies(cache: &Cache) -> Result<()> {
    let folder = cache.programs().join(format!("cargo-deny-{CARGO_DENY}"));
    let program = folder.join("bin/cargo-deny");
    if !program.exists() {
        step("building cargo-deny", || {
            let mut install = cargo(cache);
            install
                .args(["install", "--debug", "--locked", "--version", CARGO_DENY, "cargo-deny", "--root"])
                .arg(&folder);
            // It runs for a second: optimizing it would take four minutes.
            install.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
            // Its own: with ours, a change of either would build the other anew.
            check(install.env_remove("CARGO_TARGET_DIR"))
        })?;
    }
    step("dependencies", || {
        let mut deny = Command::new(program);
        check(deny.current_dir(checkout()).args(["check", "bans", "licenses", "sources"]))
    })
}

/// The tests that find what is committed out of date also write it.
pub fn generate(cache: &Cache) -> Result<()> {
    debian::ensure_packages()?;
    step("code of the gRPC interfaces", || {
        let generator = ["--package", "xtask", "--features", "generate", "--bin", "generate-csi"];
        run_command(cargo(cache).args(["run", "--quiet"]).args(generator))
    })?;
    let programs = cargo::tests(cache)?.tests.into_iter().chain(cargo::mountpoint_tests(cache)?.tests);
    for program in programs.filter(|program| program.is_unit) {
        let mut tests = Command::new(&program.path);
        tests.current_dir(&program.package).env("S3_CSI_GENERATE", "1").args(["--quiet", "the_committed"]);
        run_command(&mut tests)?;
    }
    Ok(())
}
