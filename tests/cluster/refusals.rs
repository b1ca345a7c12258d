//! Events explain a wrong configuration, and correcting it is enough.

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use s3_csi_tests::manifest;
use serde_json::json;
use xtask::s3::{ALICE, BOB};

use crate::changed;
use crate::story::Story;

#[tokio::test]
async fn a_bucket_that_is_not_there() {
    let story = Story::begin("comes-later").await;
    story.server.delete_bucket(story.name).unwrap();
    story.here.run("workload", story.workload("ls /data; echo in; sleep 3600")).await;
    story.has_event("there is no bucket `comes-later`").await;
    story.mountpoint_pods().await;
    story.server.create_bucket(story.name).unwrap();
    story.says("workload", "in").await;
    story.here.delete("workload").await;
    story.leaves_nothing().await;
}

#[tokio::test]
async fn wrong_credentials() {
    let story = Story::begin("wrong-keys").await;
    let secrets = Api::<Secret>::namespaced(story.here.client.clone(), &story.here.namespace);
    let cases = [
        (
            "wrong-keys-secret",
            ALICE.access_key,
            "not-the-secret",
            "the secret key does not belong to the access key (SignatureDoesNotMatch: ",
        ),
        (
            "wrong-keys-unknown",
            "AKIANOBODY",
            ALICE.secret_key,
            "does not know the access key (InvalidAccessKeyId: ",
        ),
        ("wrong-keys-stranger", BOB.access_key, BOB.secret_key, "denies access to bucket `wrong-keys`"),
        (
            "wrong-keys-missing",
            "",
            ALICE.secret_key,
            "the Secret of nodePublishSecretRef: `access_key_id` is empty",
        ),
    ];
    let keys = |access: &str, secret: &str| json!({"access_key_id": access, "secret_access_key": secret});
    for (name, access, secret, _) in cases {
        let object = json!({"metadata": {"name": name}, "stringData": keys(access, secret)});
        secrets.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        story
            .volume(name, |volume| {
                let csi = &mut volume["spec"]["csi"];
                csi["volumeAttributes"]["authenticationSource"] = json!("secret");
                csi["nodePublishSecretRef"] = json!({"name": name, "namespace": story.here.namespace});
            })
            .await;
        story.here.run(name, manifest::pod(&[name], "ls /data; echo in; sleep 3600")).await;
    }
    for (_, _, _, words) in cases {
        story.has_event(words).await;
    }
    story.mountpoint_pods().await;
    let right = Patch::Merge(json!({"stringData": keys(ALICE.access_key, ALICE.secret_key)}));
    for (name, ..) in cases {
        secrets.patch(name, &PatchParams::default(), &right).await.unwrap();
    }
    for (name, ..) in cases {
        story.says(name, "in").await;
        story.here.delete(name).await;
    }
    story.leaves_nothing().await;
}

#[tokio::test]
async fn an_endpoint_that_cannot_be_reached() {
    let story = Story::alone("unreachable").await;
    // Nothing listens on this port.
    let unreachable = changed::values(&story.here.cluster, &["s3.endpointUrl=http://s3.test:81"]);
    story.here.run("workload", story.workload("ls /data; echo in; sleep 3600")).await;
    story.has_event("s3.test:81").await;
    story.mountpoint_pods().await;
    unreachable.undo();
    story.says("workload", "in").await;
    story.here.delete("workload").await;
    story.leaves_nothing().await;
}
