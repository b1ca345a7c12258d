//! Installs the driver as users do: with a Secret and Helm.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::cache::{Cache, checkout};
use crate::cluster::Cluster;
use crate::command::{capture, run};
use crate::debian;
use crate::programs::{Kubernetes, Programs, Purpose};
use crate::s3;

pub const NAMESPACE: &str = "kube-system";
/// The Secret with the driver's own keys.
pub const KEYS: &str = "s3-secret";
/// Our images, which are already on the node, and values that some tests need.
const USUAL: &[&str] = &[
    "image.repository=s3-csi.test/driver,image.tag=dev,image.pullPolicy=Never",
    "mountpointPod.image.repository=s3-csi.test/mounter",
    "mountpointPod.image.tag=dev,mountpointPod.image.pullPolicy=Never",
    "podIdentity.enabled=true",
    // Tests stop and kill "the" controller; those of several replicas ask for them.
    "controller.replicas=1",
];

/// Installs or upgrades the driver, for the cluster's S3 server and with Alice's keys unless `values` override them. Returns
/// when the pods are ready.
pub fn install(cluster: &Cluster, values: &[&str]) -> Result<()> {
    install_chart(cluster, &checkout().join("charts/s3-csi"), values)
}

/// The same with another chart.
pub fn install_chart(cluster: &Cluster, chart: &Path, values: &[&str]) -> Result<()> {
    let kubectl =
        |arguments: &[&str]| capture(cluster.kubectl()?.args(["--namespace", NAMESPACE]).args(arguments));
    if kubectl(&["get", "secret", KEYS, "--ignore-not-found", "--output=name"])?.is_empty() {
        let id = format!("--from-literal=access_key_id={}", s3::ALICE.access_key);
        let secret = format!("--from-literal=secret_access_key={}", s3::ALICE.secret_key);
        kubectl(&["create", "secret", "generic", KEYS, &id, &secret])?;
    }
    let usual = usual_values();
    let values = usual.iter().map(String::as_str).chain(values.iter().copied());
    run(helm(cluster)?
        .args(["upgrade", "--install", "s3-csi"])
        .arg(chart)
        .args(values.flat_map(|value| ["--set", value]))
        .args(["--wait", "--timeout=300s"]))?;
    wait_for_departures(|| kubectl(&["get", "pods", "--selector=app=s3-csi-controller", TERMINATING]))
}

/// Names of pods that are being deleted.
const TERMINATING: &str = "--output=jsonpath={.items[?(@.metadata.deletionTimestamp)].metadata.name}";
/// As long as Helm waits for pods to become ready.
const DEPARTED_WITHIN: Duration = Duration::from_mins(5);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Helm does not wait for the controller of the previous installation, which leads with its own values until it has ended.
fn wait_for_departures(leaving: impl Fn() -> Result<String>) -> Result<()> {
    let until = Instant::now() + DEPARTED_WITHIN;
    loop {
        let left = leaving()?;
        if left.trim().is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < until, "pods of the previous installation do not end: {left}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The values of every installation by [`install`].
pub fn usual_values() -> Vec<String> {
    let endpoint = format!("s3.endpointUrl={}", s3::ENDPOINT);
    USUAL.iter().map(|value| (*value).to_owned()).chain([endpoint]).collect()
}

/// Uninstalls as documented; returns when the objects of the chart are gone.
pub fn uninstall(cluster: &Cluster) -> Result<()> {
    run(helm(cluster)?.args(["uninstall", "s3-csi", "--wait", "--timeout=300s"]))
}

/// Restarts the programs, because rebuilt images have the same name and Helm would not restart them.
pub fn restart(cluster: &Cluster) -> Result<()> {
    let kubectl = |arguments: &[&str]| {
        run(cluster.kubectl()?.args(["--namespace", NAMESPACE, "rollout"]).args(arguments))
    };
    let programs = ["deployment/s3-csi-controller", "daemonset/s3-csi-node"];
    kubectl(&["restart", programs[0], programs[1]])?;
    programs.iter().try_for_each(|program| kubectl(&["status", program, "--timeout=300s"]))
}

/// The chart with its CRD as one manifest, for `kubectl apply`.
pub fn manifest(cache: &Cache, kubernetes: Kubernetes, values: &[String]) -> Result<String> {
    if !Programs::are_built(cache, kubernetes, Purpose::Chart)? {
        debian::ensure_go()?;
        Programs::ensure(cache, kubernetes, Purpose::Chart)?;
    }
    let mut helm = Command::new(Programs::of(cache, kubernetes)?.tool("helm"));
    helm.args(["template", "s3-csi"]).arg(checkout().join("charts/s3-csi"));
    helm.args(["--include-crds", "--skip-tests", "--namespace", NAMESPACE]);
    helm.arg("--kube-version").arg(kubernetes.to_string());
    capture(helm.args(values.iter().flat_map(|value| ["--set", value])))
}

/// Renders the chart for the cluster's release with the values of `file` and with `values`, which take precedence, as YAML.
pub fn render(cluster: &Cluster, file: Option<&Path>, values: &[&str]) -> Result<String> {
    let mut command = helm(cluster)?;
    command.args(["template", "s3-csi"]).arg(checkout().join("charts/s3-csi"));
    // By default, Helm takes the newest release that it knows, whose fields an older API server refuses.
    command.arg("--kube-version").arg(cluster.plan()?.kubernetes.to_string());
    if let Some(file) = file {
        command.arg("--values").arg(file);
    }
    capture(command.args(values.iter().flat_map(|value| ["--set", value])))
}

/// What Helm prints after an installation with these values, without installing.
pub fn notes(cluster: &Cluster, values: &[&str]) -> Result<String> {
    let mut command = helm(cluster)?;
    command.args(["install", "s3-csi", "--dry-run=server", "--take-ownership"]);
    command.arg(checkout().join("charts/s3-csi"));
    let printed = capture(command.args(values.iter().flat_map(|value| ["--set", value])))?;
    Ok(printed.split_once("NOTES:").context("Helm prints no notes")?.1.to_owned())
}

/// `helm` inside the node, for the driver's namespace.
pub fn helm(cluster: &Cluster) -> Result<Command> {
    let mut command = cluster.command(cluster.programs()?.tool("helm"))?;
    // Helm's own files belong to the cluster.
    command.env("KUBECONFIG", cluster.kubeconfig()).env("HOME", cluster.dir());
    command.args(["--namespace", NAMESPACE]);
    Ok(command)
}
