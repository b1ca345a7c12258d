//! The driver on a cluster as its users install it: a Secret with keys, and Helm.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::cache::checkout;
use crate::cluster::Cluster;
use crate::command::{capture, run};
use crate::s3;

pub const NAMESPACE: &str = "kube-system";
/// The Secret with the driver's own keys.
pub const KEYS: &str = "s3-secret";
/// Our images, which are on the node already; and what some stories need.
const USUAL: &[&str] = &[
    "image.repository=s3-csi.test/driver,image.tag=dev,image.pullPolicy=Never",
    "mountpointPod.image.repository=s3-csi.test/mounter",
    "mountpointPod.image.tag=dev,mountpointPod.image.pullPolicy=Never",
    "podIdentity.enabled=true",
];

/// Installs, or changes what is installed: for the cluster's S3 server and as `alice`, unless `values` say otherwise.
/// Returns when the pods are ready.
pub fn install(cluster: &Cluster, values: &[&str]) -> Result<()> {
    let kubectl =
        |arguments: &[&str]| capture(cluster.kubectl()?.args(["--namespace", NAMESPACE]).args(arguments));
    if kubectl(&["get", "secret", KEYS, "--ignore-not-found", "--output=name"])?.is_empty() {
        let id = format!("--from-literal=access_key_id={}", s3::ALICE.access_key);
        let secret = format!("--from-literal=secret_access_key={}", s3::ALICE.secret_key);
        kubectl(&["create", "secret", "generic", KEYS, &id, &secret])?;
    }
    let endpoint = format!("s3.endpointUrl={}", s3::ENDPOINT);
    let server = [endpoint.as_str()];
    let values = USUAL.iter().chain(&server).chain(values).flat_map(|value| ["--set", value]);
    run(helm(cluster)?
        .args(["upgrade", "--install", "s3-csi"])
        .arg(checkout().join("charts/s3-csi"))
        .args(values)
        .args(["--wait", "--timeout=300s"]))
}

/// As the page on installation says; returns when the objects of the chart are gone.
pub fn uninstall(cluster: &Cluster) -> Result<()> {
    run(helm(cluster)?.args(["uninstall", "s3-csi", "--wait", "--timeout=120s"]))
}

/// Has the programs started again: images that were built anew have the same name, and nothing else would.
pub fn restart(cluster: &Cluster) -> Result<()> {
    let kubectl = |arguments: &[&str]| {
        run(cluster.kubectl()?.args(["--namespace", NAMESPACE, "rollout"]).args(arguments))
    };
    let programs = ["deployment/s3-csi-controller", "daemonset/s3-csi-node"];
    kubectl(&["restart", programs[0], programs[1]])?;
    programs.iter().try_for_each(|program| kubectl(&["status", program, "--timeout=300s"]))
}

/// What the values of `file`, and `values`, which win, would install, as YAML.
pub fn render(cluster: &Cluster, file: Option<&Path>, values: &[&str]) -> Result<String> {
    let mut command = helm(cluster)?;
    command.args(["template", "s3-csi"]).arg(checkout().join("charts/s3-csi"));
    if let Some(file) = file {
        command.arg("--values").arg(file);
    }
    capture(command.args(values.iter().flat_map(|value| ["--set", value])))
}

/// `helm` inside the node, for the driver's namespace.
fn helm(cluster: &Cluster) -> Result<Command> {
    let mut command = cluster.command(cluster.programs()?.tool("helm"))?;
    // A home of its own: what helm keeps belongs to the cluster.
    command.env("KUBECONFIG", cluster.kubeconfig()).env("HOME", cluster.dir());
    command.args(["--namespace", NAMESPACE]);
    Ok(command)
}
