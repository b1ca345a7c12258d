//! Collects what is needed to understand a failure after the cluster is gone, in one folder.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::cache::checkout;
use crate::cluster::{Cluster, Node, Profile};
use crate::command::{capture, run};
use crate::programs::Kubernetes;

/// (file, arguments of kubectl)
const DUMPS: &[(&str, &[&str])] = &[
    ("events.txt", &["get", "events", "--all-namespaces", "--sort-by=.metadata.creationTimestamp"]),
    ("pods.txt", &["get", "pods", "--all-namespaces", "--output=wide"]),
    ("pods.yaml", &["get", "pods", "--all-namespaces", "--output=yaml"]),
    (
        "volumes.yaml",
        &["get", "persistentvolumes,persistentvolumeclaims,storageclasses", "-A", "--output=yaml"],
    ),
    ("nodes.yaml", &["get", "nodes,csinodes,csidrivers", "--output=yaml"]),
    ("attachments.yaml", &["get", "mountpoints3podattachments", "--output=yaml"]),
];

/// Collects the evidence and prints where it is.
pub fn keep(cluster: &Cluster, name: &str) {
    match collect(cluster, name) {
        Ok(folder) => println!("evidence: {}", folder.display()),
        Err(error) => println!("could not collect evidence: {error:#}"),
    }
}

/// Copies the logs of every component and pod and dumps the objects of the API server. It skips what fails, because it is
/// meant for broken clusters.
fn collect(cluster: &Cluster, suite: &str) -> Result<PathBuf> {
    // Of a run on several releases, each keeps its own.
    let older = cluster.plan().ok().map(|plan| plan.kubernetes).filter(|it| *it != Kubernetes::default());
    let name = older.map_or(suite.to_owned(), |release| format!("{suite}-{release}"));
    let folder = checkout().join("target/evidence").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    for node in cluster.nodes().unwrap_or(vec![Node::FIRST]) {
        let folder = if node == Node::FIRST { folder.clone() } else { folder.join(node.name()) };
        fs::create_dir_all(&folder)?;
        copy(&cluster.logs(node), &folder.join("log"));
        copy(&cluster.disk(node).join("var/log/pods"), &folder.join("pods"));
        let mounts =
            cluster.command_on(node, "cat").and_then(|mut cat| capture(cat.arg("/proc/self/mountinfo")));
        if let Ok(mounts) = mounts {
            fs::write(folder.join("mountinfo.txt"), mounts)?;
        }
    }
    if cluster.plan().is_ok_and(|plan| plan.profile != Profile::Kernel) {
        for (file, arguments) in DUMPS {
            let Ok(mut kubectl) = cluster.kubectl() else { break };
            let said = capture(kubectl.arg("--request-timeout=10s").args(*arguments));
            fs::write(folder.join(file), said.unwrap_or_else(|error| format!("{error:#}\n")))?;
        }
    }
    Ok(folder)
}

fn copy(from: &Path, to: &Path) {
    let _ = run(std::process::Command::new("cp").arg("--recursive").arg("--dereference").arg(from).arg(to));
}
