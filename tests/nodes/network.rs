//! The test cluster itself: pods of different nodes reach each other, and reach DNS and the S3 server from every node.

use s3_csi_tests::story::{LIMIT, Story};
use s3_csi_tests::{Seen, eventually, manifest};
use serde_json::json;

use crate::place::others;

#[tokio::test]
async fn pods_of_different_nodes_reach_each_other_and_the_s3_server() {
    let story = Story::begin("reach").await;
    let [here, there] = others(&story);
    let on = |node: xtask::cluster::Node, script: &str| {
        let mut spec = manifest::pod(&[], script);
        spec["nodeSelector"] = json!({"kubernetes.io/hostname": node.name()});
        spec
    };
    story.here.run("listener", on(there, "while true; do echo heard | nc -l -p 9000; done")).await;
    let address = eventually("the listener has an address", LIMIT, || async {
        let status = story.here.pods().get("listener").await.unwrap().status.unwrap_or_default();
        let runs = status.phase.as_deref() == Some("Running");
        Seen::some(status.pod_ip.clone().filter(|_| runs), format!("{status:?}"))
    })
    .await;
    // The server responds with 403, because the request is not signed.
    let script = format!(
        "until nc -w 5 {address} 9000 < /dev/null; do sleep 0.2; done; \
         wget -O - http://s3.test/ 2>&1; sleep 3600"
    );
    story.here.run("caller", on(here, &script)).await;
    story.says("caller", "heard").await;
    story.says("caller", "403 Forbidden").await;
    for pod in ["caller", "listener"] {
        story.here.delete(pod).await;
    }
    story.leaves_nothing().await;
}
