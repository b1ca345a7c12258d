//! A search for secrets where none may be: in the logs, objects and processes of the first node.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use xtask::cluster::{Cluster, Node};
use xtask::command::capture;

use crate::processes::processes;

/// No log, object or process has any of these; and what has one would be found.
pub fn no_secret_is_seen(cluster: &Cluster, secrets: &[String]) {
    assert_eq!(traces(cluster, secrets), [""; 0]);
    let planted = "planted-secret-of-the-test".to_owned();
    let mut process =
        Command::new("sleep").arg("600").env("PLANTED", &planted).stdin(Stdio::null()).spawn().unwrap();
    // Not below /var/log/pods, where the kubelet removes what is of no pod.
    let log = cluster.logs(Node::FIRST).join("planted.log");
    fs::write(&log, &planted).unwrap();
    let kubectl = |arguments: &[&str]| capture(cluster.kubectl().unwrap().args(arguments)).unwrap();
    kubectl(&["create", "configmap", "planted", &format!("--from-literal=secret={planted}")]);
    let found = traces(cluster, &[planted]);
    kubectl(&["delete", "configmap", "planted"]);
    process.kill().unwrap();
    process.wait().unwrap();
    fs::remove_file(log).unwrap();
    for place in ["/environ", "/planted.log", "configmaps"] {
        assert!(found.iter().any(|found| found.ends_with(place)), "{place}: {found:?}");
    }
}

/// The logs, objects and processes that contain any of these.
fn traces(cluster: &Cluster, secrets: &[String]) -> Vec<String> {
    let contains = |content: &[u8]| {
        let text = String::from_utf8_lossy(content);
        secrets.iter().any(|secret| text.contains(secret.as_str()))
    };
    let mut found = Vec::new();
    for process in processes("", None) {
        for file in ["cmdline", "environ"] {
            let path = format!("/proc/{process}/{file}");
            if contains(&fs::read(&path).unwrap_or_default()) {
                found.push(path);
            }
        }
    }
    let mut folders = vec!["/var/log/pods".into(), cluster.logs(Node::FIRST)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if contains(&content(&path)) {
                found.push(path.display().to_string());
            }
        }
    }
    let kubectl = |arguments: &[&str]| capture(cluster.kubectl().unwrap().args(arguments)).unwrap();
    let kinds = kubectl(&["api-resources", "--verbs=list", "--output=name"]);
    assert!(kinds.lines().count() > 20, "{kinds}");
    for kind in kinds.lines() {
        if contains(kubectl(&["get", kind, "--all-namespaces", "--output=json"]).as_bytes()) {
            found.push(kind.to_owned());
        }
    }
    found
}

/// The kubelet compresses logs that it has rotated.
fn content(log: &Path) -> Vec<u8> {
    if log.extension().is_some_and(|extension| extension == "gz") {
        return Command::new("gzip").args(["--decompress", "--stdout"]).arg(log).output().unwrap().stdout;
    }
    fs::read(log).unwrap_or_default()
}
