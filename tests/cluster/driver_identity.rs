//! The driver without static keys: a role of its own, a Pod Identity association, the role of the instance. Each for mounts and
//! for buckets that the controller creates.

use std::sync::Arc;

use contract::names::DRIVER;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use s3_csi_tests::agent::{Agent, LINK_LOCAL, add_address, review};
use s3_csi_tests::metadata::Metadata;
use s3_csi_tests::web_identity::{Role, WebIdentity};
use s3_csi_tests::{Seen, changed, cluster, eventually};
use serde_json::{Value, json};
use xtask::driver;
use xtask::s3::{ALICE, Client};

use crate::identities::{READ, workload};
use crate::story::{LIMIT, Story};

/// There is no such Secret.
const NO_KEYS: &str = "s3CredentialSecret.name=no-keys";
const WRITE: &str = "echo hello > /data/hello; ";
const ACCOUNTS: [&str; 2] = ["s3-csi-driver-sa", "s3-csi-driver-controller-sa"];

/// The controller creates a bucket for a class with these parameters, a pod of this account uses it, and the bucket goes with its
/// claim.
pub(crate) async fn provisions_and_mounts(
    story: &Story,
    server: &Client,
    name: &str,
    mut parameters: Value,
    account: &str,
) {
    let client = story.here.client.clone();
    let before = server.buckets().unwrap();
    let post = PostParams::default();
    parameters["deletionPolicy"] = json!("delete-objects");
    let class = json!({"metadata": {"name": name}, "provisioner": DRIVER, "parameters": parameters});
    let classes = Api::<StorageClass>::all(client.clone());
    classes.create(&post, &serde_json::from_value(class).unwrap()).await.unwrap();
    let claim = json!({"metadata": {"name": name}, "spec": {
        "accessModes": ["ReadWriteMany"], "storageClassName": name, "resources": {"requests": {"storage": "1Gi"}},
    }});
    let claims = Api::<PersistentVolumeClaim>::namespaced(client, &story.here.namespace);
    claims.create(&post, &serde_json::from_value(claim).unwrap()).await.unwrap();
    story.here.run(name, workload(name, account, &format!("{WRITE}{READ}"))).await;
    story.says(name, "good").await;
    let mut made = server.buckets().unwrap();
    made.retain(|bucket| !before.contains(bucket));
    assert_eq!(made.len(), 1, "{made:?}");
    story.here.delete(name).await;
    claims.delete(name, &DeleteParams::default()).await.unwrap();
    classes.delete(name, &DeleteParams::default()).await.unwrap();
    eventually("the bucket is gone", LIMIT, || async {
        let left = server.buckets().unwrap();
        Seen::some((!left.contains(&made[0])).then_some(()), format!("{left:?}"))
    })
    .await;
}

#[tokio::test]
async fn the_driver_needs_no_keys_if_it_has_an_identity() {
    let story = Story::alone("driver-identity").await;
    // Counts requests, also before the driver may use it.
    let metadata = Metadata::start(ALICE);

    let server = WebIdentity::start(&story.here.cluster);
    let role = |name, account| server.create(&Role::of(name, driver::NAMESPACE, account, "*"));
    let (node, controller) = (role("driver-node", ACCOUNTS[0]), role("driver-controller", ACCOUNTS[1]));
    let annotated =
        |part, role| format!(r"{part}.serviceAccount.annotations.eks\.amazonaws\.com/role-arn={role}");
    let values = [
        NO_KEYS.to_owned(),
        format!("s3.endpointUrl={}", WebIdentity::endpoint()),
        format!("sts.endpointUrl={}", WebIdentity::sts_endpoint()),
        annotated("node", &node),
        annotated("controller", &controller),
    ];
    let changed = changed::values(&story.here.cluster, &values.each_ref().map(String::as_str));
    provisions_and_mounts(&story, &WebIdentity::client(), "by-role", json!({}), "default").await;
    assert!(server.exchanges(&node) > 0 && server.exchanges(&controller) > 0);
    drop(server);

    add_address(LINK_LOCAL);
    let cluster = cluster();
    let accept = move |token: &str| {
        let account = review(&cluster, token)?;
        let (namespace, name) = account.split_once(':')?;
        (namespace == driver::NAMESPACE && ACCOUNTS.contains(&name)).then_some(ALICE)
    };
    let agent = Agent::start(&format!("{LINK_LOCAL}:80"), SignedDuration::from_secs(600), Arc::new(accept));
    driver::install(&story.here.cluster, &[NO_KEYS, "podIdentity.eks.driver=true"]).unwrap();
    provisions_and_mounts(&story, &story.server, "by-association", json!({}), "default").await;
    assert!(agent.given() > 1, "for the node and for the controller");

    assert_eq!(metadata.connections(), 0, "the metadata service is asked only if the values say so");
    driver::install(&story.here.cluster, &[NO_KEYS, "instanceProfile.enabled=true"]).unwrap();
    provisions_and_mounts(&story, &story.server, "by-instance", json!({}), "default").await;
    assert!(metadata.given() > 1, "for the node and for the controller");
    changed.undo();

    story.leaves_nothing().await;
}
