//! `cargo xtask test`: builds everything, then runs the suites with real components, each in its own cluster, and beside them the
//! lints and the unit tests.

mod count;
mod emulated;
pub mod evidence;
mod failures;
mod lints;
mod matrix;
mod real_parts;
mod repeat;
mod suite;
mod wanted;

use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Result, anyhow};

use crate::cache::Cache;
use crate::cargo::{self, Built, cargo};
use crate::debian;
use crate::ground;
use crate::programs::Purpose;
use crate::progress::step;
use count::{Count, or_failed, summary};
use real_parts::Outcome;
use wanted::Suite;
pub use wanted::Wanted;

pub fn run(cache: &Cache, wanted: &Wanted) -> Result<ExitCode> {
    let began = Instant::now();
    // Even lints build the C libraries of the mount process.
    debian::ensure_test_packages()?;
    if let Some(architecture) = wanted.architecture {
        return Ok(end(began, &or_failed("build", emulated::programs(cache, architecture))));
    }
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
    Ok(end(began, &total))
}

fn end(began: Instant, total: &Count) -> ExitCode {
    println!("\nin {:.0} s", began.elapsed().as_secs_f64());
    println!("{}", summary(total));
    if total.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
            for Outcome { kubernetes, count, .. } in &outcomes {
                let count = count.clone();
                tested += if wanted.matrix { count.on(*kubernetes) } else { count };
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
