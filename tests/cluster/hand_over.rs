//! The idea the whole driver rests on: who may mount and who serves are two different pods.

use std::fs;
use std::path::Path;
use std::time::Duration;

use s3_csi_tests::{Inside, Seen, eventually, within};
use serde_json::{Value, json};
use xtask::image::TESTPOD;
use xtask::served_file::NAME;

const FOLDER: &str = "/var/lib/kubelet/plugins/hand-over-test";
const CONTENT: &str = "served without any privilege";

fn host_folder(path: &str) -> Value {
    json!([{"name": "shared", "hostPath": {"path": path, "type": "Directory"}}])
}

#[tokio::test]
async fn a_pod_without_privileges_serves_what_a_privileged_pod_has_mounted() {
    let here = Inside::join("hand-over").await;
    fs::create_dir_all(format!("{FOLDER}/mnt")).unwrap();
    // The serving pod's user makes its socket here.
    fs::create_dir_all(format!("{FOLDER}/comm")).unwrap();
    rustix::fs::chmod(format!("{FOLDER}/comm"), rustix::fs::Mode::from_raw_mode(0o777)).unwrap();

    here.run(
        "server",
        json!({
            "restartPolicy": "Never",
            // Only this: with the mount in view it would hold a copy of it, and its own mount would never go away.
            "volumes": host_folder(&format!("{FOLDER}/comm")),
            "containers": [{
                "name": "main", "image": TESTPOD, "imagePullPolicy": "Never",
                "args": ["serve", "/comm/sock", CONTENT],
                "volumeMounts": [{"name": "shared", "mountPath": "/comm"}],
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": 1000, "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
                },
            }],
        }),
    )
    .await;
    here.run(
        "mounter",
        json!({
            "restartPolicy": "Never",
            "volumes": host_folder(FOLDER),
            "containers": [{
                "name": "main", "image": TESTPOD, "imagePullPolicy": "Never",
                "args": ["offer", format!("{FOLDER}/mnt"), format!("{FOLDER}/comm/sock")],
                "volumeMounts": [{"name": "shared", "mountPath": FOLDER, "mountPropagation": "Bidirectional"}],
                "securityContext": {"privileged": true, "runAsUser": 0},
            }],
        }),
    )
    .await;
    here.phase("mounter", "Succeeded").await;
    eventually("the server has the descriptor", Duration::from_secs(30), || async {
        let log = here.log("server").await;
        Seen::some(log.contains("serving as user 1000").then_some(()), log)
    })
    .await;

    // The mount reached the node from one pod and is answered by another; the first has ended.
    let file = Path::new(FOLDER).join("mnt").join(NAME);
    let read = within("reading the served file", Duration::from_secs(10), move || fs::read_to_string(file));
    assert_eq!(read.unwrap(), CONTENT);

    rustix::mount::unmount(format!("{FOLDER}/mnt"), rustix::mount::UnmountFlags::empty()).unwrap();
    // The server ends by itself when its mount is gone.
    here.phase("server", "Succeeded").await;
    here.delete("server").await;
    here.delete("mounter").await;
    fs::remove_dir_all(FOLDER).unwrap();
}
