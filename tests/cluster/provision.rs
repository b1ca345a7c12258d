//! Buckets for claims, all the way to pods.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use kube::api::ListParams;
use s3_csi_tests::{Seen, eventually};
use xtask::command::run;

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
        eventually(&format!("{pod} is there"), LIMIT, || async {
            Seen::some(story.here.pods().get_opt(&pod).await.unwrap(), "no pod")
        })
        .await;
        story.here.phase(&pod, "Running").await;
        let claim = claims.get(&format!("data-{pod}")).await.unwrap();
        let volume = claim.spec.unwrap().volume_name.unwrap();
        buckets.push(bucket_of(&story, &volume).await);
    }
    kubectl(&story, &["exec", "writers-0", "--", "sh", "-c", "echo precious > /data/file"]);
    assert_eq!(story.server.get(&buckets[0], "file").unwrap(), b"precious\n");
    for bucket in &buckets[1..] {
        assert!(story.server.objects(bucket, "").unwrap().is_empty(), "each has its own");
    }

    kubectl(&story, &["delete", file]);
    eventually("the claims are gone, and with them the empty buckets", LIMIT, || async {
        let left = claims.list(&ListParams::default()).await.unwrap().items.len();
        let there = story.server.buckets().unwrap();
        let there: Vec<&String> = buckets.iter().filter(|bucket| there.contains(bucket)).collect();
        // The story's own claim is the one that stays.
        Seen::some((left == 1 && there == [&buckets[0]]).then_some(()), format!("{left} claims, {there:?}"))
    })
    .await;
    eventually("its owner is told", LIMIT, || async {
        let events = Api::<k8s_openapi::api::core::v1::Event>::all(story.here.client.clone());
        let all = events.list(&ListParams::default()).await.unwrap();
        let told = all.iter().any(|event| {
            event.reason.as_deref() == Some("BucketKept")
                && event.message.as_ref().is_some_and(|message| message.contains(&buckets[0]))
        });
        Seen::some(told.then_some(()), "no such event")
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
