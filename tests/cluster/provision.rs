//! Buckets for claims, from the claim to the pod.

use std::path::Path;

use contract::names::{DRIVER, comm_on_node};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::{Seen, eventually, manifest};
use serde_json::json;
use xtask::cluster::Cluster;
use xtask::command::run;
use xtask::driver;
use xtask::s3::{ALICE, Account, Client, ENDPOINT, accounts};

use crate::changed::Changed;
use crate::story::{LIMIT, Story};

fn kubectl(story: &Story, arguments: &[&str]) {
    let mut kubectl = story.here.cluster.kubectl().unwrap();
    run(kubectl.args(["--namespace", &story.here.namespace]).args(arguments)).unwrap();
}

#[tokio::test]
async fn replicas_have_buckets_of_their_own_which_go_with_their_claims() {
    let story = Story::begin("replicas").await;
    let file = concat!("--filename=", env!("CARGO_MANIFEST_DIR"), "/../examples/dynamic-statefulset.yaml");
    kubectl(&story, &["apply", file]);
    let claims = Api::<PersistentVolumeClaim>::namespaced(story.here.client.clone(), &story.here.namespace);
    let mut buckets = Vec::new();
    for number in 0..3 {
        let pod = format!("writers-{number}");
        eventually(&format!("{pod} exists"), LIMIT, || async {
            Seen::some(story.here.pods().get_opt(&pod).await.unwrap(), "no pod")
        })
        .await;
        story.here.phase(&pod, "Running").await;
        let claim = claims.get(&format!("data-{pod}")).await.unwrap();
        let volume = claim.spec.unwrap().volume_name.unwrap();
        story.follow(&volume);
        buckets.push(bucket_of(&story, &volume).await);
    }
    kubectl(&story, &["exec", "writers-0", "--", "sh", "-c", "echo precious > /data/file"]);
    assert_eq!(story.server.get(&buckets[0], "file").unwrap(), b"precious\n");
    for bucket in &buckets[1..] {
        assert!(story.server.objects(bucket, "").unwrap().is_empty(), "each has its own");
    }

    kubectl(&story, &["delete", file]);
    eventually("the claims and their empty buckets are deleted", LIMIT, || async {
        let left = claims.list(&ListParams::default()).await.unwrap().items.len();
        let there = story.server.buckets().unwrap();
        let there: Vec<&String> = buckets.iter().filter(|bucket| there.contains(bucket)).collect();
        // Only the story's own claim stays.
        Seen::some((left == 1 && there == [&buckets[0]]).then_some(()), format!("{left} claims, {there:?}"))
    })
    .await;
    eventually("an Event names the kept bucket", LIMIT, || async {
        let events = Api::<k8s_openapi::api::core::v1::Event>::all(story.here.client.clone());
        let all = events.list(&ListParams::default()).await.unwrap();
        let found = all.iter().any(|event| {
            event.reason.as_deref() == Some("BucketKept")
                && event.message.as_ref().is_some_and(|message| message.contains(&buckets[0]))
        });
        Seen::some(found.then_some(()), "no such Event")
    })
    .await;
    assert_eq!(story.server.get(&buckets[0], "file").unwrap(), b"precious\n");
    story.server.delete(&buckets[0], "file").unwrap();
    story.server.delete_bucket(&buckets[0]).unwrap();
    story.leaves_nothing().await;
}

async fn bucket_of(story: &Story, volume: &str) -> String {
    let volumes = Api::<k8s_openapi::api::core::v1::PersistentVolume>::all(story.here.client.clone());
    volumes.get(volume).await.unwrap().spec.unwrap().csi.unwrap().volume_handle
}

/// The driver with a second Secret, which makes buckets. The story's class goes with it.
fn second_secret(cluster: &Cluster, name: &'static str, account: Account) -> Changed {
    let kubectl = |cluster: &Cluster, arguments: &[&str]| {
        run(cluster.kubectl()?.args(["--namespace", driver::NAMESPACE]).args(arguments))
    };
    let own = cluster.clone();
    let create = || {
        let id = format!("--from-literal=access_key_id={}", account.access_key);
        let key = format!("--from-literal=secret_access_key={}", account.secret_key);
        kubectl(cluster, &["create", "secret", "generic", name, &id, &key])?;
        driver::install(cluster, &[&format!("provisioning.s3CredentialSecret.name={name}")])
    };
    let remove = move || {
        driver::install(&own, &[])?;
        kubectl(
            &own,
            &["delete", &format!("secret/{name}"), &format!("storageclass/{name}"), "--ignore-not-found"],
        )
    };
    Changed::make("the driver", create, remove)
}

#[tokio::test]
async fn buckets_are_made_with_the_second_secret_and_mounted_with_the_first() {
    const MAKER: Account =
        Account { name: "maker", access_key: "AKIAMAKER", secret_key: "maker-secret-of-the-test-server" };
    let story = Story::alone("two-secrets").await;
    let (client, name) = (story.here.client.clone(), story.name);
    let programs = story.here.cluster.programs().unwrap();
    accounts::create(&programs, MAKER.access_key, MAKER.secret_key).unwrap();
    let changed = second_secret(&story.here.cluster, name, MAKER);
    let post = PostParams::default();
    let class = json!({"metadata": {"name": name}, "provisioner": DRIVER});
    let classes = Api::<StorageClass>::all(client.clone());
    classes.create(&post, &serde_json::from_value(class).unwrap()).await.unwrap();
    let claim = json!({"metadata": {"name": "made"}, "spec": {
        "accessModes": ["ReadWriteMany"], "storageClassName": name, "resources": {"requests": {"storage": "1Gi"}},
    }});
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), &story.here.namespace);
    claims.create(&post, &serde_json::from_value(claim).unwrap()).await.unwrap();
    let volume = eventually("the claim is bound", LIMIT, || async {
        let spec = claims.get("made").await.unwrap().spec.unwrap();
        Seen::some(spec.volume_name, "no volume yet")
    })
    .await;
    story.follow(&volume);
    let bucket = bucket_of(&story, &volume).await;
    let maker = Client::new(ENDPOINT, MAKER).unwrap();
    assert!(maker.buckets().unwrap().contains(&bucket), "made with the second Secret");
    assert!(!story.server.buckets().unwrap().contains(&bucket), "and not with the first");

    // The server has no bucket policies, only owners: from now on only the first account can read the bucket.
    accounts::give_bucket(&programs, &bucket, ALICE.access_key).unwrap();
    story
        .here
        .run("writer", manifest::pod(&["made"], "echo mine > /data/file; echo written; sleep 3600"))
        .await;
    story.says("writer", "written").await;
    assert_eq!(story.server.get(&bucket, "file").unwrap(), b"mine\n");
    let pods = story.mountpoint_pods_api().list(&ListParams::default()).await.unwrap();
    let pod = pods.iter().find(|pod| pod.annotations().values().any(|value| *value == volume)).unwrap();
    let keys = comm_on_node(Path::new("/var/lib/kubelet"), &pod.uid().unwrap()).join("credentials");
    let keys = std::fs::read_to_string(keys.join(pod.name_any())).unwrap();
    assert!(keys.contains(ALICE.access_key) && !keys.contains(MAKER.access_key));

    story.here.delete("writer").await;
    story.server.delete(&bucket, "file").unwrap();
    accounts::give_bucket(&programs, &bucket, MAKER.access_key).unwrap();
    claims.delete("made", &DeleteParams::default()).await.unwrap();
    eventually("the bucket is deleted with its claim", LIMIT, || async {
        let left = maker.buckets().unwrap();
        Seen::some((!left.contains(&bucket)).then_some(()), format!("{left:?}"))
    })
    .await;
    changed.undo();
    story.leaves_nothing().await;
}
