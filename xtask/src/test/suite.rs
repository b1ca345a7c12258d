//! Running test programs, and counting what they say.

use std::process::{Command, ExitStatus};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::evidence;
use crate::cargo::TestProgram;
use crate::cluster::Cluster;
use crate::process::{Line, Process};
use crate::programs::Kubernetes;

/// No program may take longer, beside other work either; one that does is stuck, mostly on a mount, and then only the end of
/// its cluster frees it.
const SUITE_WITHIN: Duration = Duration::from_mins(40);
/// What a program that was stuck may still have to say when its cluster is gone.
const LAST_WORDS_WITHIN: Duration = Duration::from_mins(1);

/// How many journeys go on at once on the node: they wait for kubelet more than they work.
const CLUSTER_THREADS: u32 = 6;
/// For each of the two fuzz tests.
const FUZZ_SECONDS: &str = "30";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) passed: u32,
    pub(super) failed: u32,
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

impl Count {
    /// `test result: ok. 3 passed; 0 failed; 0 ignored; …`, the last line of every test program. A test that is ignored proves
    /// nothing, so it has failed.
    fn parse(line: &str) -> Option<Self> {
        let rest = line.strip_prefix("test result: ")?;
        let number = |what: &str| -> Option<u32> {
            rest.split(&['.', ';'][..]).find_map(|part| part.trim().strip_suffix(what)?.trim().parse().ok())
        };
        Some(Self { passed: number("passed")?, failed: number("failed")? + number("ignored")? })
    }

    /// Nothing that was run has passed nothing. With a filter, other suites may have the tests that are meant.
    fn of_something(self, filter: Option<&str>) -> Result<Self> {
        if self == Self::default() && filter.is_none() {
            bail!("there are no tests");
        }
        Ok(self)
    }

    /// After all suites: somewhere there is a test of this name.
    pub(super) fn of_filtered(self, filter: Option<&str>) -> Result<Self> {
        match filter {
            Some(filter) if self == Self::default() => bail!("no test's name contains `{filter}`"),
            _ => Ok(self),
        }
    }
}

/// What could not even be run is a failure like others; the rest still gets its turn.
pub(super) fn or_failed(what: &str, outcome: Result<Count>) -> Count {
    outcome.unwrap_or_else(|error| {
        println!("{what}: {error:#}");
        Count { passed: 0, failed: 1 }
    })
}

pub(super) fn unit(programs: &[TestProgram], filter: Option<&str>) -> Result<Count> {
    let waiting = Mutex::new(programs.iter().filter(|program| program.is_unit));
    let next = || waiting.lock().expect("no other thread panics while it holds it").next();
    let work = || {
        let mut total = Count::default();
        while let Some(program) = next() {
            let mut command = Command::new(&program.path);
            command.current_dir(&program.package).arg("--quiet").args(filter);
            command.env("S3_CSI_FUZZ_SECONDS", FUZZ_SECONDS);
            let title = format!("\nunit tests of `{}`\n", program.name);
            total += or_failed(&program.name, run(&mut command, title, SUITE_WITHIN, || {}));
        }
        total
    };
    // Two at once: each of the fuzz tests, which take most of the time, uses one processor.
    let mut total = Count::default();
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        total += work();
        total += other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    total.of_something(filter)
}

/// Where a suite runs.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    /// In the namespaces of this cluster.
    Inside(&'a Cluster),
    /// On the machine itself; the clusters that the suite makes are of this release.
    Machine(Kubernetes),
}

/// Runs one suite where it belongs. A failure leaves evidence.
pub(super) fn suite(
    programs: &[TestProgram],
    name: &str,
    place: Place<'_>,
    filter: Option<&str>,
) -> Result<Count> {
    let program = programs.iter().find(|program| !program.is_unit && program.name == name);
    let program = &program.with_context(|| format!("there is no test program `{name}`"))?.path;
    println!("\nsuite `{name}`");
    let (mut command, cluster) = match place {
        Place::Inside(cluster) => {
            let mut command = cluster.command(program)?;
            command.env("S3_CSI_CLUSTER", cluster.dir());
            command.env("S3_CSI_PROGRAMS", cluster.cache().target().join("release"));
            (command, Some(cluster))
        }
        Place::Machine(kubernetes) => {
            let mut command = Command::new(program);
            command.env("S3_CSI_XTASK", std::env::current_exe()?);
            command.env("S3_CSI_KUBERNETES", kubernetes.to_string());
            (command, None)
        }
    };
    // A failure is shown when it happens, not with all others at the end of the suite.
    command.args(filter).arg("--nocapture");
    if name == "cluster" {
        command.arg(format!("--test-threads={CLUSTER_THREADS}"));
    }
    let keep = |cluster: &Cluster| evidence::keep(cluster, name);
    let mut is_down = false;
    let counted = run(&mut command, String::new(), SUITE_WITHIN, || {
        if let Some(cluster) = cluster {
            keep(cluster);
            is_down = true;
            if let Err(error) = cluster.down() {
                println!("{error:#}");
            }
        }
    });
    match (cluster, &counted) {
        (Some(cluster), Ok(Count { failed: 1.., .. }) | Err(_)) if !is_down => keep(cluster),
        _ => {}
    }
    counted?.of_something(filter)
}

/// Shows each test as it ends, and the rest of the output in one piece after its title: another suite may be running beside this
/// one. A program that is stuck is freed, and it ends or is left behind: the run goes on, whatever became of it.
fn run(command: &mut Command, title: String, limit: Duration, free: impl FnOnce()) -> Result<Count> {
    let mut tests = Process::start(command)?;
    let mut result = None;
    let mut rest = title;
    let mut heard = |line| {
        let Line::Out(line) = line else { return };
        result = Count::parse(&line).or(result);
        if line.starts_with("test ") && !line.starts_with("test result") {
            println!("{line}");
        } else {
            rest.extend([&line, "\n"]);
        }
    };
    if let Some(status) = tests.hear(limit, &mut heard)? {
        print!("{rest}");
        return conclude(result, status);
    }
    println!("did not end within {} min", limit.as_secs() / 60);
    free();
    let ended = tests.hear(LAST_WORDS_WITHIN.min(limit), &mut heard)?;
    tests.kill();
    print!("{rest}");
    let end = ended.map_or("still runs".to_owned(), |status| status.to_string());
    bail!("was stuck for more than {} min; after its cluster was taken down: {end}", limit.as_secs() / 60)
}

fn conclude(result: Option<Count>, status: ExitStatus) -> Result<Count> {
    match result {
        Some(count) if count.failed > 0 || status.success() => Ok(count),
        _ => bail!("the tests ended with {status} and without a result"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(result: &str, then: &str) -> Result<Count> {
        let script = format!("echo 'test result: {result}; 0 measured; 0 filtered out'; {then}");
        run(Command::new("sh").args(["-c", &script]), String::new(), Duration::from_mins(1), || {})
    }

    #[test]
    fn results_are_counted() {
        let line = "test result: FAILED. 12 passed; 1 failed; 0 ignored; 0 measured; 2 filtered out; finished in 0.00s";
        assert_eq!(Count::parse(line), Some(Count { passed: 12, failed: 1 }));
        assert_eq!(Count::parse("test a ... ok"), None);
        assert_eq!(Count::parse("test result: ok. many passed"), None);
        assert_eq!(
            say("ok. 2 passed; 0 failed; 0 ignored", "exit 0").unwrap(),
            Count { passed: 2, failed: 0 }
        );
    }

    #[test]
    fn an_ignored_test_has_failed() {
        let counted = say("ok. 2 passed; 0 failed; 1 ignored", "exit 0").unwrap();
        assert_eq!(counted, Count { passed: 2, failed: 1 });
    }

    #[test]
    fn no_test_at_all_is_a_failure_unless_a_filter_left_none_here() {
        let nothing = say("ok. 0 passed; 0 failed; 0 ignored", "exit 0").unwrap();
        assert!(nothing.of_something(None).is_err());
        assert!(nothing.of_something(Some("rename")).is_ok());
        let error = nothing.of_filtered(Some("rename")).unwrap_err().to_string();
        assert_eq!(error, "no test's name contains `rename`");
        assert!(Count { passed: 1, failed: 0 }.of_filtered(Some("rename")).is_ok());
    }

    #[test]
    fn a_program_that_dies_without_a_result_has_failed() {
        assert!(say("ok. 2 passed; 0 failed; 0 ignored", "kill -9 $$").is_err());
        assert!(run(Command::new("true").arg(""), String::new(), Duration::from_mins(1), || {}).is_err());
    }

    /// Neither the program nor its child ends, and taking the cluster down has freed neither.
    #[test]
    fn a_stuck_program_ends_the_run_even_if_it_cannot_be_freed() {
        let mut freed = false;
        let mut stuck = Command::new("sh");
        stuck.args(["-c", "trap '' TERM; sleep 1000 & wait; wait"]);
        let error = run(&mut stuck, String::new(), Duration::from_secs(1), || freed = true).unwrap_err();
        assert!(freed && error.to_string().contains("still runs"), "{error}");
    }
}
