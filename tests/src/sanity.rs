//! csi-sanity, the interface's own test, on sockets of ours.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
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

/// `node` and `controller` are sockets of these services; `target` is where a volume would be mounted. Tests whose names
/// match one of `without` are left out.
pub fn run(node: &Path, controller: &Path, target: &Path, without: &[&str]) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    let mut command = Command::new(cluster().programs().unwrap().tool("csi-sanity"));
    command.arg(format!("--csi.endpoint={}", node.display()));
    command.arg(format!("--csi.controllerendpoint={}", controller.display()));
    command.args(without.iter().map(|part| format!("--ginkgo.skip={part}")));
    command.arg(format!("--ginkgo.json-report={}", report.display()));
    // kubelet has paths of its own, which a command may say.
    let path = folder.path().join("path.sh");
    let script =
        format!("#!/bin/sh\nmkdir -p {0}\necho {1}\n", target.parent().unwrap().display(), target.display());
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    command.arg(format!("--csi.createmountpathcmd={}", path.display()));
    command.arg(format!("--csi.mountdir={}", folder.path().join("target").display()));
    command.arg(format!("--csi.stagingdir={}", folder.path().join("staging").display()));
    let output = command.output().unwrap();
    let text = fs::read_to_string(&report)
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
