//! Runs Kubernetes' own suite for the driver that `driver.yaml` describes.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::left_out;
use super::outcome::{self, Spec};
use crate::cluster::Cluster;
use crate::command::{capture, tail_of_log};
use crate::process::{Line, Process};
use crate::programs::Programs;
use crate::progress::metered;

pub(super) const LOG: &str = "e2e.log";
const REPORT: &str = "report.json";
/// Specs mostly wait for the kubelet.
const AT_ONCE: usize = 4;
/// Half an hour on two cores; the rest is for slower machines and for specs that wait for what does not happen.
const RUN_WITHIN: Duration = Duration::from_hours(3);

/// The references of all images that specs can use.
pub(super) fn images(programs: &Programs) -> Result<Vec<String>> {
    let listed = capture(Command::new(programs.node("e2e.test")).arg("--list-images"))?;
    Ok(listed.lines().filter(|line| line.contains('/')).map(|line| line.trim().to_owned()).collect())
}

/// Runs the specs, or those whose name contains `filter`, and returns what became of each. The output of the suite and its report
/// are left in `folder`.
pub(super) fn run(
    cluster: &Cluster,
    programs: &Programs,
    folder: &Path,
    filter: Option<&str>,
) -> Result<Vec<Spec>> {
    let (class, driver) = (folder.join("class.yaml"), folder.join("driver.yaml"));
    fs::write(&class, include_str!("class.yaml"))?;
    let text = include_str!("driver.yaml").replace("{class}", &class.display().to_string());
    fs::write(&driver, text)?;
    let report = folder.join(REPORT);
    let _ = fs::remove_file(&report);
    let mut suite = cluster.command(programs.node("ginkgo"))?;
    suite.args(["run", "-v", "--no-color", &format!("--procs={AT_ONCE}")]);
    suite.arg(format!("--timeout={}s", RUN_WITHIN.as_secs()));
    suite.arg(format!("--focus={}", focus(filter))).arg(format!("--skip={}", left_out::pattern()));
    suite.arg(flag("output-dir", folder)).arg(format!("--json-report={REPORT}"));
    suite.arg(programs.node("e2e.test")).args(["--", "--provider=skeleton"]);
    suite.arg(flag("kubeconfig", &cluster.kubeconfig())).arg(flag("kubectl-path", &programs.node("kubectl")));
    suite.arg(flag("storage.testdriver", &driver));
    let log = folder.join(LOG);
    metered("storage suite of Kubernetes", "specs", |meter| {
        let mut log = fs::File::create(&log)?;
        let mut process = Process::start(suite.stderr(Stdio::piped()))?;
        // A failed spec is not an error here: the report has it.
        let ended = process.hear(RUN_WITHIN, |line| {
            let (Line::Out(line) | Line::Error(line)) = line;
            if let Some(total) = total(&line) {
                meter.expect(total);
            } else if is_end_of_spec(&line) {
                meter.advance("");
            }
            let _ = writeln!(log, "{line}");
        })?;
        if ended.is_none() {
            process.kill();
            bail!("the suite timed out after {} min", RUN_WITHIN.as_secs() / 60);
        }
        Ok(())
    })
    .and_then(|()| fs::read(&report).context("the suite wrote no report"))
    .and_then(|report| outcome::read(&report, filter.is_none()))
    .with_context(|| tail_of_log(&log))
}

/// The regular expression for the specs of the driver whose name contains this text.
fn focus(filter: Option<&str>) -> String {
    let literal = |c: char| if c.is_ascii_punctuation() { format!("\\{c}") } else { c.to_string() };
    filter.map_or("External.Storage".to_owned(), |filter| {
        format!("External.Storage.*{}", filter.chars().map(literal).collect::<String>())
    })
}

fn flag(name: &str, value: &Path) -> String {
    format!("--{name}={}", value.display())
}

/// `Will run 250 of 7000 specs`
fn total(line: &str) -> Option<usize> {
    line.strip_prefix("Will run ")?.split(' ').next()?.parse().ok()
}

/// `• [12.345 seconds]`, `• [FAILED] [300.1 seconds]` or `S [SKIPPED] [0.1 seconds]`
fn is_end_of_spec(line: &str) -> bool {
    (line.starts_with("• [") || line.starts_with("S [SKIPPED]")) && line.ends_with("seconds]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_the_text_that_it_shows() {
        assert_eq!(focus(None), "External.Storage");
        assert_eq!(focus(Some("(default fs) a.b")), r"External.Storage.*\(default fs\) a\.b");
    }

    #[test]
    fn progress_is_read_from_the_output() {
        assert_eq!(total("Will run 250 of 7000 specs"), Some(250));
        assert_eq!(total("Will anything"), None);
        assert!(is_end_of_spec("• [FAILED] [300.1 seconds]") && is_end_of_spec("S [SKIPPED] [0.1 seconds]"));
        assert!(!is_end_of_spec("STEP: Creating a pod"));
    }
}
