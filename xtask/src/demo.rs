//! The main job, shown: a pod that uses the S3 server of a real cluster.

use std::fs;
use std::process::Command;
use std::time::Instant;

use anyhow::Result;

use crate::cache::Cache;
use crate::cluster::{Cluster, DEFAULT_NAME, Plan};
use crate::command::{capture, run as run_command};
use crate::programs::Kubernetes;
use crate::progress::step;
use crate::{ground, image, s3};

const BUCKET: &str = "demo";
const KEY: &str = "greeting.txt";

pub fn run(cache: &Cache, kubernetes: Kubernetes) -> Result<()> {
    let began = Instant::now();
    ground::prepare(cache, kubernetes)?;
    let cluster = Cluster::named(cache, DEFAULT_NAME);
    step("cluster", || cluster.up(Plan { kubernetes, ..Plan::default() }))?;
    step("bucket `demo` with an object", || put_object(&cluster))?;
    let printed = step("pod that reads the object", || read_in_pod(&cluster))?;
    println!("\nThe pod read s3://{BUCKET}/{KEY}:\n\n    {}", printed.trim_end());
    println!("\nDone in {:.0} s. The cluster is yours; try:\n", began.elapsed().as_secs_f64());
    println!("    cargo xtask cluster kubectl get pods -A");
    println!("    cargo xtask s3 ls {BUCKET}");
    println!("    echo hello | cargo xtask s3 put - {BUCKET} hello.txt");
    println!("    cargo xtask cluster exec sh           # a shell inside the node");
    println!("\nand stop it with:\n\n    cargo xtask cluster down");
    Ok(())
}

fn put_object(cluster: &Cluster) -> Result<()> {
    let xtask = || -> Result<Command> {
        let mut command = cluster.command(std::env::current_exe()?)?;
        command.arg("s3");
        Ok(command)
    };
    if !capture(xtask()?.arg("ls"))?.lines().any(|name| name == BUCKET) {
        run_command(xtask()?.args(["mb", BUCKET]))?;
    }
    let file = tempfile::NamedTempFile::new_in(cluster.dir())?;
    fs::write(file.path(), "Hello from the S3 server, through a pod of your own cluster.\n")?;
    run_command(xtask()?.arg("put").arg(file.path()).args([BUCKET, KEY]))
}

fn read_in_pod(cluster: &Cluster) -> Result<String> {
    let kubectl = |arguments: &[&str]| -> Result<String> { capture(cluster.kubectl()?.args(arguments)) };
    kubectl(&["delete", "pod", "demo", "--ignore-not-found"])?;
    kubectl(&[
        "run",
        "demo",
        "--restart=Never",
        "--image-pull-policy=Never",
        &format!("--image={}", image::TESTPOD),
        &format!("--env=AWS_ENDPOINT_URL={}", s3::ENDPOINT),
        &format!("--env=AWS_ACCESS_KEY_ID={}", s3::ALICE.access_key),
        &format!("--env=AWS_SECRET_ACCESS_KEY={}", s3::ALICE.secret_key),
        "--",
        "get",
        BUCKET,
        KEY,
    ])?;
    kubectl(&["wait", "pod/demo", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s"])?;
    kubectl(&["logs", "demo"])
}
