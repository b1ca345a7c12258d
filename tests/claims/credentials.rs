//! Whose keys make a bucket, and what is said when they are wrong.

use std::collections::BTreeSet;

use ::controller::provision::claims::claim::{FINALIZER, STARTED};
use ::controller::provision::volume_id::VolumeId;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use s3_csi_tests::account::CONTROLLER;
use s3_csi_tests::claims::{Tenant, handle};
use s3_csi_tests::controller::{self, Controller};
use serde_json::json;
use xtask::s3::{ALICE, BOB, Client, ENDPOINT, ROOT};

#[tokio::test]
async fn each_tenants_buckets_are_in_its_own_account() {
    let tenant = Tenant::set("tenants", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    let bob = Client::new(ENDPOINT, BOB).unwrap();
    tenant.keys("alice", ALICE).await;
    tenant.keys("bob", BOB).await;
    for (name, account) in [("alice", &tenant.server), ("bob", &bob)] {
        tenant.class(name, tenant.provisioner_secret(name), json!({})).await;
        tenant.claim(name, name).await;
        let bucket = handle(&tenant.bound(name).await);
        let other = if name == "alice" { &bob } else { &tenant.server };
        assert!(account.buckets().unwrap().contains(&bucket), "{name} has {bucket}");
        assert!(!other.buckets().unwrap().contains(&bucket), "no other account has {bucket}");
    }
    // By template, from the claim's own namespace: there is no way to name another's.
    let templated = json!({
        "csi.storage.k8s.io/provisioner-secret-name": "${pvc.name}",
        "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
        "csi.storage.k8s.io/node-publish-secret-name": "${pvc.name}",
        "csi.storage.k8s.io/node-publish-secret-namespace": "${pvc.namespace}",
    });
    tenant.class("templated", templated, json!({})).await;
    let elsewhere = Tenant::set("tenants-other", BOB).await;
    let claim = json!({
        "metadata": {"name": "bob"},
        "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": tenant.class_name("templated"),
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let claim = serde_json::from_value(claim).unwrap();
    elsewhere.claims().create(&kube::api::PostParams::default(), &claim).await.unwrap();
    let missing = format!("there is no Secret {}/bob", elsewhere.here.namespace);
    elsewhere.has_event("bob", &["ProvisioningFailed:", &missing]).await;
    assert!(elsewhere.volumes_here().await.is_empty());
}

#[tokio::test]
async fn each_mistake_has_its_own_words() {
    let tenant = Tenant::set("mistakes", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    let keys = |id: &str, secret: &str| json!({"access_key_id": id, "secret_access_key": secret});
    tenant.secret("cleared", json!({})).await;
    tenant.secret("halved", json!({"access_key_id": ALICE.access_key})).await;
    tenant.secret("emptied", keys(ALICE.access_key, "")).await;
    tenant.secret("garbled", keys("no key at all", "x")).await;
    tenant.secret("unknown", keys("AKIANOBODY", ALICE.secret_key)).await;
    tenant.secret("mismatched", keys(ALICE.access_key, BOB.secret_key)).await;
    for (secret, words) in [
        ("missing", "there is no Secret"),
        ("cleared", "has no key `access_key_id`"),
        ("halved", "has no key `secret_access_key`"),
        ("emptied", "`secret_access_key` is empty"),
        ("garbled", "is not valid"),
        ("unknown", "InvalidAccessKeyId"),
        ("mismatched", "SignatureDoesNotMatch"),
    ] {
        tenant.class(secret, tenant.provisioner_secret(secret), json!({})).await;
        tenant.claim(secret, secret).await;
        let events = tenant.has_event(secret, &["ProvisioningFailed:", words]).await;
        for account in [ALICE, BOB] {
            assert!(!events.contains(account.secret_key), "{events}");
        }
        tenant.has_no_finalizer(secret).await;
    }
    // Corrected, and no more is needed.
    tenant.keys("mismatched", ALICE).await;
    tenant.bound("mismatched").await;
}

#[tokio::test]
async fn an_account_without_permission_is_reported() {
    let tenant = Tenant::set("denied", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    // Of the server's roles, a plain user may not create buckets.
    let programs = tenant.here.cluster.programs().unwrap();
    let mut admin = std::process::Command::new(programs.tool("versitygw"));
    admin.env("ADMIN_ACCESS_KEY_ID", ROOT.access_key).env("ADMIN_SECRET_ACCESS_KEY", ROOT.secret_key);
    admin.args(["admin", "--endpoint-url", ENDPOINT, "create-user", "--access", "AKIAPLAIN"]);
    xtask::command::run(admin.args(["--secret", "plain-secret", "--role", "user"])).unwrap();
    let data = json!({"access_key_id": "AKIAPLAIN", "secret_access_key": "plain-secret"});
    tenant.secret("plain", data).await;
    tenant.class("plain", tenant.provisioner_secret("plain"), json!({})).await;
    tenant.claim("data", "plain").await;
    tenant.has_event("data", &["ProvisioningFailed:", "AccessDenied", "s3:CreateBucket"]).await;
}

#[tokio::test]
async fn a_region_that_the_server_does_not_accept_is_named() {
    let tenant = Tenant::set("region", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    tenant.class("abroad", json!({"region": "eu-central-1"}), json!({})).await;
    tenant.class("home", json!({"region": "us-east-1"}), json!({})).await;
    tenant.claim("far", "abroad").await;
    tenant.has_event("far", &["ProvisioningFailed:", "does not accept region `eu-central-1`"]).await;
    tenant.claim("near", "home").await;
    let options = tenant.bound("near").await.spec.unwrap().mount_options;
    assert_eq!(options, Some(vec!["region=us-east-1".to_owned()]), "the mount uses the same region");
}

/// The author of a claim can set the driver's finalizer and annotation on it, and name any Secret of the cluster there.
#[tokio::test]
async fn a_forged_mark_has_no_secret_used_and_tells_nothing_of_it() {
    let (tenant, theirs) = (Tenant::set("forger", ALICE).await, Tenant::set("forged", BOB).await);
    let _controller = controller::shared(&tenant.here.client).await;
    theirs.keys("whole", BOB).await;
    theirs.secret("halved", json!({"access_key_id": BOB.access_key})).await;
    theirs.secret("mismatched", json!({"access_key_id": BOB.access_key, "secret_access_key": "wrong"})).await;
    let mut outcomes = BTreeSet::new();
    for secret in ["whole", "halved", "mismatched", "missing"] {
        // Of no class: it is not provisioned, and only its mark makes it ours.
        let claim = tenant.claim(secret, "none").await;
        let bucket = VolumeId::bucket(&format!("pvc-{}", claim.uid().unwrap()), None).to_string();
        // Only with Bob's keys could it be deleted.
        theirs.server.create_bucket(&bucket).unwrap();
        let begun =
            json!({"volume": bucket, "secret": [theirs.here.namespace, secret], "region": "us-east-1"});
        let mark = json!({"metadata": {
            "finalizers": [FINALIZER], "annotations": {STARTED: begun.to_string()},
        }});
        tenant.claims().patch(secret, &PatchParams::default(), &Patch::Merge(mark)).await.unwrap();
        tenant.delete(secret).await;
        tenant.claim_gone(secret).await;
        tenant.has_event(secret, &["BucketLeft:", &bucket]).await;
        assert!(theirs.has_bucket(&bucket), "Bob's keys were used");
        // Whether the controller saw the claim before it was deleted is a matter of timing, not of the Secret.
        let is_of_class = |line: &String| {
            ["no StorageClass", "storageclass.storage.k8s.io"].iter().any(|words| line.contains(words))
        };
        let events = tenant.events(secret).await.into_iter().filter(|line| !is_of_class(line));
        outcomes.insert(events.map(|line| line.replace(&bucket, "B")).collect::<BTreeSet<_>>());
    }
    assert_eq!(outcomes.len(), 1, "the outcomes differ: {outcomes:?}");
    let events = format!("{outcomes:?}");
    for word in [theirs.here.namespace.as_str(), "Secret ", "access_key", "Signature"] {
        assert!(!events.contains(word), "{word}: {events}");
    }
}

/// With the rights that `provisioning.secretNamespaces` leaves.
#[tokio::test]
async fn a_secret_that_the_controller_may_not_read_names_the_value_to_set() {
    let _none = controller::none().await;
    let tenants = [Tenant::set("inside", ALICE).await, Tenant::set("outside", ALICE).await];
    let [inside, outside] = &tenants;
    let (client, namespace) = (&inside.here.client, &outside.here.namespace);
    let narrowed = format!("provisioning.secretNamespaces={{{}}}", inside.here.namespace);
    let account = CONTROLLER.variant(client, "narrowed", &CONTROLLER.roles(&[&narrowed])).await;
    let controller = Controller::launch_as(&account, client, &["--leader-election=false"]).await;
    controller.says("became leader").await;
    for tenant in &tenants {
        tenant.keys("keys", ALICE).await;
        tenant.class("class", tenant.provisioner_secret("keys"), json!({})).await;
        tenant.claim("data", "class").await;
    }
    inside.bound("data").await;
    let events = outside.has_event("data", &["ProvisioningFailed:", "`provisioning.secretNamespaces`"]).await;
    assert!(
        events.contains(&format!("may not read Secret {namespace}/keys: add namespace `{namespace}`")),
        "{events}"
    );
    assert!(outside.volumes_here().await.is_empty());
}
