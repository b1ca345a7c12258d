//! Changed keys reach existing mounts.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use s3_csi_tests::manifest;
use s3_csi_tests::processes::processes;
use serde_json::{Value, json};
use xtask::cluster::Cluster;
use xtask::command::run;
use xtask::driver;
use xtask::s3::{ALICE, Account, accounts};

use crate::changed::Changed;
use crate::story::Story;

/// Every write needs the keys, so that the same container sees writes fail and work again.
const LIST: &str = "i=0; while true; do i=$((i+1)); if echo $i > /data/beat-$HOSTNAME-$i 2>/dev/null; then echo good; else echo bad; fi; sleep 1; done";

fn keys(account: Account) -> Value {
    json!({"access_key_id": account.access_key, "secret_access_key": account.secret_key})
}

/// Changes the keys of the volumes of a story.
async fn change(story: &Story, account: Account) {
    let secrets = Api::<Secret>::namespaced(story.here.client.clone(), &story.here.namespace);
    let patch = Patch::Merge(json!({"stringData": keys(account)}));
    secrets.patch("keys", &PatchParams::default(), &patch).await.unwrap();
}

/// The driver with the keys of this account, instead of Alice's.
fn with_keys_of(cluster: &Cluster, account: Account) -> Changed {
    let set = |cluster: &Cluster, account| {
        let patch = json!({"stringData": keys(account)}).to_string();
        let secret = ["patch", "secret", driver::KEYS, "--namespace", driver::NAMESPACE];
        run(cluster.kubectl()?.args(secret).args(["--type=merge", "--patch", &patch]))
    };
    let own = cluster.clone();
    Changed::make("the driver's Secret", || set(cluster, account), move || set(&own, ALICE))
}

#[tokio::test]
async fn a_volumes_own_secret() {
    const OLD: Account =
        Account { name: "old", access_key: "AKIAOLD", secret_key: "old-secret-of-the-volume" };
    const NEW: Account =
        Account { name: "new", access_key: "AKIANEW", secret_key: "new-secret-of-the-volume" };
    let story = Story::begin("own-secret").await;
    let programs = story.here.cluster.programs().unwrap();
    for account in [OLD, NEW] {
        accounts::create(&programs, account.access_key, account.secret_key).unwrap();
    }
    accounts::give_bucket(&programs, story.name, OLD.access_key).unwrap();
    let secrets = Api::<Secret>::namespaced(story.here.client.clone(), &story.here.namespace);
    let object = json!({"metadata": {"name": "keys"}, "stringData": keys(OLD)});
    secrets.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    let claim = "own-secret-volume";
    story
        .volume(claim, |volume| {
            let csi = &mut volume["spec"]["csi"];
            csi["volumeAttributes"]["authenticationSource"] = json!("secret");
            csi["nodePublishSecretRef"] = json!({"name": "keys", "namespace": story.here.namespace});
        })
        .await;
    story.here.run("workload", manifest::pod(&[claim], LIST)).await;
    story.says("workload", "good").await;
    let served_by = story.mountpoint_pods().await;
    no_secret_is_seen(&story, OLD);
    accounts::give_bucket(&programs, story.name, NEW.access_key).unwrap();
    story.says("workload", "bad").await;
    change(&story, NEW).await;
    story.says_again("workload", "good").await;
    assert_eq!(story.container("workload").await.restart_count, 0);
    assert_eq!(story.mountpoint_pods().await, served_by, "the same mount");
    story.here.delete("workload").await;
    accounts::give_bucket(&programs, story.name, ALICE.access_key).unwrap();
    story.leaves_nothing().await;
}

#[tokio::test]
async fn the_drivers_own_keys() {
    const OTHER: Account =
        Account { name: "other", access_key: "AKIAOTHER", secret_key: "other-secret-of-the-driver" };
    let story = Story::alone("driver-keys").await;
    let programs = story.here.cluster.programs().unwrap();
    accounts::create(&programs, OTHER.access_key, OTHER.secret_key).unwrap();
    story.here.run("workload", story.workload(LIST)).await;
    story.says("workload", "good").await;
    story.mountpoint_pods().await;
    no_secret_is_seen(&story, ALICE);
    accounts::give_bucket(&programs, story.name, OTHER.access_key).unwrap();
    story.says("workload", "bad").await;
    let changed = with_keys_of(&story.here.cluster, OTHER);
    story.says_again("workload", "good").await;
    assert_eq!(story.container("workload").await.restart_count, 0);
    changed.undo();
    accounts::give_bucket(&programs, story.name, ALICE.access_key).unwrap();
    story.says_again("workload", "bad").await;
    story.says_again("workload", "good").await;
    story.here.delete("workload").await;
    story.leaves_nothing().await;
}

/// The kubelet sends the same for an empty Secret as for no Secret, and the driver's keys can access every bucket.
#[tokio::test]
async fn an_emptied_secret_never_opens_the_drivers_keys() {
    const TENANT: Account =
        Account { name: "tenant", access_key: "AKIATENANT", secret_key: "secret-of-the-tenant" };
    const NAMES_THE_ENTRY: &str = "the Secret of nodePublishSecretRef has no key `access_key_id`";
    let story = Story::begin("emptied").await;
    let programs = story.here.cluster.programs().unwrap();
    accounts::create(&programs, TENANT.access_key, TENANT.secret_key).unwrap();
    let secrets = Api::<Secret>::namespaced(story.here.client.clone(), &story.here.namespace);
    let object = json!({"metadata": {"name": "keys"}});
    secrets.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    // Also without the attribute: `nodePublishSecretRef` alone means the keys of that Secret.
    let volumes = [("emptied-says-so", json!("secret")), ("emptied-names-it", Value::Null)];
    for (name, source) in &volumes {
        story
            .volume(name, |volume| {
                let csi = &mut volume["spec"]["csi"];
                if !source.is_null() {
                    csi["volumeAttributes"]["authenticationSource"] = source.clone();
                }
                csi["nodePublishSecretRef"] = json!({"name": "keys", "namespace": story.here.namespace});
            })
            .await;
        story.here.run(name, manifest::pod(&[*name], LIST)).await;
    }
    for (name, _) in &volumes {
        story.has_event_after(Timestamp::UNIX_EPOCH, name, NAMES_THE_ENTRY).await;
        assert!(story.container(name).await.container_id.is_none(), "{name} has started");
    }
    accounts::give_bucket(&programs, story.name, TENANT.access_key).unwrap();
    change(&story, TENANT).await;
    for (name, _) in &volumes {
        story.says(name, "good").await;
    }

    // An existing mount keeps the keys it has.
    let patch = Patch::Merge(json!({"data": null}));
    secrets.patch("keys", &PatchParams::default(), &patch).await.unwrap();
    let emptied = Timestamp::now();
    for (name, _) in &volumes {
        story.has_event_after(emptied, name, NAMES_THE_ENTRY).await;
        story.says_again(name, "good").await;
        assert!(!story.log(name).await.contains("bad"), "{name}");
    }
    for pod in story.mountpoint_pods().await {
        let keys = story.credentials(&pod);
        assert!(keys.contains(TENANT.access_key) && !keys.contains(ALICE.access_key), "{pod}");
    }
    for (name, _) in &volumes {
        story.here.delete(name).await;
    }
    accounts::give_bucket(&programs, story.name, ALICE.access_key).unwrap();
    story.leaves_nothing().await;
}

/// No process has a key in its arguments, and no pod in its log.
fn no_secret_is_seen(story: &Story, account: Account) {
    for process in processes("", None) {
        let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&line).contains(account.secret_key), "process {process}");
    }
    let logs = std::process::Command::new("grep")
        .args(["--recursive", "--files-with-matches", "--fixed-strings", account.secret_key, "/var/log/pods"])
        .output()
        .unwrap();
    // The status also says that a folder was removed meanwhile: other stories end their pods.
    assert!(logs.stdout.is_empty(), "{}: in {}", story.name, String::from_utf8_lossy(&logs.stdout));
}
