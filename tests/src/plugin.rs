//! `kubectl s3`, as people call it.

use std::process::Command;

use crate::paste;
use crate::story::Story;

/// What the plugin printed, and its exit code.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub text: String,
    pub errors: String,
}

/// `kubectl s3 …` with the plugin of the release in the path.
pub fn s3(story: &Story, arguments: &[&str]) -> Said {
    let cluster = &story.here.cluster;
    let mut command = Command::new(cluster.programs().unwrap().node("kubectl"));
    command.arg("s3").args(arguments).env("PATH", paste::programs(cluster).unwrap());
    // A home of its own: what kubectl keeps belongs to the cluster.
    command.env("KUBECONFIG", cluster.kubeconfig()).env("HOME", cluster.dir());
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code(), text: text(output.stdout), errors: text(output.stderr) }
}
