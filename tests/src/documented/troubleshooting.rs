//! The texts by which readers find their problem are those that they see.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use mounter::handover::Code;
use serde_json::json;

use super::{files_below, first_cell, root, rows, spans};

const PAGE: &str = include_str!("../../../docs/troubleshooting.md");

/// How texts of other programs begin.
const OF_OTHERS: &[&str] = &[
    // The kubelet, and the cluster's volume binder.
    "driver name s3.csi.scality.com not found",
    "waiting for first consumer",
    // The scheduler.
    "node(s) exceed max volume count",
    // `kubectl get`.
    "Terminating",
    // The C library of the workload, for error numbers of the mount process.
    "Transport endpoint is not connected",
    "Permission denied",
    "Operation not permitted",
    "Read-only file system",
    "Cannot allocate memory",
    "Stale file handle",
    "Input/output error",
    "Function not implemented",
    "Operation not supported",
    // Helm.
    "values don't meet the specifications of the schema",
    "chart requires kubeVersion",
    "namespaces \"mount-s3\" already exists",
    "cannot be imported into the current release",
    "no matches for kind",
];

/// What the first column quotes, without `…`, which stands for what varies.
fn quoted() -> BTreeSet<&'static str> {
    let spans = rows(PAGE).into_iter().flat_map(|row| spans(first_cell(row)));
    let parts = spans.flat_map(|span| span.split('…'));
    let parts = parts.map(|part| part.trim_matches(|one: char| !one.is_alphanumeric()));
    parts.filter(|part| !part.is_empty()).collect()
}

/// Programs and chart, without comments and tests, which may quote what nothing says. Texts that are broken over lines are
/// whole.
fn code() -> String {
    let below = |folder: &str, extension: &str| files_below(&root().join(folder), extension);
    let is_test =
        |path: &Path| path.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("tests"));
    let programs = below("crates", "rs").into_iter().filter(|path| !is_test(path));
    let files = programs.chain(["yaml", "tpl", "txt"].into_iter().flat_map(|one| below("charts", one)));
    let mut code = String::new();
    for path in files {
        let comment = if path.extension().is_some_and(|one| one == "rs") { "//" } else { "#" };
        let text = fs::read_to_string(path).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        code.extend(text.split_inclusive('\n').filter(|line| !line.trim_start().starts_with(comment)));
    }
    let lines: Vec<&str> = code.split("\\\n").map(str::trim_start).collect();
    lines.concat().replace("\\\"", "\"")
}

/// A code of the hand-over, as it is in the Events of a pod.
fn is_code(text: &str) -> bool {
    serde_json::from_value::<Code>(json!(text)).is_ok_and(|code| code.to_string() == text)
}

#[test]
fn the_quoted_texts_are_those_of_the_programs() {
    let code = code();
    // Reasons of Events are names of the code.
    let words: BTreeSet<&str> = code.split(|one: char| !one.is_alphanumeric()).collect();
    let is_ours =
        |text: &str| words.contains(text) || is_code(text) || text.contains(' ') && code.contains(text);
    let quoted = quoted();
    assert!(quoted.len() > 30, "{quoted:?}");
    let (ours, others): (Vec<&str>, Vec<&str>) = quoted.iter().copied().partition(|text| is_ours(text));
    let unknown = others.iter().filter(|text| !OF_OTHERS.iter().any(|start| text.starts_with(start)));
    assert_eq!(unknown.collect::<Vec<_>>(), [&""; 0], "no program has these texts");
    let unquoted = OF_OTHERS.iter().filter(|start| !others.iter().any(|text| text.starts_with(*start)));
    assert_eq!(unquoted.collect::<Vec<_>>(), [&""; 0], "not quoted, or texts of our own");
    assert!(ours.contains(&"there is no bucket") && ours.contains(&"no-such-bucket"), "{ours:?}");
    assert!(!is_ours("there is no pail") && !is_ours("no-such-pail") && !is_code("failing"));
}
