//! Where the driver's own keys come from: a Secret, a role, a Pod Identity association, the role of the instance. Each for mounts
//! and for buckets that the controller creates.

use contract::names::DRIVER;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use s3_csi_tests::agent::LINK_LOCAL;
use s3_csi_tests::metadata::Metadata;
use s3_csi_tests::permissions::Role;
use s3_csi_tests::secrecy::no_secret_is_seen;
use s3_csi_tests::web_identity::WebIdentity;
use s3_csi_tests::{Seen, changed, eventually};
use serde_json::{Value, json};
use xtask::driver;
use xtask::s3::Client;

use crate::associations::{Associations, agent};
use crate::permissions::{self, May};
use crate::roles::{READ, account, workload};
use crate::story::{LIMIT, Story};
use s3_csi_tests::plugin::s3;

/// There is no such Secret.
const NO_KEYS: &str = "s3CredentialSecret.name=no-keys";
const WRITE: &str = "echo hello > /data/hello; ";
/// With keys for the driver at the server of this story.
const SECRET: &str = "driver-identity";
/// An account of workloads, with a role and an association that open every bucket.
const POWERFUL: &str = "powerful";
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

/// The driver uses the identity that it has, for itself and for volumes of the source `driver`, and only for those.
async fn is_used(story: &Story, name: &str) {
    let client = WebIdentity::client();
    tokio::join!(
        Box::pin(provisions_and_mounts(story, &client, name, json!({}), "default")),
        permissions::hold(story, name, "driver", POWERFUL),
        permissions::own(story, name, "role-reader", May::Read),
        permissions::own(story, name, "association-reader", May::Read),
    );
}

/// `kubectl s3 doctor` asks S3 from inside, with the identity that the driver has.
fn doctor_asks(story: &Story) {
    let said = s3(story, &["doctor", "-o", "json"]);
    let report: Value = serde_json::from_str(&said.text).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    let findings = report["findings"].as_array().unwrap().iter().filter(|it| it["check"] == "endpoint");
    // Buckets of other tests' volumes may be closed to it.
    for finding in findings {
        assert!(["ok", "warning"].contains(&finding["level"].as_str().unwrap()), "{report}");
    }
}

#[tokio::test]
async fn each_identity_of_the_driver_serves_its_own_volumes_and_no_others() {
    let story = Story::alone("driver-identity").await;
    let server = WebIdentity::start(&story.here.cluster);
    permissions::create_buckets();
    permissions::create_volumes(&story, "driver").await;
    permissions::create_volumes(&story, "pod").await;
    let namespace = &story.here.namespace;
    let role = |name, namespace, account, permissions: &'static [_]| {
        server.create(&Role { permissions: permissions.to_vec(), ..Role::of(name, namespace, account, "") })
    };
    let node = role("driver-node", driver::NAMESPACE, ACCOUNTS[0], permissions::SOME);
    let controller = role("driver-controller", driver::NAMESPACE, ACCOUNTS[1], permissions::SOME);
    let powerful = role(POWERFUL, namespace, POWERFUL, permissions::ALL_BUCKETS);
    let reader = role("role-reader", namespace, "role-reader", permissions::ONLY_READING);
    for (name, role) in
        [(POWERFUL, Some(&powerful)), ("role-reader", Some(&reader)), ("association-reader", None)]
    {
        account(&story, name, role.map(String::as_str)).await;
    }
    let own = ACCOUNTS.map(|name| server.create_user(name, permissions::SOME));
    let associations = Associations::default();
    for (namespace, keys) in [
        (driver::NAMESPACE, own[0]),
        (driver::NAMESPACE, own[1]),
        (namespace, server.create_user(POWERFUL, permissions::ALL_BUCKETS)),
        (namespace, server.create_user("association-reader", permissions::ONLY_READING)),
    ] {
        associations.lock().unwrap().insert(format!("{namespace}:{}", keys.name), keys);
    }
    let agent = agent(LINK_LOCAL, &associations);
    // Counts requests, also before the driver may use it.
    let metadata = Metadata::start(own[0]);
    let secrets = Api::<Secret>::namespaced(story.here.client.clone(), driver::NAMESPACE);
    let secret = json!({"metadata": {"name": SECRET},
        "stringData": {"access_key_id": own[0].access_key, "secret_access_key": own[0].secret_key}});
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();

    let annotated =
        |part, role| format!(r"{part}.serviceAccount.annotations.eks\.amazonaws\.com/role-arn={role}");
    let values = format!("{},podIdentity.eks.enabled=true", WebIdentity::values());
    let install =
        |more: &[&str]| driver::install(&story.here.cluster, &[&[&*values], more].concat()).unwrap();
    let from_secret = format!("s3CredentialSecret.name={SECRET}");
    let roles = format!("{},{}", annotated("node", &node), annotated("controller", &controller));
    let (association, instance) = ("podIdentity.eks.driver=true", "instanceProfile.enabled=true");
    // With what comes next in order, each time.
    let changed = changed::values(&story.here.cluster, &[&values, &from_secret, &roles]);
    is_used(&story, "by-secret").await;
    assert_eq!((server.exchanges(&node), server.exchanges(&controller)), (0, 0));

    install(&[NO_KEYS, &roles, association]);
    is_used(&story, "by-role").await;
    let exchanges = || (server.exchanges(&node), server.exchanges(&controller));
    let before = exchanges();
    assert!(before.0 > 0 && before.1 > 0);
    doctor_asks(&story);
    let after = exchanges();
    assert!(after.0 > before.0 && after.1 > before.1, "from the node and from the controller");
    assert_eq!(own.map(|keys| agent.given_of(keys)), [0, 0]);

    assert_eq!(metadata.connections(), 0, "the metadata service is asked only if the values say so");
    install(&[NO_KEYS, association, instance]);
    is_used(&story, "by-association").await;
    let before = own.map(|keys| agent.given_of(keys));
    doctor_asks(&story);
    for (keys, before) in own.into_iter().zip(before) {
        assert!(before > 0 && agent.given_of(keys) > before, "{}", keys.name);
    }
    assert_eq!(metadata.connections(), 0);

    install(&[NO_KEYS, instance]);
    is_used(&story, "by-instance").await;
    let before = metadata.given();
    assert!(before > 1, "for the node and for the controller");
    doctor_asks(&story);
    assert!(metadata.given() > before + 1, "from the node and from the controller");
    assert_eq!(server.exchanges(&powerful), 0, "the role of a workload is for volumes that ask for it");
    let keys = associations.lock().unwrap().values().map(|keys| keys.secret_key.to_owned()).collect();
    no_secret_is_seen(&story.here.cluster, &[server.secrets(), agent.tokens(), keys].concat());
    changed.undo();
    secrets.delete(SECRET, &DeleteParams::default()).await.unwrap();
    story.leaves_nothing().await;
}
