//! `kubectl s3` as people call it: kubectl finds the plugin, and the plugin finds what is wrong.

use std::fs;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use s3_csi_tests::plugin::s3;
use s3_csi_tests::{Seen, eventually, manifest};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use xtask::command::capture;
use xtask::s3::ALICE;

use crate::changed;
use crate::story::{LIMIT, Story};

const ENTER: &str = "ls /data && echo in; sleep 3600";

/// Waits until `kubectl s3 why` names this reason, and returns the whole answer.
async fn why(story: &Story, pod: &str, reason: &str) -> String {
    eventually(&format!("the reason of {pod} is {reason}"), LIMIT, || async {
        let said = s3(story, &["why", pod, "--namespace", &story.here.namespace]);
        let found = said.code == Some(1) && said.text.contains(&format!("Reason:  {reason} "));
        Seen::some(found.then(|| said.text.clone()), format!("{said:?}"))
    })
    .await
}

pub(crate) fn contains(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "`{word}` is not in:\n{text}");
    }
}

/// In the story's namespace.
fn kubectl(story: &Story, arguments: &[&str]) -> String {
    let mut command = story.here.cluster.kubectl().unwrap();
    capture(command.args(["--namespace", &story.here.namespace]).args(arguments)).unwrap()
}

/// A kubeconfig of a new service account of the story's namespace, which has no rights yet.
pub(crate) fn kubeconfig(story: &Story, account: &str) -> NamedTempFile {
    let namespace = story.here.namespace.as_str();
    kubectl(story, &["create", "serviceaccount", account]);
    let config: Value =
        serde_json::from_str(&kubectl(story, &["config", "view", "--raw", "--output=json"])).unwrap();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": config["clusters"][0]["cluster"]}],
        "users": [{"name": "it", "user": {"token": kubectl(story, &["create", "token", account]).trim()}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": namespace}}],
    });
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), config.to_string()).unwrap();
    file
}

/// Of an account that may view the story's namespace.
fn confined(story: &Story) -> NamedTempFile {
    let file = kubeconfig(story, "viewer");
    let account = format!("--serviceaccount={}:viewer", story.here.namespace);
    kubectl(story, &["create", "rolebinding", "viewer", "--clusterrole=view", &account]);
    file
}

#[tokio::test]
async fn a_secret_that_is_missing_is_the_reason_until_it_is_there() {
    let story = Story::begin("plugin-secret").await;
    let namespace = story.here.namespace.clone();
    story
        .volume("plugin-secret-own", |volume| {
            volume["spec"]["csi"]["nodePublishSecretRef"] = json!({"name": "keys", "namespace": namespace});
        })
        .await;
    story.here.run("workload", manifest::pod(&["plugin-secret-own"], ENTER)).await;
    let said = why(&story, "workload", "SecretMissing").await;
    let secret = format!("Secret {namespace}/keys with the keys of the volume does not exist");
    contains(
        &said,
        &["ok    claim", "STOP  keys", "-     mount", &secret, "Try:     kubectl describe secret"],
    );
    let secrets = Api::<Secret>::namespaced(story.here.client.clone(), &namespace);
    let keys = json!({"access_key_id": ALICE.access_key, "secret_access_key": ALICE.secret_key});
    let object = json!({"metadata": {"name": "keys"}, "stringData": keys});
    secrets.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    story.says("workload", "in").await;
    // The kubelet reports it later than the container starts.
    story.here.phase("workload", "Running").await;
    story.mountpoint_pods().await;
    let well = s3(&story, &["why", "pod/workload", "-n", &namespace]);
    assert_eq!(well.code, Some(0), "{well:?}");
    contains(&well.text, &["ok    Mountpoint Pod", "ok    mount", "Nothing is wrong with its volumes"]);
    let missing = s3(&story, &["why", "absent", "-n", &namespace]);
    assert_eq!(missing.code, Some(2), "{missing:?}");
    contains(&missing.errors, &["absent not found"]);
    story.here.delete("workload").await;
    story.leaves_nothing().await;
}

#[tokio::test]
async fn a_bucket_that_is_not_there_is_the_reason() {
    let story = Story::begin("plugin-bucket").await;
    story.server.delete_bucket(story.name).unwrap();
    story.here.run("workload", story.workload(ENTER)).await;
    let said = why(&story, "workload", "FailedMount").await;
    contains(
        &said,
        &["ok    Mountpoint Pod", "STOP  mount", "there is no bucket", "create bucket plugin-bucket"],
    );
    let said = s3(&story, &["why", "workload", "-n", &story.here.namespace, "-o", "json"]);
    let answer: Value = serde_json::from_str(&said.text).unwrap();
    assert_eq!(answer["cause"]["step"], "mount", "{answer}");
    // With rights in one namespace only, the plugin relies on the events.
    let confined = confined(&story);
    let said = s3(&story, &["why", "workload", "--kubeconfig", confined.path().to_str().unwrap()]);
    assert_eq!(said.code, Some(1), "{said:?}");
    contains(&said.text, &["?     volume", "STOP  mount", "there is no bucket"]);
    let said = s3(&story, &["doctor", "--kubeconfig", confined.path().to_str().unwrap()]);
    assert_eq!(said.code, Some(2), "{said:?}");
    contains(&said.text, &["unknown  attachments", "0 errors"]);
    story.mountpoint_pods().await;
    story.server.create_bucket(story.name).unwrap();
    story.says("workload", "in").await;
    story.here.delete("workload").await;
    story.leaves_nothing().await;
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_the_reason_and_the_doctor_knows() {
    let story = Story::alone("plugin-image").await;
    let values = ["mountpointPod.image.tag=absent,mountpointPod.image.pullPolicy=IfNotPresent"];
    let changed = changed::values(&story.here.cluster, &values);
    story.here.run("workload", story.workload(ENTER)).await;
    let said = why(&story, "workload", "MountpointPodImagePullFailed").await;
    contains(&said, &["ok    attachment", "STOP  Mountpoint Pod", "mounter:absent", "`mountpointPod.image`"]);
    story.mountpoint_pods().await;
    eventually("the doctor finds the attachment", LIMIT, || async {
        let said = s3(&story, &["doctor", "--no-exec"]);
        let found = said.code == Some(1) && said.text.contains("MountpointPodImagePullFailed");
        Seen::some((found && said.text.contains("ERROR    attachments")).then_some(()), format!("{said:?}"))
    })
    .await;
    story.here.delete("workload").await;
    changed.undo();
    story.leaves_nothing().await;
}

#[tokio::test]
async fn mounts_of_two_workloads_are_shown() {
    let story = Story::begin("plugin-mounts").await;
    for pod in ["one", "two"] {
        story.here.run(pod, story.workload(ENTER)).await;
    }
    for pod in ["one", "two"] {
        story.says(pod, "in").await;
    }
    let served_by = story.mountpoint_pods().await;
    assert_eq!(served_by.len(), 1);
    // The kubelet reports a container's start a moment after it.
    eventually("both are shown as mounted", LIMIT, || async {
        let said = s3(&story, &["mounts", "-n", &story.here.namespace]);
        let shown = said.text.lines().filter(|line| {
            line.contains(&served_by[0]) && line.contains("Mounted") && line.contains("plugin-mounts")
        });
        Seen::some((shown.count() == 2).then_some(()), format!("{said:?}"))
    })
    .await;
    let said = s3(&story, &["mounts", "-A", "-o", "json"]);
    let all: Vec<Value> = serde_json::from_str(&said.text).unwrap();
    let mine: Vec<&Value> =
        all.iter().filter(|mount| mount["namespace"] == story.here.namespace.as_str()).collect();
    assert_eq!(mine.len(), 2, "{all:?}");
    assert_eq!((&mine[0]["workload"], &mine[1]["workload"]), (&json!("one"), &json!("two")));
    assert_eq!((&mine[0]["bucket"], &mine[0]["lastError"]), (&json!("plugin-mounts"), &json!("")));
    for pod in ["one", "two"] {
        story.here.delete(pod).await;
    }
    story.leaves_nothing().await;
}

#[tokio::test]
async fn a_support_bundle_has_everything_but_secrets() {
    const PLANTED: &str = "planted-secret-of-the-bundle";
    let story = Story::begin("plugin-bundle").await;
    let secrets = Api::<Secret>::namespaced(story.here.client.clone(), &story.here.namespace);
    let keys =
        json!({"access_key_id": ALICE.access_key, "secret_access_key": ALICE.secret_key, "note": PLANTED});
    let object = json!({"metadata": {"name": "keys"}, "stringData": keys});
    secrets.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    let namespace = story.here.namespace.clone();
    story
        .volume("plugin-bundle-own", |volume| {
            // Where people leave such things.
            let note = format!("key {PLANTED} of {}", ALICE.secret_key);
            volume["metadata"]["annotations"] = json!({"example.com/note": note});
            volume["spec"]["csi"]["nodePublishSecretRef"] = json!({"name": "keys", "namespace": namespace});
        })
        .await;
    let mut workload = manifest::pod(&["plugin-bundle-own"], ENTER);
    workload["containers"][0]["env"] = json!([{"name": "PLAIN", "value": "a-variable-of-the-workload"}]);
    story.here.run("workload", workload).await;
    story.says("workload", "in").await;
    let served_by = story.mountpoint_pods().await.remove(0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bundle.tar");
    let said = s3(&story, &["support-bundle", "--file", file.to_str().unwrap()]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let again = s3(&story, &["support-bundle", "--file", file.to_str().unwrap()]);
    assert_eq!(again.code, Some(2), "{again:?}");
    contains(&again.errors, &["cannot write", "exists"]);
    // Not compressed: what is in it can be searched for as it is.
    let bundle = fs::read(&file).unwrap();
    let has = |words: &str| bundle.windows(words.len()).any(|window| window == words.as_bytes());
    for there in [
        "plugin-bundle-own",
        "example.com/note",
        "logs/mount-s3/",
        &served_by,
        "fuse mountpoint-s3",
        "doctor.json",
    ] {
        assert!(has(there), "{there} is not in the bundle");
    }
    for secret in [PLANTED, ALICE.secret_key, "a-variable-of-the-workload", "PRIVATE KEY"] {
        assert!(!has(secret), "{secret} is in the bundle");
    }
    story.here.delete("workload").await;
    story.leaves_nothing().await;
}
