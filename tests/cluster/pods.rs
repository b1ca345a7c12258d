use s3_csi_tests::Inside;
use serde_json::json;
use xtask::image::BUSYBOX;

#[tokio::test]
async fn a_pod_runs_and_its_log_can_be_read() {
    let here = Inside::join("pods").await;
    let command = ["sh", "-c", "echo the pod speaks"];
    let container = json!({"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": command});
    here.run("speaker", json!({"restartPolicy": "Never", "containers": [container]})).await;
    here.phase("speaker", "Succeeded").await;
    assert_eq!(here.log("speaker").await, "the pod speaks\n");
    here.delete("speaker").await;
}
