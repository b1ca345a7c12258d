//! What mounts do, as Prometheus and `kubectl s3 top` show it on a complete node.

use s3_csi_tests::node::metrics_of_installed;
use s3_csi_tests::{Seen, eventually};
use serde_json::Value;

use crate::story::{LIMIT, Story};
use s3_csi_tests::plugin::s3;

#[tokio::test]
async fn the_requests_of_a_claim_are_shown_while_it_is_used() {
    const SCRIPT: &str = "echo content > /data/file && echo in; while cat /data/file; do sleep 0.1; done";
    let story = Story::begin("top").await;
    let namespace = story.here.namespace.clone();
    let client = story.here.client.clone();
    let own = format!("namespace=\"{namespace}\",persistentvolumeclaim=\"{}\"", story.name);
    story.here.run("workload", story.workload(SCRIPT)).await;
    story.says("workload", "in").await;
    eventually("its reads have metrics", LIMIT, || async {
        let metrics = metrics_of_installed(&client).await;
        let of_claim = |line: &&str| line.contains(&own);
        let mut mine = metrics.lines().filter(of_claim);
        let reads =
            mine.any(|line| line.starts_with("s3_csi_node_mount_read_bytes_total") && !line.ends_with(" 0"));
        let gets = metrics
            .lines()
            .filter(of_claim)
            .any(|line| line.contains("operation=\"GetObject\",code=\"206\""));
        Seen::some((reads && gets).then_some(()), metrics)
    })
    .await;
    let top = |arguments: &[&str]| s3(&story, &[&["top", "--seconds=5"][..], arguments].concat());
    eventually("they are shown", LIMIT, || async {
        let said = top(&["-n", &namespace, "-o", "json"]);
        let shown: Value = serde_json::from_str(&said.text).unwrap_or_default();
        let mount = &shown["mounts"][0];
        let busy = mount["requestsPerSecond"].as_f64().is_some_and(|requests| requests > 0.0);
        let read = mount["readBytesPerSecond"].as_f64().is_some_and(|bytes| bytes > 0.0);
        let right = mount["claim"] == story.name && said.code == Some(0);
        Seen::some((busy && read && right).then_some(()), format!("{said:?}"))
    })
    .await;
    let said = top(&["-A"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.text.starts_with("NAMESPACE") && said.text.contains(&namespace), "{said:?}");
    story.here.delete("workload").await;
    story.leaves_nothing().await;
    eventually("they have ended with the mount", LIMIT, || async {
        let metrics = metrics_of_installed(&client).await;
        Seen::some((!metrics.contains(&own)).then_some(()), metrics)
    })
    .await;
}
