//! The demo: from nothing to a bucket that two pods share as a volume.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cache::{Cache, checkout};
use crate::cluster::{Cluster, DEFAULT_NAME, Plan, State};
use crate::command::{capture, run as run_command};
use crate::programs::Kubernetes;
use crate::progress::step;
use crate::{driver, ground};

const BUCKET: &str = "my-bucket";
const KEY: &str = "hello.txt";
/// How long the reader may take after both pods are running.
const READS_WITHIN: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub fn run(cache: &Cache, kubernetes: Kubernetes) -> Result<()> {
    let began = Instant::now();
    ground::prepare(cache, kubernetes)?;
    let cluster = Cluster::named(cache, DEFAULT_NAME);
    let runs_already = matches!(cluster.state()?, State::Up { .. });
    step("cluster and S3 server", || cluster.up(Plan { kubernetes, ..Plan::default() }))?;
    let kubectl = |arguments: &[&str]| capture(cluster.kubectl()?.args(arguments));
    let manifest = checkout().join("examples/static.yaml");
    let manifest = manifest.to_str().context("the path of the checkout is not valid UTF-8")?;
    step("remove the objects of an earlier demo", || {
        kubectl(&["delete", "--filename", manifest, "--ignore-not-found", "--timeout=60s"])
    })?;
    step("helm install", || driver::install(&cluster, &[]))?;
    if runs_already {
        step("restart the driver with the new images", || driver::restart(&cluster))?;
    }
    step("create the empty bucket `my-bucket`", || empty_bucket(&cluster))?;
    step("kubectl apply -f examples/static.yaml", || kubectl(&["apply", "--filename", manifest]))?;
    let wait = |pod: &str| {
        kubectl(&["wait", &format!("pod/{pod}"), "--for=condition=Ready", "--timeout=120s"]).map(drop)
    };
    step("wait for the writer", || wait("writer"))?;
    step("wait for the reader", || wait("reader"))?;
    let read = step("wait until the reader has read the writer's file", || {
        let deadline = Instant::now() + READS_WITHIN;
        loop {
            let said = kubectl(&["logs", "reader"])?;
            if said.contains("hello") {
                return Ok(said);
            }
            anyhow::ensure!(Instant::now() < deadline, "the reader did not read the file; its log: {said}");
            std::thread::sleep(LOOK_EVERY);
        }
    })?;
    show("kubectl get pv,pvc,pods", &kubectl(&["get", "pv,pvc,pods"])?);
    show("kubectl get s3pa", &kubectl(&["get", "s3pa"])?);
    show("kubectl get pods -n mount-s3", &kubectl(&["get", "pods", "--namespace", "mount-s3"])?);
    show("kubectl logs reader", &read);
    show(
        &format!("the object on the S3 server: s3://{BUCKET}/{KEY}"),
        &capture(s3(&cluster)?.args(["get", BUCKET, KEY]))?,
    );
    println!("\nDone in {:.0} s. The cluster keeps running. Try:\n", began.elapsed().as_secs_f64());
    println!("    cargo xtask cluster kubectl exec writer -- ls -l /data");
    println!("    echo hello | cargo xtask s3 put - {BUCKET} from-outside.txt");
    println!("    cargo xtask cluster kubectl exec reader -- cat /data/from-outside.txt");
    println!("    cargo xtask cluster kubectl describe s3pa");
    println!("    cargo xtask cluster exec sh           # a shell on the node");
    println!("\nStop it with:\n\n    cargo xtask cluster down");
    Ok(())
}

fn show(title: &str, text: &str) {
    println!("\n{title}\n");
    text.lines().for_each(|line| println!("    {line}"));
}

fn empty_bucket(cluster: &Cluster) -> Result<()> {
    if !capture(s3(cluster)?.arg("ls"))?.lines().any(|name| name == BUCKET) {
        return run_command(s3(cluster)?.args(["mb", BUCKET]));
    }
    let keys = capture(s3(cluster)?.args(["ls", BUCKET]))?;
    keys.lines().try_for_each(|key| run_command(s3(cluster)?.args(["rm", BUCKET, key])))
}

/// `cargo xtask s3` of this cluster.
fn s3(cluster: &Cluster) -> Result<Command> {
    let mut command = cluster.command(std::env::current_exe()?)?;
    command.arg("s3");
    Ok(command)
}
