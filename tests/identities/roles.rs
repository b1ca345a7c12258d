//! Workloads with an identity of their own (`authenticationSource: pod`), at a server that trusts the API server's tokens.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use contract::names::comm_on_node;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::changed::Changed;
use s3_csi_tests::permissions::{READING, Role};
use s3_csi_tests::secrecy::no_secret_is_seen;
use s3_csi_tests::web_identity::WebIdentity;
use s3_csi_tests::{Seen, changed, eventually, manifest, token};
use serde_json::{Value, json};
use xtask::cluster::Part;
use xtask::s3::ALICE;

use crate::story::{LIMIT, Story};
use s3_csi_tests::examples::{self, BUCKET};

/// Each open needs a request.
pub(crate) const READ: &str =
    "while true; do if [ \"$(cat /data/hello)\" = hello ]; then echo good; else echo bad; fi; sleep 1; done";
/// Says first whether it may write.
pub(crate) const WRITE: &str = "if echo x > /data/new-$HOSTNAME; then echo written; else echo refused; fi; ";
/// So that the search for secrets covers all that the programs would ever log.
pub(crate) const EVERY_LOG: &str = "node.logLevel=trace,controller.logLevel=trace";
const ANNOTATION: &str = "eks.amazonaws.com/role-arn";

pub(crate) async fn account(story: &Story, name: &str, role: Option<&str>) {
    let accounts = Api::<ServiceAccount>::namespaced(story.here.client.clone(), &story.here.namespace);
    let annotations: Value = role.map(|role| json!({ANNOTATION: role})).unwrap_or_default();
    let object = json!({"metadata": {"name": name, "annotations": annotations}});
    accounts.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

pub(crate) async fn change_role(story: &Story, account: &str, role: &str) {
    let accounts = Api::<ServiceAccount>::namespaced(story.here.client.clone(), &story.here.namespace);
    let patch = Patch::Merge(json!({"metadata": {"annotations": {ANNOTATION: role}}}));
    accounts.patch(account, &PatchParams::default(), &patch).await.unwrap();
}

pub(crate) fn workload(claim: &str, account: &str, script: &str) -> Value {
    let mut pod = manifest::pod(&[claim], script);
    pod["serviceAccountName"] = json!(account);
    pod
}

/// A volume of the workload's own identity, and its claim.
pub(crate) async fn volume(story: &Story, name: &str, bucket: &str) {
    story
        .volume(name, |volume| {
            let attributes = json!({"bucketName": bucket, "authenticationSource": "pod"});
            volume["spec"]["csi"]["volumeAttributes"] = attributes;
        })
        .await;
}

#[tokio::test]
async fn a_role_opens_its_own_bucket_and_its_keys_are_renewed() {
    const CLAIM: &str = "identities-a";
    let story = Story::alone("identities").await;
    let server = WebIdentity::start(&story.here.cluster);
    let changed = changed::values(&story.here.cluster, &[&WebIdentity::values(), EVERY_LOG]);
    let client = WebIdentity::client();
    for bucket in ["bucket-a", "bucket-b", BUCKET] {
        client.create_bucket(bucket).unwrap();
        client.put(bucket, "hello", b"hello").unwrap();
    }
    let namespace = story.here.namespace.clone();
    let role_a = server.create(&Role::of("role-a", &namespace, "account-a", "bucket-a"));
    let role_b = server.create(&Role::of("role-b", &namespace, "account-b", "bucket-b"));
    let reader = Role::of("reader", &namespace, "account-a", "bucket-a");
    let reader = server.create(&Role { permissions: vec![(READING, "bucket-a")], ..reader });
    let other_audience = Role::of("other-audience", &namespace, "other-audience", "bucket-a");
    let other_audience = server.create(&Role { audience: "somebody.else", ..other_audience });
    for (name, role) in [
        ("account-a", &role_a),
        ("account-b", &role_b),
        ("impostor", &role_a),
        ("other-audience", &other_audience),
    ] {
        account(&story, name, Some(role)).await;
    }
    server.create(&Role::of("my-bucket-role", "default", "my-bucket-role", BUCKET));
    examples::works(&story, "identity-role.yaml").await;
    volume(&story, CLAIM, "bucket-a").await;

    story.here.run("first", workload(CLAIM, "account-a", &format!("{WRITE}{READ}"))).await;
    story.says("first", "written").await;
    let served_by = story.mountpoint_pods().await;
    assert_eq!(served_by.len(), 1);
    token_is_for(&story, &served_by[0]).await;
    story.here.run("second", workload(CLAIM, "account-a", READ)).await;
    story.says("second", "good").await;
    assert_eq!(story.mountpoint_pods().await, served_by, "pods of one account share");

    let no_role = format!("service account `default` in namespace `{namespace}` has no role");
    for (name, account, words) in [
        (
            "other",
            "account-b",
            vec!["denies access to bucket `bucket-a`".to_owned(), format!("allow role {role_b} to list it")],
        ),
        ("impostor", "impostor", vec![format!("refuses role {role_a} to this service account")]),
        (
            "audience",
            "other-audience",
            vec![format!("refuses role {other_audience} to this service account")],
        ),
        ("no-role", "default", vec![no_role, format!("`{ANNOTATION}`")]),
    ] {
        let pod = story.here.run(name, workload(CLAIM, account, READ)).await;
        for words in words {
            story.has_event_after(Timestamp::UNIX_EPOCH, name, &words).await;
        }
        assert!(story.container(name).await.container_id.is_none(), "{name} has started");
        assert_ne!(server_of(&story, &pod).await, served_by[0], "each account has its own");
        // The kubelet's backoff is one for all pods of a volume: this one would delay the next.
        story.here.delete(name).await;
    }

    // Deleted after the pod was created, before it gets a node.
    account(&story, "deleted", Some(&role_a)).await;
    let mut gated = workload(CLAIM, "deleted", READ);
    gated["schedulingGates"] = json!([{"name": "example.com/wait"}]);
    story.here.run("orphan", gated).await;
    let accounts = Api::<ServiceAccount>::namespaced(story.here.client.clone(), &namespace);
    accounts.delete("deleted", &DeleteParams::default()).await.unwrap();
    let open = Patch::Merge(json!({"spec": {"schedulingGates": null}}));
    story.here.pods().patch("orphan", &PatchParams::default(), &open).await.unwrap();
    story.has_event(&format!("service account `deleted` in namespace `{namespace}`")).await;

    // New workloads get the new role, the others keep the old one.
    change_role(&story, "account-a", &reader).await;
    story.here.delete("orphan").await;
    let third = story.here.run("third", workload(CLAIM, "account-a", &format!("{WRITE}{READ}"))).await;
    story.says("third", "refused").await;
    story.says("third", "good").await;
    assert_ne!(server_of(&story, &third).await, served_by[0], "each role has its own");
    let before = server.exchanges(&role_a);
    renewed(&server, &role_a, before + 3).await;

    the_token_expires_while_the_kubelet_is_away(&story, &server, &role_a, &served_by[0]).await;
    for pod in ["first", "second", "third"] {
        story.says_again(pod, "good").await;
        assert!(!story.log(pod).await.contains("bad"), "{pod}");
        assert_eq!(story.container(pod).await.restart_count, 0);
    }
    sts_is_away_for_a_while(&story, &server, CLAIM).await;
    let secrets = server.secrets();
    assert!(secrets.len() >= 9, "three of each exchange");
    no_secret_is_seen(&story.here.cluster, &[secrets, vec![ALICE.secret_key.to_owned()]].concat());

    for pod in ["first", "second", "third", "early"] {
        story.here.delete(pod).await;
    }
    changed.undo();
    story.leaves_nothing().await;
}

/// Expires the token of a mount while the kubelet is away, which would renew it, and waits for an Event with these words.
pub(crate) async fn expire_token(story: &Story, mountpoint_pod: &str, words: &str) {
    let cluster = story.here.cluster.clone();
    let start = move || cluster.start(Part::Kubelet);
    let stopped = Changed::make("the kubelet", || story.here.cluster.stop(Part::Kubelet), start);
    let token = credentials(story, mountpoint_pod).await.join(format!("{mountpoint_pod}.token"));
    fs::write(&token, token::expired(&story.here.cluster, &fs::read_to_string(&token).unwrap())).unwrap();
    story.has_event(words).await;
    stopped.undo();
}

/// Once the kubelet is back, it requests new tokens, and the running mounts use them.
async fn the_token_expires_while_the_kubelet_is_away(
    story: &Story,
    server: &WebIdentity,
    role: &str,
    mountpoint_pod: &str,
) {
    let (tokens, before) = (server.tokens(role), server.exchanges(role));
    let sts = WebIdentity::sts_endpoint();
    let refused = format!("{sts} refuses role {role} to this service account (ExpiredToken");
    let words = format!("the temporary keys of role {role} have expired: {refused}");
    expire_token(story, mountpoint_pod, &words).await;
    story.has_event("has valid credentials again").await;
    eventually("a new token is exchanged", LIMIT, || async {
        let now = server.tokens(role);
        Seen::some((now > tokens).then_some(()), format!("{now} tokens"))
    })
    .await;
    renewed(server, role, before + 3).await;
}

async fn sts_is_away_for_a_while(story: &Story, server: &WebIdentity, claim: &str) {
    const EARLY: &str = "early";
    let role = server.create(&Role::of(EARLY, &story.here.namespace, EARLY, "bucket-a"));
    account(story, EARLY, Some(&role)).await;
    server.sts_stays_away(true);
    story.here.run(EARLY, workload(claim, EARLY, READ)).await;
    let unreachable = format!("{} cannot be reached to get temporary keys", WebIdentity::sts_endpoint());
    story.has_event_after(Timestamp::UNIX_EPOCH, EARLY, &unreachable).await;
    server.sts_stays_away(false);
    story.says(EARLY, "good").await;
}

/// The Mountpoint Pod that the controller assigned to the workload.
async fn server_of(story: &Story, workload: &Pod) -> String {
    let uid = workload.uid().unwrap();
    // Also remembers it for the check that nothing is left.
    story.mountpoint_pods().await;
    let attachments = story.attachments().await;
    let assigned = attachments.iter().find_map(|attachment| attachment.spec.mountpoint_pod_of(&uid));
    assigned.expect("a workload whose mount fails is attached").to_owned()
}

async fn renewed(server: &WebIdentity, role: &str, times: usize) {
    eventually(&format!("{role} has got keys {times} times"), LIMIT, || async {
        let renewed = server.exchanges(role);
        Seen::some((renewed >= times).then_some(()), format!("{renewed} times"))
    })
    .await;
}

/// The folder on the node.
async fn credentials(story: &Story, mountpoint_pod: &str) -> PathBuf {
    let pod = story.mountpoint_pods_api().get(mountpoint_pod).await.unwrap();
    comm_on_node(Path::new("/var/lib/kubelet"), &pod.uid().unwrap()).join("credentials")
}

/// Only this Mountpoint Pod and root can read the token.
async fn token_is_for(story: &Story, mountpoint_pod: &str) {
    let pod = story.mountpoint_pods_api().get(mountpoint_pod).await.unwrap();
    let folder = credentials(story, mountpoint_pod).await;
    let names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [format!("{mountpoint_pod}.token").as_str()], "no draft, no keys");
    let group = pod.spec.unwrap().security_context.unwrap().fs_group.unwrap();
    for (path, mode) in [(folder.join(&names[0]), 0o640), (folder, 0o750)] {
        let file = fs::metadata(&path).unwrap();
        assert_eq!(
            (file.mode() & 0o777, file.uid(), i64::from(file.gid())),
            (mode, 0, group),
            "{}",
            path.display()
        );
    }
}
