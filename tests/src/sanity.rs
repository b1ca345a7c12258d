//! csi-sanity, the interface's own test, on sockets of ours.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use xtask::s3::Account;

use crate::cluster;

/// Calls that get keys: the driver's own are for volumes that are known to ask for none.
const WITH_KEYS: [&str; 4] =
    ["CreateVolume", "DeleteVolume", "ControllerValidateVolumeCapabilities", "NodePublishVolume"];

/// What became of each test, by its whole name.
#[derive(Debug, Default)]
pub struct Report {
    pub passed: BTreeSet<String>,
    pub skipped: BTreeSet<String>,
    /// With what was wrong.
    pub failed: Vec<String>,
}

/// `node` and `controller` are sockets of these services; volumes are mounted at `target` in `folder`, which is made and
/// removed for each test. The volumes are those of the account.
pub fn run(node: &Path, controller: &Path, folder: &Path, account: Account) -> Report {
    let place = tempfile::tempdir().unwrap();
    let report = place.path().join("report.json");
    let script = |name: &str, text: String| {
        let path = place.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    let folder = folder.display();
    let create = script("create.sh", format!("mkdir -p {folder} && echo {folder}"));
    let remove = script("remove.sh", format!("rmdir {folder}"));
    // Without touching it: a mount whose server hangs would keep the test.
    let listed =
        "if ls \"$(dirname $1)\" | grep -qx \"$(basename $1)\"; then echo directory; else echo not_found; fi";
    let check = script("check.sh", listed.to_owned());
    let keys = json!({"access_key_id": account.access_key, "secret_access_key": account.secret_key});
    let secrets = WITH_KEYS.map(|call| (format!("{call}Secret"), keys.clone()));
    let file = place.path().join("secrets.yaml");
    fs::write(&file, Value::Object(secrets.into_iter().collect()).to_string()).unwrap();
    let mut command = Command::new(cluster().programs().unwrap().tool("csi-sanity"));
    command.arg(format!("--csi.endpoint={}", node.display()));
    command.arg(format!("--csi.controllerendpoint={}", controller.display()));
    command.arg(format!("--csi.createmountpathcmd={}", create.display()));
    command.arg(format!("--csi.removemountpathcmd={}", remove.display()));
    command.arg(format!("--csi.checkpathcmd={}", check.display()));
    command.arg(format!("--csi.secrets={}", file.display()));
    command.arg(format!("--csi.stagingdir={}", place.path().join("staging").display()));
    command.arg(format!("--ginkgo.json-report={}", report.display()));
    let output = command.output().unwrap();
    let text = fs::read_to_string(&report)
        .unwrap_or_else(|_| panic!("no report: {}", String::from_utf8_lossy(&output.stdout)));
    read(&serde_json::from_str::<Vec<Value>>(&text).unwrap())
}

fn read(suites: &[Value]) -> Report {
    let mut report = Report::default();
    for test in suites.iter().filter_map(|suite| suite["SpecReports"].as_array()).flatten() {
        if test["LeafNodeType"] != "It" {
            continue;
        }
        let parts = test["ContainerHierarchyTexts"].as_array().cloned().unwrap_or_default();
        let parts = parts.iter().chain([&test["LeafNodeText"]]).filter_map(Value::as_str);
        let name = parts.collect::<Vec<_>>().join(" ");
        match test["State"].as_str().unwrap_or_default() {
            "passed" => drop(report.passed.insert(name)),
            "skipped" | "pending" => drop(report.skipped.insert(name)),
            _ => report.failed.push(format!("{name}: {}", test["Failure"]["Message"])),
        }
    }
    report
}
