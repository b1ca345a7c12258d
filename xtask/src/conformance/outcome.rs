//! What became of each spec, from Ginkgo's report.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::left_out;

/// The specs that `-storage.testdriver` defines; the suite has thousands of others.
const OURS: &str = "External Storage";
/// Of a driver's specs, each belongs to a combination of volume type, file system and mode.
const PATTERN: &str = "[Testpattern: ";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Spec {
    pub(super) suite: String,
    pub(super) pattern: String,
    pub(super) name: String,
    pub(super) outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

/// Numbers of passed, skipped and failed specs.
pub(super) fn count(specs: &[Spec]) -> (usize, usize, usize) {
    let number = |is: fn(&Outcome) -> bool| specs.iter().filter(|spec| is(&spec.outcome)).count();
    (
        number(|outcome| matches!(outcome, Outcome::Passed)),
        number(|outcome| matches!(outcome, Outcome::Skipped(_))),
        number(|outcome| matches!(outcome, Outcome::Failed(_))),
    )
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Report {
    spec_reports: Vec<SpecReport>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SpecReport {
    #[serde(default)]
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    #[serde(default)]
    leaf_node_text: String,
    state: String,
    #[serde(default)]
    failure: Failure,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

/// Reads Ginkgo's JSON report. `all` says that every spec was to run: then one that was skipped without a reason is an error.
pub(super) fn read(report: &[u8], all: bool) -> Result<Vec<Spec>> {
    let reports: Vec<Report> = serde_json::from_slice(report).context("cannot read Ginkgo's report")?;
    let mut specs = Vec::new();
    for report in reports.into_iter().flat_map(|report| report.spec_reports) {
        let containers = report.container_hierarchy_texts.clone().unwrap_or_default();
        if report.leaf_node_type != "It" {
            // The set-up of the suite: if it fails, no spec runs.
            if !matches!(report.state.as_str(), "passed" | "skipped") {
                bail!("{} {}: {}", report.leaf_node_type, report.state, report.failure.message);
            }
        } else if containers.iter().any(|text| text.contains(OURS)) {
            specs.extend(spec(&report, &containers, all)?);
        }
    }
    specs.sort();
    Ok(specs)
}

fn spec(report: &SpecReport, containers: &[String], all: bool) -> Result<Option<Spec>> {
    let name = without_labels(&report.leaf_node_text);
    let (pattern, suite) = containers
        .iter()
        .find_map(|text| text.split_once(PATTERN)?.1.split_once("] "))
        .with_context(|| format!("no test pattern in {containers:?}"))?;
    let outcome = match report.state.as_str() {
        "passed" => Outcome::Passed,
        "skipped" | "pending" => match (report.failure.message.trim(), left_out::reason(&name)) {
            ("", Some(reason)) => Outcome::Skipped(reason.to_owned()),
            ("", None) if all => bail!("{suite} ({pattern}): {name}: skipped without a reason"),
            ("", None) => return Ok(None),
            (message, _) => Outcome::Skipped(reason(message)),
        },
        _ => Outcome::Failed(report.failure.message.clone()),
    };
    Ok(Some(Spec { suite: without_labels(suite), pattern: pattern.to_owned(), name, outcome }))
}

/// `should work [Slow] [LinuxOnly]` → `should work`
fn without_labels(name: &str) -> String {
    let mut kept = String::new();
    for (index, part) in name.split('[').enumerate() {
        kept.push_str(if index == 0 { part } else { part.split_once(']').map_or(part, |(_, rest)| rest) });
    }
    kept.split_whitespace().collect::<Vec<_>>().join(" ").replace(" ,", ",")
}

/// The suite's words without their usual ending, and without an error of the machine, which follows in quotes.
fn reason(message: &str) -> String {
    let message = message.lines().next().unwrap_or(message).trim();
    let message = message.split_once(": '").map_or(message, |(message, _)| message);
    let end = ["-- skipping", "- skipping", ", skipping"];
    end.iter().find_map(|end| message.strip_suffix(end)).unwrap_or(message).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(name: &str, state: &str, message: &str) -> serde_json::Value {
        serde_json::json!({
            "ContainerHierarchyTexts":
                ["[sig-storage] External Storage", "[Driver: d]", "[Testpattern: Dynamic PV (default fs)] subPath"],
            "LeafNodeType": "It", "LeafNodeText": name, "State": state, "Failure": {"Message": message},
        })
    }

    fn outcomes(reports: &[serde_json::Value], all: bool) -> Result<Vec<Outcome>> {
        let other = serde_json::json!({
            "ContainerHierarchyTexts": ["[sig-apps] Jobs"], "LeafNodeType": "It", "LeafNodeText": "x", "State": "skipped",
        });
        let reports = [&[other], reports].concat();
        let report = serde_json::json!([{"SpecReports": reports}]);
        Ok(read(report.to_string().as_bytes(), all)?.into_iter().map(|spec| spec.outcome).collect())
    }

    #[test]
    fn every_spec_has_an_outcome() {
        let passed = report("a [Slow]", "passed", "");
        let skipped = report("b", "skipped", "Driver d does not support it -- skipping");
        let failed = report("c", "timedout", "too late");
        let found = outcomes(&[failed, skipped, passed], true).unwrap();
        let expected = [
            Outcome::Passed,
            Outcome::Skipped("Driver d does not support it".to_owned()),
            Outcome::Failed("too late".to_owned()),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_spec_is_only_left_out_for_a_reason() {
        let (part, reason) = left_out::LEFT_OUT[0];
        let named = report(&format!("{part} [Slow]"), "skipped", "");
        assert_eq!(outcomes(&[named], true).unwrap(), [Outcome::Skipped(reason.to_owned())]);
        let unnamed = [report("anything", "skipped", "")];
        assert!(outcomes(&unnamed, true).is_err());
        assert_eq!(outcomes(&unnamed, false).unwrap(), []);
    }

    #[test]
    fn a_suite_that_cannot_begin_is_an_error() {
        let set_up = serde_json::json!({
            "ContainerHierarchyTexts": null, "LeafNodeType": "SynchronizedBeforeSuite", "State": "failed",
            "Failure": {"Message": "no nodes"},
        });
        assert!(outcomes(&[set_up], true).unwrap_err().to_string().contains("no nodes"));
    }

    #[test]
    fn reasons_do_not_depend_on_the_machine() {
        assert_eq!(
            reason("No SSH Key for provider skeleton: 'open /root: no'"),
            "No SSH Key for provider skeleton"
        );
    }

    #[test]
    fn labels_are_no_part_of_a_name() {
        assert_eq!(without_labels("should work [Slow] [LinuxOnly]"), "should work");
        assert_eq!(without_labels("(Always)[LinuxOnly], a pod"), "(Always), a pod");
    }
}
