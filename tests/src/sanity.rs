//! csi-sanity, the interface's own test, on sockets of ours.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::cluster;

/// What became of each test, by its whole name.
#[derive(Debug, Default)]
pub struct Report {
    pub passed: BTreeSet<String>,
    pub skipped: BTreeSet<String>,
    /// With what was wrong.
    pub failed: Vec<String>,
}

/// `socket` has the identity service and those services that the tests of `focus` are about; `controller`, if it is
/// another one, has the controller service.
pub fn run(socket: &Path, controller: Option<&Path>, without: &[&str], more: &[String]) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    let mut command = Command::new(cluster().programs().unwrap().tool("csi-sanity"));
    command.arg(format!("--csi.endpoint={}", socket.display()));
    command.args(controller.map(|socket| format!("--csi.controllerendpoint={}", socket.display())));
    command.args(without.iter().map(|part| format!("--ginkgo.skip={part}")));
    command.arg(format!("--ginkgo.json-report={}", report.display()));
    command.arg(format!("--csi.mountdir={}", folder.path().join("target").display()));
    command.arg(format!("--csi.stagingdir={}", folder.path().join("staging").display()));
    let output = command.args(more).output().unwrap();
    let text = std::fs::read_to_string(&report)
        .unwrap_or_else(|_| panic!("no report: {}", String::from_utf8_lossy(&output.stdout)));
    let suites: Vec<Value> = serde_json::from_str(&text).unwrap();
    let mut result = Report::default();
    for test in suites.iter().filter_map(|suite| suite["SpecReports"].as_array()).flatten() {
        if test["LeafNodeType"] != "It" {
            continue;
        }
        let parts = test["ContainerHierarchyTexts"].as_array().cloned().unwrap_or_default();
        let parts = parts.iter().chain([&test["LeafNodeText"]]).filter_map(Value::as_str);
        let name = parts.collect::<Vec<_>>().join(" ");
        match test["State"].as_str().unwrap_or_default() {
            "passed" => result.passed.insert(name),
            "skipped" | "pending" => result.skipped.insert(name),
            _ => {
                result.failed.push(format!("{name}: {}", test["Failure"]["Message"]));
                true
            }
        };
    }
    result
}
