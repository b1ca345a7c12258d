//! Building and running test programs, and counting what they say.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::evidence;
use crate::cache::Cache;
use crate::cluster::Cluster;
use crate::command::{capture, cargo};
use crate::programs::Kubernetes;

/// No suite may take longer; one that does is stuck on a mount, and only the end of its cluster frees it.
const SUITE_WITHIN: Duration = Duration::from_mins(20);

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
    /// `test result: ok. 3 passed; 0 failed; …`, the last line of every test program.
    fn parse(line: &str) -> Option<Self> {
        let rest = line.strip_prefix("test result: ")?;
        let number = |what: &str| {
            rest.split(&['.', ';'][..]).find_map(|part| part.trim().strip_suffix(what)?.trim().parse().ok())
        };
        Some(Self { passed: number("passed")?, failed: number("failed")? })
    }
}

/// How many journeys go on at once on the node.
const CLUSTER_THREADS: u32 = 6;
/// For each of the two fuzz tests.
const FUZZ_SECONDS: &str = "30";

pub(super) fn unit(cache: &Cache, filter: Option<&str>) -> Result<Count> {
    let mut command = cargo(cache);
    command.args(["test", "--quiet", "--locked", "--workspace", "--lib", "--bins", "--no-fail-fast"]);
    command.arg("--").args(filter).env("S3_CSI_FUZZ_SECONDS", FUZZ_SECONDS);
    run(&mut command)
}

/// Where a suite runs.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    /// In the namespaces of this cluster.
    Inside(&'a Cluster),
    /// On the machine itself; the clusters that the suite makes are of this release.
    Machine(Kubernetes),
}

/// The test programs of the suites, by name.
pub(super) struct Suites(HashMap<String, PathBuf>);

impl Suites {
    pub(super) fn build(cache: &Cache) -> Result<Self> {
        let messages = capture(cargo(cache).args([
            "test",
            "--no-run",
            "--locked",
            "--package",
            "s3-csi-tests",
            "--features",
            "real-parts",
            "--tests",
            "--message-format",
            "json-render-diagnostics",
        ]))?;
        let programs = messages.lines().filter_map(|line| {
            let message: Value = serde_json::from_str(line).ok()?;
            let kind = message["target"]["kind"][0].as_str()?;
            let name = message["target"]["name"].as_str()?;
            let program = message["executable"].as_str()?;
            (kind == "test").then(|| (name.to_owned(), PathBuf::from(program)))
        });
        Ok(Self(programs.collect()))
    }

    /// Runs one suite where it belongs. A failure leaves evidence.
    pub(super) fn run(&self, name: &str, place: Place<'_>, filter: Option<&str>) -> Result<Count> {
        let program = self.0.get(name).with_context(|| format!("there is no test program `{name}`"))?;
        println!("\nsuite `{name}`");
        let mut command = match place {
            Place::Inside(cluster) => cluster.command(program)?,
            // Nothing can be taken down to end it.
            Place::Machine(_) => {
                let mut timeout = Command::new("timeout");
                timeout.args(["--kill-after=30s", &format!("{}s", SUITE_WITHIN.as_secs())]).arg(program);
                timeout
            }
        };
        command.args(filter);
        if name == "cluster" {
            // Its tests wait for kubelet more than they work.
            command.arg(format!("--test-threads={CLUSTER_THREADS}"));
        }
        match place {
            Place::Inside(cluster) => command
                .env("S3_CSI_CLUSTER", cluster.dir())
                .env("S3_CSI_PROGRAMS", cluster.cache().target().join("release")),
            Place::Machine(kubernetes) => command
                .env("S3_CSI_XTASK", std::env::current_exe()?)
                .env("S3_CSI_KUBERNETES", kubernetes.to_string()),
        };
        let cluster = match place {
            Place::Inside(cluster) => Some(cluster),
            Place::Machine(_) => None,
        };
        let (finished, watch) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let watcher = scope.spawn(move || {
                let stuck = matches!(watch.recv_timeout(SUITE_WITHIN), Err(mpsc::RecvTimeoutError::Timeout));
                if stuck {
                    println!("suite `{name}` did not end within {} min", SUITE_WITHIN.as_secs() / 60);
                    if let Some(cluster) = cluster {
                        evidence::keep(cluster, name);
                        let _ = cluster.down();
                    }
                }
                stuck
            });
            let counted = run(&mut command);
            drop(finished);
            let stuck = watcher.join().unwrap_or(false);
            if let (false, Some(cluster)) = (stuck || matches!(counted, Ok(Count { failed: 0, .. })), cluster)
            {
                evidence::keep(cluster, name);
            }
            counted
        })
    }
}

/// Shows what the test programs say and adds up their last lines.
fn run(command: &mut Command) -> Result<Count> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start the tests")?;
    let output = BufReader::new(child.stdout.take().context("the tests have no output")?);
    let mut total = Count::default();
    let mut programs = 0;
    for line in output.lines() {
        let line = line?;
        println!("{line}");
        if let Some(count) = Count::parse(&line) {
            total += count;
            programs += 1;
        }
    }
    let status = child.wait()?;
    if programs == 0 || (total.failed == 0 && !status.success()) {
        bail!("the tests ended with {status} and without a result");
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted() {
        let line = "test result: FAILED. 12 passed; 1 failed; 0 ignored; 0 measured; 2 filtered out; finished in 0.00s";
        assert_eq!(Count::parse(line), Some(Count { passed: 12, failed: 1 }));
        assert_eq!(Count::parse("test a ... ok"), None);
        assert_eq!(Count::parse("test result: ok. many passed"), None);
    }
}
