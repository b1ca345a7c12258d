//! `cargo xtask test`: builds everything, then runs the suites with real components, each in its own cluster, and beside them the
//! lints and the unit tests.

pub mod evidence;
mod failures;
mod lints;
mod matrix;
mod real_parts;
mod repeat;
mod suite;

use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};

use crate::cache::Cache;
use crate::cargo::{self, Built, cargo};
use crate::debian;
use crate::ground;
use crate::programs::{Kubernetes, Purpose};
use crate::progress::step;
use suite::{Count, or_failed};

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command")]
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
    /// Do not run failed tests once more: one that would pass then has failed, too.
    #[arg(long)]
    strict: bool,
    /// Kubernetes release to test on.
    #[arg(long, value_enum, default_value_t)]
    kubernetes: Kubernetes,
    /// Run the suites on every supported Kubernetes release, one after the other, and write docs/matrix.md.
    #[arg(long, conflicts_with = "kubernetes")]
    matrix: bool,
    /// Run only the upgrade from the last released version, which is compiled first.
    #[arg(long, conflicts_with_all = ["only", "matrix", "filter"])]
    released: bool,
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
    /// Roles, associations and the driver's own identities on a real node.
    Identities,
    /// What administrators do with the driver on a real node: other values, upgrades, migration, removal.
    Operations,
}

impl Wanted {
    fn includes(&self, suite: Suite) -> bool {
        if self.released {
            return suite == Suite::Operations;
        }
        self.only.is_none_or(|only| only == suite)
    }

    fn filter(&self) -> Option<&str> {
        if self.released { Some(suite::OF_RELEASED) } else { self.filter.as_deref() }
    }

    /// With `--busy`, tests that need an idle machine are what is looked for. With `--keep`, the cluster as a failure left it.
    fn repeats(&self) -> bool {
        !self.busy && !self.strict && !self.keep
    }

    fn needs_real_parts(&self) -> bool {
        !matches!(self.only, Some(Suite::Lint | Suite::Unit))
    }

    /// Newest first.
    fn releases(&self) -> Vec<Kubernetes> {
        if self.matrix { Kubernetes::ALL.to_vec() } else { vec![self.kubernetes] }
    }
}

pub fn run(cache: &Cache, wanted: &Wanted) -> Result<ExitCode> {
    let began = Instant::now();
    // Even lints build the C libraries of the mount process.
    debian::ensure_test_packages()?;
    let compile = || cargo::tests(cache);
    let built = if wanted.needs_real_parts() {
        ground::prepare_with(cache, &wanted.releases(), Purpose::Tests, compile)
    } else {
        compile()
    };
    let total = match built {
        Ok(built) => test(cache, wanted, &built),
        Err(error) => or_failed("build", Err(error)),
    };
    println!("\nin {:.0} s", began.elapsed().as_secs_f64());
    println!("{}", summary(&total));
    Ok(if total.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The last line is alone with its two numbers, for those who read only that.
fn summary(total: &Count) -> String {
    let unstable = total.unstable.iter();
    let mut lines: Vec<String> =
        unstable.map(|failure| format!("unstable, passed when it ran once more: {failure}")).collect();
    lines.extend(total.failures.iter().map(|failure| format!("failed: {failure}")));
    if !total.unstable.is_empty() {
        lines.push(format!("{} unstable, which --strict counts as failed", total.unstable.len()));
    }
    lines.push(format!("{} passed, {} failed", total.passed, total.failures.len()));
    lines.join("\n")
}

/// The suites with real components mostly wait; beside them runs what computes.
fn test(cache: &Cache, wanted: &Wanted, built: &Built) -> Count {
    if wanted.busy {
        keep_busy();
    }
    let filter = wanted.filter();
    let (mut total, tested) = std::thread::scope(|scope| {
        let checked = scope.spawn(|| check(cache, wanted, built));
        let mut tested = Count::default();
        let mut total = Count::default();
        if wanted.needs_real_parts() {
            let run = |kubernetes| real_parts::run(cache, wanted, kubernetes, &built.tests);
            let outcomes: Vec<_> = wanted.releases().into_iter().flat_map(run).collect();
            for outcome in &outcomes {
                tested += outcome.count.clone();
            }
            if wanted.matrix && filter.is_none() {
                total += or_failed("matrix", matrix::write(&outcomes).map(|()| Count::default()));
            }
        }
        let (linted, unit) = checked.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        total += linted;
        tested += unit;
        (total, tested)
    });
    total += or_failed("filter", tested.of_filtered(filter));
    total
}

/// Lints, and unit tests.
fn check(cache: &Cache, wanted: &Wanted, built: &Built) -> (Count, Count) {
    let (mut linted, mut tested) = (Count::default(), Count::default());
    if !wanted.includes(Suite::Lint) && !wanted.includes(Suite::Unit) {
        return (linted, tested);
    }
    let mount_process = cargo::mountpoint_tests(cache).unwrap_or_else(|error| {
        linted += or_failed("build", Err(error));
        Built::default()
    });
    if wanted.includes(Suite::Unit) {
        let programs: Vec<_> = built.tests.iter().chain(&mount_process.tests).collect();
        tested += or_failed("unit", suite::unit(&programs, wanted.filter()));
    }
    if wanted.includes(Suite::Lint) {
        let warnings = built.warnings + mount_process.warnings;
        if warnings > 0 {
            linted += or_failed("lint", Err(anyhow!("{warnings} warnings, shown above")));
        }
        linted += or_failed("lint", lints::run(cache, wanted.kubernetes).map(|()| Count::default()));
    }
    (linted, tested)
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

/// The tests that find what is committed out of date also write it.
pub fn generate(cache: &Cache) -> Result<()> {
    debian::ensure_packages()?;
    step("code of the gRPC interfaces", || {
        let generator = ["--package", "xtask", "--features", "generate", "--bin", "generate-csi"];
        lints::check(cargo(cache).args(["run", "--quiet"]).args(generator))
    })?;
    let programs = cargo::tests(cache)?.tests.into_iter().chain(cargo::mountpoint_tests(cache)?.tests);
    for program in programs.filter(|program| program.is_unit) {
        let mut tests = Command::new(&program.path);
        tests.current_dir(&program.package).env("S3_CSI_GENERATE", "1").args(["--quiet", "the_committed"]);
        lints::check(&mut tests)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::failures::Failure;
    use super::*;

    #[test]
    fn unstable_tests_are_counted_before_the_last_line() {
        let failure = |name: &str| Failure { name: name.to_owned(), reason: "why".to_owned() };
        let mut total = Count { passed: 5, failures: vec![failure("a")], ..Count::default() };
        let last = "5 passed, 1 failed";
        assert!(!summary(&total).contains("unstable") && summary(&total).ends_with(&format!("\n{last}")));
        total.unstable = vec![failure("b"), failure("c")];
        let summary = summary(&total);
        let lines: Vec<&str> = summary.lines().rev().take(2).collect();
        assert_eq!(lines, [last, "2 unstable, which --strict counts as failed"]);
        assert!(summary.contains("once more: b") && summary.contains("failed: a"), "{summary}");
    }
}
