//! Running test programs, and counting what they say.

use std::cell::Cell;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::count::{Count, or_failed};
use super::evidence;
use super::failures::{Failure, Failures};
use super::repeat::repeat;
use super::wanted::{OF_RELEASED, Wanted};
use crate::cargo::TestProgram;
use crate::cluster::Cluster;
use crate::process::{Line, Process};
use crate::programs::Kubernetes;

/// No program may take longer, beside other work either; one that does is stuck, mostly on a mount, and then only the end of
/// its cluster frees it.
const SUITE_WITHIN: Duration = Duration::from_mins(40);
/// What a program that was stuck may still have to say when its cluster is gone.
const LAST_WORDS_WITHIN: Duration = Duration::from_mins(1);

/// How many tests of a suite go on at once. They wait for other programs more than they work.
fn threads(suite: &str) -> u32 {
    match suite {
        "api" | "claims" | "cluster" => 6,
        // Each has the node to itself, or makes clusters of its own. Those of `kernel` compute, and start programs that disturb files
        // that other tests have open.
        _ => 2,
    }
}

/// For each of the two fuzz tests.
const FUZZ_SECONDS: &str = "30";

pub(super) fn unit(programs: &[&TestProgram], filter: Option<&str>) -> Result<Count> {
    let waiting = Mutex::new(programs.iter().filter(|program| program.is_unit));
    let next = || waiting.lock().expect("no other thread panics while it holds it").next();
    let work = || {
        let mut total = Count::default();
        while let Some(program) = next() {
            let mut command = Command::new(&program.path);
            command.current_dir(&program.package).arg("--quiet").args(filter);
            command.env("S3_CSI_FUZZ_SECONDS", FUZZ_SECONDS);
            total += or_failed(&program.name, run(&mut command, &program.name, SUITE_WITHIN, || {}));
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

impl Place<'_> {
    fn command(self, program: &Path) -> Result<Command> {
        match self {
            Place::Inside(cluster) => {
                let mut command = cluster.command(program)?;
                command.env("S3_CSI_CLUSTER", cluster.dir());
                command.env("S3_CSI_PROGRAMS", cluster.cache().target().join("release"));
                Ok(command)
            }
            Place::Machine(kubernetes) => {
                let mut command = Command::new(program);
                command.env("S3_CSI_XTASK", std::env::current_exe()?);
                command.env("S3_CSI_KUBERNETES", kubernetes.to_string());
                Ok(command)
            }
        }
    }
}

/// Runs one suite where it belongs. A failure leaves evidence.
pub(super) fn suite(
    programs: &[TestProgram],
    name: &str,
    place: Place<'_>,
    wanted: &Wanted,
) -> Result<Count> {
    let filter = wanted.filter();
    let program = programs.iter().find(|program| !program.is_unit && program.name == name);
    let program = &program.with_context(|| format!("there is no test program `{name}`"))?.path;
    println!("\nsuite `{name}`");
    let cluster = match place {
        Place::Inside(cluster) => Some(cluster),
        Place::Machine(_) => None,
    };
    let is_down = Cell::new(false);
    let run_tests = |arguments: &[&str]| {
        let mut command = place.command(program)?;
        // A failure is shown when it happens, not with all others at the end of the suite.
        command.args(arguments).arg("--nocapture");
        run(&mut command, name, SUITE_WITHIN, || {
            if let Some(cluster) = cluster {
                evidence::keep(cluster, name);
                is_down.set(true);
                if let Err(error) = cluster.down() {
                    println!("{error:#}");
                }
            }
        })
    };
    let threads = format!("--test-threads={}", threads(name));
    let mut arguments: Vec<&str> = filter.into_iter().chain([threads.as_str()]).collect();
    if filter != Some(OF_RELEASED) {
        // Not `#[ignore]`: a test that is ignored has failed.
        arguments.extend(["--skip", OF_RELEASED]);
    }
    let mut counted = run_tests(&arguments);
    let has_failed = counted.as_ref().map_or(true, |count| !count.failures.is_empty());
    if let Some(cluster) = cluster.filter(|_| has_failed && !is_down.get()) {
        evidence::keep(cluster, name);
    }
    if wanted.repeats() {
        // A new cluster: buckets and volumes of the first attempt would be in the way of the second.
        let run_again = |test: &str| {
            cluster.map_or(Ok(()), Cluster::renew)?;
            run_tests(&["--exact", test])
        };
        counted = counted.map(|count| repeat(name, count, run_again));
    }
    counted?.of_something(filter)
}

/// Shows each test as it ends, and the rest of the output in one piece: another suite may be running beside this one. A program
/// that is stuck is freed, and it ends or is left behind: the run goes on, whatever became of it.
fn run(command: &mut Command, name: &str, limit: Duration, free: impl FnOnce()) -> Result<Count> {
    let mut tests = Process::start(command.stderr(Stdio::piped()))?;
    let (mut result, mut failures) = (None, Failures::default());
    let mut rest = format!("\n{name}:\n");
    let mut heard = |line| {
        failures.read(&line);
        match line {
            Line::Error(line) => eprintln!("{line}"),
            Line::Out(line) => {
                result = Numbers::parse(&line).or(result);
                if line.starts_with("test ") && !line.starts_with("test result") {
                    println!("{line}");
                } else {
                    rest.extend([&line, "\n"]);
                }
            }
        }
    };
    if let Some(status) = tests.hear(limit, &mut heard)? {
        print!("{rest}");
        return conclude(result, failures.of(name), status);
    }
    println!("did not end within {} min", limit.as_secs() / 60);
    free();
    let ended = tests.hear(LAST_WORDS_WITHIN.min(limit), &mut heard)?;
    tests.kill();
    print!("{rest}");
    let end = ended.map_or("still runs".to_owned(), |status| status.to_string());
    bail!("was stuck for more than {} min; after its cluster was taken down: {end}", limit.as_secs() / 60)
}

/// What a test program says in its last line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    passed: u32,
    failed: usize,
    ignored: u32,
}

impl Numbers {
    /// `test result: ok. 3 passed; 0 failed; 0 ignored; …`
    fn parse(line: &str) -> Option<Self> {
        let rest = line.strip_prefix("test result: ")?;
        let number = |what: &str| -> Option<u32> {
            rest.split(&['.', ';'][..]).find_map(|part| part.trim().strip_suffix(what)?.trim().parse().ok())
        };
        let failed = usize::try_from(number("failed")?).ok()?;
        Some(Self { passed: number("passed")?, failed, ignored: number("ignored")? })
    }
}

fn conclude(result: Option<Numbers>, failures: Vec<Failure>, status: ExitStatus) -> Result<Count> {
    match result {
        Some(said) if said.ignored > 0 => bail!("{} tests are ignored, which proves nothing", said.ignored),
        Some(said) if said.failed != failures.len() => {
            bail!("{} tests failed, of which {} are named in the output", said.failed, failures.len())
        }
        Some(said) if said.failed > 0 || status.success() => {
            Ok(Count { passed: said.passed, failures, unstable: Vec::new() })
        }
        _ => bail!("the tests ended with {status} and without a result"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(result: &str, then: &str) -> Result<Count> {
        let script = format!("echo 'test result: {result}; 0 measured; 0 filtered out'; {then}");
        run(Command::new("sh").args(["-c", &script]), "sh", Duration::from_mins(1), || {})
    }

    #[test]
    fn results_are_counted() {
        let line = "test result: FAILED. 12 passed; 1 failed; 0 ignored; 0 measured; 2 filtered out; finished in 0.00s";
        assert_eq!(Numbers::parse(line), Some(Numbers { passed: 12, failed: 1, ignored: 0 }));
        assert_eq!(Numbers::parse("test a ... ok"), None);
        assert_eq!(Numbers::parse("test result: ok. many passed"), None);
        let counted = say("ok. 2 passed; 0 failed; 0 ignored", "exit 0").unwrap();
        assert_eq!(counted, Count { passed: 2, ..Count::default() });
    }

    #[test]
    fn failures_are_named() {
        let script = "echo \"thread 'a::b' (1) panicked at c.rs:1:2:\" >&2; echo why >&2; echo failures:; \
            echo '    a::b'; echo; echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored'; exit 101";
        let counted =
            run(Command::new("sh").args(["-c", script]), "sh", Duration::from_mins(1), || {}).unwrap();
        assert_eq!(counted.passed, 2);
        assert_eq!(counted.failures[0].name, "sh a::b");
        assert!(counted.failures[0].reason.ends_with("c.rs:1:2:\nwhy"), "{}", counted.failures[0]);
        assert!(say("FAILED. 2 passed; 1 failed; 0 ignored", "exit 101").is_err());
    }

    #[test]
    fn an_ignored_test_has_failed() {
        assert!(say("ok. 2 passed; 0 failed; 1 ignored", "exit 0").is_err());
    }

    #[test]
    fn a_program_that_dies_without_a_result_has_failed() {
        assert!(say("ok. 2 passed; 0 failed; 0 ignored", "kill -9 $$").is_err());
        assert!(run(Command::new("true").arg(""), "true", Duration::from_mins(1), || {}).is_err());
    }

    /// Neither the program nor its child ends, and taking the cluster down has freed neither.
    #[test]
    fn a_stuck_program_ends_the_run_even_if_it_cannot_be_freed() {
        let mut freed = false;
        let mut stuck = Command::new("sh");
        stuck.args(["-c", "trap '' TERM; sleep 1000 & wait; wait"]);
        let error = run(&mut stuck, "stuck", Duration::from_secs(1), || freed = true).unwrap_err();
        assert!(freed && error.to_string().contains("still runs"), "{error}");
    }
}
