//! The commands of the documentation run as they are shown.

use s3_csi_tests::{Seen, eventually, paste};
use xtask::cluster::Cluster;
use xtask::command::{capture, run};
use xtask::s3::Client;
use xtask::{definitions, driver};

use crate::changed::Changed;
use crate::story::{LIMIT, Story};
use s3_csi_tests::examples::{BUCKET, folder};

/// What pages use; those that they apply themselves are applied once more.
const EXAMPLES: &[&str] = &["static.yaml", "dynamic-bucket-per-claim.yaml", "cache.yaml", "secret.yaml"];
/// The page on security restricts the controller to these.
const NAMESPACES: &[&str] = &["storage", "tenant-a"];

fn kubectl(cluster: &Cluster, arguments: &[&str]) -> anyhow::Result<String> {
    capture(cluster.kubectl()?.args(arguments))
}

/// Calls kubectl with all examples.
fn examples(cluster: &Cluster, arguments: &[&str]) -> anyhow::Result<()> {
    let files = EXAMPLES.iter().map(|file| folder().join(file));
    run(cluster
        .kubectl()?
        .args(arguments)
        .args(files.flat_map(|file| ["--filename".into(), file.into_os_string()])))
}

/// The kinds of the Prometheus operator; with that of `OpenShift`, the chart would take the cluster for one.
fn monitoring(cluster: &Cluster, arguments: &[&str]) -> anyhow::Result<()> {
    let files = definitions::files(cluster.cache()).into_iter();
    for file in files.filter(|file| file.to_string_lossy().contains("monitoring.coreos.com")) {
        run(cluster.kubectl()?.args(arguments).arg("--filename").arg(file))?;
    }
    Ok(())
}

fn prepare(cluster: &Cluster, server: &Client) -> anyhow::Result<()> {
    server.create_bucket(BUCKET)?;
    for namespace in NAMESPACES {
        kubectl(cluster, &["create", "namespace", namespace])?;
    }
    monitoring(cluster, &["apply", "--server-side"])?;
    examples(cluster, &["apply"])
}

/// Also after half of the blocks.
fn clean_up(cluster: &Cluster, server: &Client) -> anyhow::Result<()> {
    examples(cluster, &["delete", "--ignore-not-found", "--timeout=300s"])?;
    driver::install(cluster, &[])?;
    kubectl(
        cluster,
        &["delete", "secret", "s3-provisioning", "--namespace=kube-system", "--ignore-not-found"],
    )?;
    kubectl(
        cluster,
        &[&["delete", "namespace", "--ignore-not-found", "--wait=false"][..], NAMESPACES].concat(),
    )?;
    monitoring(cluster, &["delete", "--ignore-not-found", "--wait=false"])?;
    for key in server.objects(BUCKET, "")? {
        server.delete(BUCKET, &key)?;
    }
    server.delete_bucket(BUCKET)
}

#[tokio::test]
async fn every_runnable_block_of_every_page_runs() {
    let story = Story::alone("pages").await;
    let cluster = &story.here.cluster;
    let (own, server) = (cluster.clone(), Client::new(xtask::s3::ENDPOINT, xtask::s3::ALICE).unwrap());
    let prepared = Changed::make(
        "what pages begin with",
        || prepare(cluster, &story.server),
        move || clean_up(&own, &server),
    );
    let pods = ["pod/writer", "pod/reader", "pod/cache", "pod/secret"];
    kubectl(cluster, &[&["wait", "--for=condition=Ready", "--timeout=240s"][..], &pods].concat()).unwrap();
    let attachment = "jsonpath={range .items[?(@.spec.persistentVolumeName=='my-bucket')]}{.metadata.name}{' '}{.spec.nodeName}{end}";
    let shown = kubectl(cluster, &["get", "s3pa", "--output", attachment]).unwrap();
    let (attachment, node) = shown.trim().split_once(' ').expect("one attachment");
    let of_volume = format!("--selector={}=my-bucket", contract::names::label::VOLUME_NAME);
    let name = "jsonpath={.items[0].metadata.name}";
    let pod =
        kubectl(cluster, &["get", "pods", "--namespace=mount-s3", &of_volume, "--output", name]).unwrap();
    let found = [("ATTACHMENT", attachment.to_owned()), ("NODE", node.to_owned()), ("MOUNTPOINT_POD", pod)];

    // Those that change the installation last: the others show what readers have.
    let (changing, showing): (Vec<_>, Vec<_>) = paste::usual()
        .into_iter()
        .partition(|block| block.text.contains("helm ") || block.page == "docs/upgrading.md");
    for block in showing.iter().chain(&changing) {
        let printed = paste::paste(cluster, block, &found)
            .unwrap_or_else(|error| panic!("{}, {}: {error:#}", block.page, block.heading));
        println!("{}, {}: {printed}", block.page, block.heading);
    }

    prepared.undo();
    eventually("nothing is mounted", LIMIT, || async {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        Seen::some((!mounts.contains(&format!("~csi/{BUCKET}"))).then_some(()), mounts)
    })
    .await;
    story.leaves_nothing().await;
}
