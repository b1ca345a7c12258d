//! Values that an upgrade must not change while buckets are mounted.

use s3_csi_tests::account::MOUNTPOINT_NAMESPACE;
use s3_csi_tests::{Seen, eventually};
use xtask::cache::checkout;
use xtask::command::{capture, run};
use xtask::driver;

use crate::story::{LIMIT, Story};

/// What Helm would do, with the objects that the chart looks up.
fn dry_run(story: &Story, value: &str) -> anyhow::Result<String> {
    let mut helm = driver::helm(&story.here.cluster)?;
    helm.args(["upgrade", "s3-csi"]).arg(checkout().join("charts/s3-csi"));
    capture(helm.args(["--dry-run=server", "--reuse-values", "--set", value]))
}

#[tokio::test]
async fn an_upgrade_that_would_delete_the_mounts_is_refused() {
    const HANDED_OVER: &str = "mountpointPod.createNamespace=false";
    const MOVED: &str = "mountpointPod.namespace=elsewhere";
    let story = Story::alone("kept-namespace").await;
    story.here.run("workload", story.workload("ls /data && echo in; sleep 3600")).await;
    story.says("workload", "in").await;
    story.mountpoint_pods().await;
    let keep = |change: &str| {
        let namespace = format!("namespace/{MOUNTPOINT_NAMESPACE}");
        run(story.here.cluster.kubectl().unwrap().args(["annotate", &namespace, change])).unwrap();
    };
    let refused = |value: &str, words: &str| {
        let error = dry_run(&story, value).unwrap_err().to_string();
        assert!(error.contains(words), "{value}: {error}");
    };
    refused(MOVED, "`mountpointPod.namespace` would change from \"mount-s3\" to \"elsewhere\"");
    refused(HANDED_OVER, "kubectl annotate namespace mount-s3 helm.sh/resource-policy=keep");
    keep("helm.sh/resource-policy=keep");
    dry_run(&story, HANDED_OVER).unwrap();
    refused(MOVED, "end the workloads that use buckets first");
    keep("helm.sh/resource-policy-");
    story.here.delete("workload").await;
    eventually("nothing is mounted", LIMIT, || async {
        let left = story.left().await;
        Seen::some(left.is_empty().then_some(()), format!("{left:?}"))
    })
    .await;
    for value in [HANDED_OVER, MOVED] {
        dry_run(&story, value).unwrap();
    }
    story.leaves_nothing().await;
}
