//! Classes with mount options and Secrets of their own, from the claim to what the pod sees.

use controller::provision::class::parameters::WITHOUT_EFFECT;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::claims::{Tenant, handle};
use s3_csi_tests::{Seen, eventually, manifest};
use serde_json::{Value, json};
use xtask::s3::{ALICE, Account, BOB, Client, ENDPOINT, accounts};

use crate::story::{LIMIT, Story};

const WRITE: &str = "echo mine > /data/file && echo WRITTEN; sleep 3600";
const LOOK: &str = "stat -c 'file %u:%g %a' /data/file; stat -c 'folder %u:%g %a' /data";

/// Whose claims are in the story's namespace.
fn tenant(story: &Story) -> Tenant {
    Tenant { here: story.here.clone(), server: client(ALICE) }
}

fn client(account: Account) -> Client {
    Client::new(ENDPOINT, account).unwrap()
}

/// Waits until the claim is bound; returns its volume and its bucket.
async fn bound(story: &Story, tenant: &Tenant, claim: &str) -> (PersistentVolume, String) {
    let volume = tenant.bound(claim).await;
    story.follow(&volume.name_any());
    let bucket = handle(&volume);
    (volume, bucket)
}

/// Parameters of a class that makes buckets with one Secret of the claim's namespace and mounts them with another.
fn secrets(makes: &str, mounts: &str) -> Value {
    json!({
        "csi.storage.k8s.io/provisioner-secret-name": makes,
        "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
        "csi.storage.k8s.io/node-publish-secret-name": mounts,
        "csi.storage.k8s.io/node-publish-secret-namespace": "${pvc.namespace}",
    })
}

/// Deletes a claim and its class. The bucket, which `maker` owns and which is empty, goes with its volume.
async fn end(tenant: &Tenant, claim: &str, volume: &PersistentVolume, maker: &Client) {
    tenant.delete(claim).await;
    tenant.volume_gone(&volume.name_any()).await;
    assert!(!maker.buckets().unwrap().contains(&handle(volume)), "the bucket of {claim} goes with it");
    delete_class(tenant, claim).await;
}

async fn delete_class(tenant: &Tenant, class: &str) {
    let classes = Api::<StorageClass>::all(tenant.here.client.clone());
    classes.delete(&tenant.class_name(class), &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn options_of_a_class_are_those_of_the_mount() {
    let story = Story::begin("class-options").await;
    let tenant = tenant(&story);
    let options =
        ["allow-delete", "allow-other", "uid=4000", "file-mode=640", "dir-mode=750", "prefix=env=prod/"];
    let without_effect: serde_json::Map<String, Value> =
        WITHOUT_EFFECT.iter().map(|key| ((*key).to_owned(), json!("anything"))).collect();
    tenant.class("data", Value::Object(without_effect), json!({"mountOptions": options})).await;
    tenant.claim("data", "data").await;
    let (volume, bucket) = bound(&story, &tenant, "data").await;

    let mut owner = manifest::pod(&["data"], &format!("echo mine > /data/file; {LOOK}; sleep 3600"));
    owner["securityContext"] = json!({"runAsUser": 4000, "runAsGroup": 4000});
    story.here.run("owner", owner).await;
    story.says("owner", "folder 4000:").await;
    let seen = story.log("owner").await;
    for (line, mode) in seen.lines().zip(["640", "750"]) {
        assert!(line.contains(" 4000:") && line.ends_with(mode), "{seen}");
    }
    assert_eq!(story.server.objects(&bucket, "").unwrap(), ["env=prod/file"]);
    assert_eq!(story.server.get(&bucket, "env=prod/file").unwrap(), b"mine\n");

    // The modes that come with a pod's group are for volumes without modes of their own.
    let script = format!("{LOOK}; cat /data/file; if echo x > /data/new; then echo WRITTEN; fi; sleep 3600");
    let mut member = manifest::pod(&["data"], &script);
    member["securityContext"] = json!({"runAsUser": 4001, "runAsGroup": 4001, "fsGroup": 5000});
    story.here.run("member", member).await;
    story.says("member", "Permission denied").await;
    let seen = story.log("member").await;
    for words in ["file 4000:5000 640", "folder 4000:5000 750", "mine"] {
        assert!(seen.contains(words), "{seen}");
    }
    assert!(!seen.contains("WRITTEN"), "{seen}");
    assert_eq!(story.mountpoint_pods().await.len(), 2, "one for each group");

    for pod in ["owner", "member"] {
        story.here.delete(pod).await;
    }
    story.server.delete(&bucket, "env=prod/file").unwrap();
    end(&tenant, "data", &volume, &story.server).await;
    story.leaves_nothing().await;
}

#[tokio::test]
async fn secrets_of_a_class_make_and_mount_in_different_accounts() {
    let story = Story::begin("class-accounts").await;
    let (tenant, maker) = (tenant(&story), client(BOB));
    tenant.keys("makes", BOB).await;
    tenant.keys("mounts", ALICE).await;
    tenant.class("data", secrets("makes", "mounts"), json!({})).await;
    tenant.claim("data", "data").await;
    let (volume, bucket) = bound(&story, &tenant, "data").await;
    assert!(maker.buckets().unwrap().contains(&bucket));

    story.here.run("workload", manifest::pod(&["data"], WRITE)).await;
    story.has_event(&format!("denies access to bucket `{bucket}`")).await;
    story.mountpoint_pods().await;
    // The server has no bucket policies, only owners.
    let programs = story.here.cluster.programs().unwrap();
    accounts::give_bucket(&programs, &bucket, ALICE.access_key).unwrap();
    story.says("workload", "WRITTEN").await;
    assert_eq!(story.server.get(&bucket, "file").unwrap(), b"mine\n");

    story.here.delete("workload").await;
    story.server.delete(&bucket, "file").unwrap();
    accounts::give_bucket(&programs, &bucket, BOB.access_key).unwrap();
    end(&tenant, "data", &volume, &maker).await;
    story.leaves_nothing().await;
}

/// Only the owner can use a bucket, and none is the driver's account: each claim works with its own Secrets or not at all.
#[tokio::test]
async fn secrets_are_found_by_namespace_name_and_annotation() {
    const CAROL: Account =
        Account { name: "carol", access_key: "AKIACAROL", secret_key: "carol-secret-of-the-test-server" };
    const CHOICE: &str = "example.com/keys";
    let story = Story::begin("class-secrets").await;
    let tenant = tenant(&story);
    let programs = story.here.cluster.programs().unwrap();
    accounts::create(&programs, CAROL.access_key, CAROL.secret_key).unwrap();
    tenant.keys(&format!("of-{}", story.here.namespace), BOB).await;
    tenant.keys("of-by-name", CAROL).await;
    tenant.keys("chosen", CAROL).await;
    let (of_namespace, of_name) = ("of-${pvc.namespace}", "of-${pvc.name}");
    let by_annotation = format!("${{pvc.annotations['{CHOICE}']}}");
    let for_both = json!({
        "csi.storage.k8s.io/secret-name": "chosen",
        "csi.storage.k8s.io/secret-namespace": "${pvc.namespace}",
    });
    let cases = [
        ("by-namespace", secrets(of_namespace, of_namespace), BOB, BOB),
        ("by-name", secrets(of_name, of_name), CAROL, CAROL),
        // Annotations are for mounting only.
        ("by-annotation", secrets(of_namespace, &by_annotation), BOB, CAROL),
        ("for-both", for_both, CAROL, CAROL),
    ];
    for (name, parameters, ..) in &cases {
        tenant.class(name, parameters.clone(), json!({})).await;
        let claim = json!({
            "metadata": {"name": name, "annotations": {CHOICE: "chosen"}},
            "spec": {
                "accessModes": ["ReadWriteMany"], "storageClassName": tenant.class_name(name),
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        let claim = serde_json::from_value(claim).unwrap();
        tenant.claims().create(&PostParams::default(), &claim).await.unwrap();
    }
    let mut volumes = Vec::new();
    for (name, _, maker, owner) in &cases {
        let (volume, bucket) = bound(&story, &tenant, name).await;
        assert!(client(*maker).buckets().unwrap().contains(&bucket), "{name}: {} makes it", maker.name);
        if owner != maker {
            accounts::give_bucket(&programs, &bucket, owner.access_key).unwrap();
        }
        story.here.run(name, manifest::pod(&[name], WRITE)).await;
        volumes.push(volume);
    }
    for ((name, _, maker, owner), volume) in cases.into_iter().zip(&volumes) {
        let bucket = handle(volume);
        story.says(name, "WRITTEN").await;
        assert_eq!(client(owner).get(&bucket, "file").unwrap(), b"mine\n", "{name}");
        story.mountpoint_pods().await;
        story.here.delete(name).await;
        client(owner).delete(&bucket, "file").unwrap();
        accounts::give_bucket(&programs, &bucket, maker.access_key).unwrap();
        end(&tenant, name, volume, &client(maker)).await;
    }
    story.leaves_nothing().await;
}

#[tokio::test]
async fn claims_with_prefixes_of_one_bucket_see_only_their_own() {
    const CLAIMS: [&str; 2] = ["one", "other"];
    let story = Story::begin("class-prefixes").await;
    let tenant = tenant(&story);
    let parameters = json!({
        "bucketName": story.name, "prefix": "claims/${pvc.namespace}/${pv.name}", "deletionPolicy": "delete-objects",
    });
    tenant.class("data", parameters, json!({"mountOptions": ["allow-delete"]})).await;
    for claim in CLAIMS {
        tenant.claim(claim, "data").await;
    }
    let mut keys = Vec::new();
    for claim in CLAIMS {
        let volume = tenant.bound(claim).await.name_any();
        story.follow(&volume);
        let look = "while true; do echo sees $(ls /data); sleep 0.3; done";
        let script = format!("echo {claim} > /data/of-{claim}; {look}");
        story.here.run(claim, manifest::pod(&[claim], &script)).await;
        keys.push(format!("claims/{}/{volume}/of-{claim}", story.here.namespace));
    }
    for claim in CLAIMS {
        story.says(claim, &format!("sees of-{claim}\n")).await;
    }
    // Now both have written.
    story.says_again("one", "sees of-one\n").await;
    for claim in CLAIMS {
        let log = story.log(claim).await;
        let other = CLAIMS.iter().find(|other| **other != claim).unwrap();
        assert!(!log.contains(&format!("of-{other}")), "{log}");
    }
    keys.sort();
    assert_eq!(story.server.objects(story.name, "").unwrap(), keys);
    assert_eq!(story.mountpoint_pods().await.len(), 2);

    for claim in CLAIMS {
        let volume = tenant.bound(claim).await.name_any();
        story.here.delete(claim).await;
        tenant.delete(claim).await;
        tenant.volume_gone(&volume).await;
    }
    assert!(story.server.objects(story.name, "").unwrap().is_empty(), "the objects go with their claims");
    delete_class(&tenant, "data").await;
    story.leaves_nothing().await;
}

/// A claim that is made for its pod and goes with it; each of two containers has a directory of its bucket.
#[tokio::test]
async fn containers_use_sub_paths_of_an_ephemeral_volume() {
    const CONTAINERS: [&str; 2] = ["first", "second"];
    let story = Story::begin("class-ephemeral").await;
    let tenant = tenant(&story);
    let parameters = json!({"deletionPolicy": "delete-objects"});
    tenant.class("scratch", parameters, json!({"mountOptions": ["allow-delete"]})).await;
    let template = json!({"spec": {
        "accessModes": ["ReadWriteMany"], "storageClassName": tenant.class_name("scratch"),
        "resources": {"requests": {"storage": "1Gi"}},
    }});
    let mut pod = manifest::pod(&[], "");
    pod["volumes"] = json!([{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]);
    let containers = CONTAINERS.map(|name| {
        let mut container = pod["containers"][0].clone();
        container["name"] = json!(name);
        let script = format!("echo {name} > /data/file && ls /data && cat /data/file; sleep 3600");
        container["command"] = json!(["/bin/sh", "-c", script]);
        container["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/data", "subPath": name}]);
        container
    });
    pod["containers"] = json!(containers);
    story.here.run("workload", pod).await;
    let claim = "workload-scratch";
    eventually("the pod has a claim", LIMIT, || async {
        Seen::some(tenant.claims().get_opt(claim).await.unwrap(), "no claim")
    })
    .await;
    let (volume, bucket) = bound(&story, &tenant, claim).await;
    for container in CONTAINERS {
        let pod = format!("workload/{container}");
        story.says(&pod, container).await;
        assert_eq!(story.log(&pod).await, format!("file\n{container}\n"), "and nothing else");
    }
    assert_eq!(story.server.objects(&bucket, "").unwrap(), ["first/file", "second/file"]);
    assert_eq!(story.mountpoint_pods().await.len(), 1, "of one volume");

    story.here.delete("workload").await;
    tenant.claim_gone(claim).await;
    tenant.volume_gone(&volume.name_any()).await;
    assert!(!tenant.has_bucket(&bucket), "the bucket goes with the pod");
    delete_class(&tenant, "scratch").await;
    story.leaves_nothing().await;
}
