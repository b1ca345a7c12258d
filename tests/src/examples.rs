//! The manifests in `examples/`.

use std::fs;
use std::path::{Path, PathBuf};

use xtask::command::capture;

use crate::story::{LIMIT, Story};
use crate::{Seen, eventually};

pub const BUCKET: &str = "my-bucket";

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

/// Applies an example, waits for what its pods say, and deletes it.
pub async fn works(story: &Story, file: &str) {
    let kubectl = |arguments: &[&str]| capture(story.here.cluster.kubectl().unwrap().args(arguments));
    let path = folder().join(file);
    let path = path.to_str().unwrap();
    kubectl(&["apply", "--filename", path]).unwrap();
    let objects = kubectl(&["get", "--filename", path, "--output=name"]).unwrap();
    let pods: Vec<&str> = objects.lines().filter(|name| name.starts_with("pod/")).collect();
    assert!(!pods.is_empty(), "{file} shows no pod");
    for pod in pods.iter().filter(|pod| **pod != "pod/writer") {
        let word = if *pod == "pod/reader" { "hello from writer" } else { "ready" };
        eventually(&format!("{pod} of {file} logs `{word}`"), LIMIT, || async {
            let said = kubectl(&["logs", pod]).unwrap_or_else(|error| format!("{error:#}"));
            let seen = said.contains(word).then_some(());
            Seen::some(seen, format!("{said}\n{}", kubectl(&["describe", pod]).unwrap_or_default()))
        })
        .await;
    }
    kubectl(&["delete", "--filename", path, "--timeout=300s"]).unwrap();
    eventually("nothing is mounted", LIMIT, || async {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        Seen::some((!mounts.contains(&format!("~csi/{BUCKET}"))).then_some(()), mounts)
    })
    .await;
}
