//! Mistakes in volumes and classes are reported when they are made, by the same rules as later.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::authentication::SecretPresence;
use contract::names::DRIVER;
use contract::volume_plan::VolumePlan;
use controller::provision::class::parameters::ClassParameters;
use controller::provision::s3::endpoint::Endpoint;
use http::header::WARNING;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use kube::client::Body;
use s3_csi_tests::{Seen, Stage, chart, eventually};
use serde_json::{Value, json};

/// The API server looks for new policies every second or so.
pub(crate) const IN_FORCE_WITHIN: Duration = Duration::from_secs(30);
const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";

/// Sends an object as kubectl does, without keeping it. The warnings, or why it is refused.
async fn create(stage: &Stage, path: &str, object: &Value) -> Result<Vec<String>, String> {
    let request =
        http::Request::post(format!("{path}?dryRun=All")).header("content-type", "application/json");
    send(stage, request, object).await
}

/// Changes an object for good.
async fn change(stage: &Stage, path: &str, change: &Value) -> Result<Vec<String>, String> {
    let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
    send(stage, request, change).await
}

async fn send(stage: &Stage, request: http::request::Builder, object: &Value) -> Result<Vec<String>, String> {
    let request = request.body(Body::from(object.to_string().into_bytes())).unwrap();
    let answer = stage.here.client.clone().send(request).await.unwrap();
    let warnings = answer.headers().get_all(WARNING).into_iter();
    let warnings = warnings.map(|text| text.to_str().unwrap().replace("\\\"", "\"")).collect();
    if answer.status().is_success() {
        return Ok(warnings);
    }
    let body = answer.into_body().collect_bytes().await.unwrap();
    Err(String::from_utf8_lossy(&body).replace("\\\"", "\""))
}

fn volume(attributes: &Value, options: &[&str]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"generateName": "admission-"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "mountOptions": options,
            "csi": {"driver": DRIVER, "volumeHandle": "any", "volumeAttributes": attributes},
        },
    })
}

fn class(parameters: &Value, options: &[&str]) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"generateName": "admission-"},
        "provisioner": DRIVER, "parameters": parameters, "mountOptions": options,
    })
}

fn texts(object: &Value) -> BTreeMap<String, String> {
    serde_json::from_value(object.clone()).unwrap()
}

async fn in_force(stage: &Stage, path: &str, wrong: &Value) {
    eventually("the policy is in force", IN_FORCE_WITHIN, || async {
        let warnings = create(stage, path, wrong).await.unwrap();
        Seen::some((!warnings.is_empty()).then_some(()), "no warning")
    })
    .await;
}

/// With these words, or not at all.
async fn expect_warning(stage: &Stage, attributes: &Value, options: &[&str], words: Option<&str>) {
    let warnings = create(stage, VOLUMES, &volume(attributes, options)).await.unwrap();
    let warnings = warnings.join("\n");
    match words {
        None => assert_eq!(warnings, "", "{attributes} {options:?}"),
        Some(words) => assert!(warnings.contains(words), "{attributes} {options:?}: {warnings}"),
    }
    // The node would refuse it, or ignore an option, in the same cases.
    let plan = VolumePlan::parse(&texts(attributes), SecretPresence::Absent, options);
    let is_wrong = plan.is_err() || plan.is_ok_and(|plan| !plan.ignored.is_empty());
    assert_eq!(is_wrong, words.is_some(), "{attributes} {options:?}");
}

#[tokio::test]
async fn a_volume_with_a_mistake_is_warned_about() {
    let stage = Stage::set("admission-volumes").await;
    in_force(&stage, VOLUMES, &volume(&json!({}), &[])).await;
    let bucket = json!({"bucketName": "bucket"});
    for (attributes, options, words) in [
        (&bucket, &["allow-delete", "--prefix a/", "uid=1000", "d"][..], None),
        (&bucket, &["Allow-Delete", "PREFIX = a/", "foreground", "-", " "], None),
        (
            &json!({
                "bucketName": "bucket", "authenticationSource": "driver", "mountpointEnv.NO_PROXY": "a",
                "storage.kubernetes.io/csiProvisionerIdentity": "1-s3", "dynamicProvisioning": "true",
            }),
            &[],
            None,
        ),
        (&json!({"bucket": "b"}), &[], Some("volume attribute `bucketName` is missing")),
        (&json!({"bucketName": ""}), &[], Some("volume attribute `bucketName` is missing")),
        (
            &bucket,
            &["allow-deletes"],
            Some("unknown mount options, with which no pod is started: allow-deletes;"),
        ),
        (
            &bucket,
            &["--Endpoint-URL=http://a"],
            Some("mount options without effect: endpoint-url; remove them"),
        ),
        (&bucket, &["allow-delete=true"], Some("mount options that take no value: allow-delete=true;")),
        (&bucket, &["--uid"], Some("mount options without a value: --uid;")),
        (&bucket, &["allow-root", "allow-other"], Some("mutually exclusive: allow-root, allow-other;")),
        (&bucket, &["no-log", "-d"], Some("mutually exclusive: no-log, d;")),
        (
            &json!({"bucketName": "bucket", "authenticationSource": "Secret"}),
            &[],
            Some("unknown `authenticationSource` \"Secret\": use driver, secret, pod"),
        ),
        (
            &json!({"bucketName": "bucket", "authenticationSource": "secret"}),
            &[],
            Some("`authenticationSource: secret` without `nodePublishSecretRef`"),
        ),
    ] {
        expect_warning(&stage, attributes, options, words).await;
    }
    // The driver does not read it, so only the policy can find this one.
    let misspelt = volume(&json!({"bucketName": "bucket", "authentificationSource": "secret"}), &[]);
    let warnings = create(&stage, VOLUMES, &misspelt).await.unwrap().join("\n");
    assert!(
        warnings.contains("unknown volume attributes, which have no effect: authentificationSource;"),
        "{warnings}"
    );
    // Volumes of other drivers are none of its business.
    let mut other = volume(&json!({"share": "a"}), &["nfsvers=4"]);
    other["spec"]["csi"]["driver"] = json!("nfs.example.com");
    assert_eq!(create(&stage, VOLUMES, &other).await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_value_that_the_driver_refuses_is_warned_about() {
    let stage = Stage::set("admission-values").await;
    in_force(&stage, VOLUMES, &volume(&json!({}), &[])).await;
    let bucket = json!({"bucketName": "bucket"});
    for (attributes, options, words) in [
        (
            &bucket,
            &["--UID=x"][..],
            Some(
                "invalid mount options, with which no pod is started: uid=x: it must be a number from 1 to 4294967295;",
            ),
        ),
        (&bucket, &["prefix a"], Some("prefix a: it must end in '/'")),
        (&bucket, &["prefix = "], None),
        (&bucket, &["gid=0"], Some("gid=0: it must be a number from 1")),
        (&bucket, &["dir-mode 999", "read-part-size=1024"], Some("read-part-size=1024: it must be")),
        (&bucket, &["region=a.example/#"], Some("region=a.example/#: regions have")),
        (
            &json!({"bucketName": "s3://bucket"}),
            &[],
            Some("`bucketName` \"s3://bucket\": it must be the name of a bucket"),
        ),
        (
            &json!({"bucketName": "arn:aws:s3-outposts:us-east-1:1:outpost/op-1/accesspoint/a"}),
            &[],
            Some("invalid volume attributes, with which no pod is started: `bucketName`"),
        ),
        // A class may have blanks around its values, a volume may not.
        (&json!({"bucketName": " bucket "}), &[], Some("`bucketName` \" bucket \": it must be the name")),
        (&json!({"bucketName": " "}), &[], Some("`bucketName` \" \": it must be the name")),
        (
            &json!({"bucketName": "bucket", "stsRegion": "eu-west-1 "}),
            &[],
            Some("`stsRegion` \"eu-west-1 \": regions have"),
        ),
        (
            &json!({"bucketName": "bucket", "stsRegion": "a/b"}),
            &[],
            Some("`stsRegion` \"a/b\": regions have"),
        ),
        (
            &json!({"bucketName": "My_Bucket", "stsRegion": ""}),
            &[
                "dir-mode 0770",
                "metadata-ttl=indefinite",
                "region=",
                "prefix=",
                "part-size=05242880",
                "cache",
            ],
            None,
        ),
        (
            &json!({"bucketName": "arn:aws:s3:eu-west-1:111122223333:accesspoint/mine", "stsRegion": "eu-west-1"}),
            &[
                "sse  =  aws:kms",
                "sse-kms-key-id=arn:aws:kms:eu-1:1:key/k",
                "ca-bundle /etc/s3-csi/authority/a.pem",
            ],
            None,
        ),
    ] {
        expect_warning(&stage, attributes, options, words).await;
    }
}

#[tokio::test]
async fn a_class_with_a_mistake_is_warned_about() {
    let stage = Stage::set("admission-classes").await;
    in_force(&stage, CLASSES, &class(&json!({"bucket": "b"}), &[])).await;
    let endpoint = Endpoint::parse("http://s3.test", "us-east-1").unwrap();
    let secret = "csi.storage.k8s.io/provisioner-secret-name";
    let namespace = "csi.storage.k8s.io/provisioner-secret-namespace";
    for (parameters, options, words) in [
        (json!({}), &["allow-delete"][..], None),
        (
            json!({"bucketName": "bucket", "prefix": "${pv.name}/", "deletionPolicy": "delete-objects"}),
            &[],
            None,
        ),
        (json!({"bucketNames": "bucket"}), &[], Some("no claim is provisioned: bucketNames;")),
        (json!({"bucketNamePrefix": " "}), &[], Some("empty parameters: bucketNamePrefix;")),
        (json!({"prefix": "${pv.name}/"}), &[], Some("parameter `prefix` needs `bucketName`")),
        (json!({"bucketName": "bucket", "bucketNamePrefix": "a"}), &[], Some("are mutually exclusive")),
        (json!({"deletionPolicy": "Delete"}), &[], Some("use retain or delete-objects")),
        (json!({secret: "a"}), &[], Some("set both `csi.storage.k8s.io/provisioner-secret-name`")),
        (json!({secret: "a", namespace: "b"}), &[], Some("but no node-publish secret")),
        (json!({secret: "a", namespace: "b", "authenticationSource": "pod"}), &[], None),
        (json!({"bucketName": " bucket ", "region": "eu-west-1"}), &[], None),
        (json!({"bucketNamePrefix": "team-"}), &[], None),
        (
            json!({"bucketName": "My_Bucket"}),
            &[],
            Some("`bucketName` \"My_Bucket\": bucket names have 3 to 63"),
        ),
        (json!({"bucketNamePrefix": "Team"}), &[], Some("`bucketNamePrefix` \"Team\": use up to 19")),
        (json!({"region": "a.b"}), &[], Some("`region` \"a.b\": regions have")),
        (json!({}), &["uid=x"], Some("invalid mount options")),
        (
            json!({
                secret: "a", namespace: "b", "csi.storage.k8s.io/secret-name": "a",
                "csi.storage.k8s.io/secret-namespace": "b", "csi.storage.k8s.io/fstype": "xfs",
                "csi.storage.k8s.io/node-stage-secret-name": "a",
            }),
            &[],
            None,
        ),
        (
            json!({"csi.storage.k8s.io/secret-name": "a"}),
            &[],
            Some("set both `csi.storage.k8s.io/secret-name`"),
        ),
        (json!({}), &["allow-deletes"], Some("unknown mount options")),
    ] {
        let warnings = create(&stage, CLASSES, &class(&parameters, options)).await.unwrap().join("\n");
        match words {
            None => assert_eq!(warnings, "", "{parameters} {options:?}"),
            Some(words) => assert!(warnings.contains(words), "{parameters} {options:?}: {warnings}"),
        }
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let parsed = ClassParameters::of(&texts(&parameters), &options, &endpoint);
        assert_eq!(parsed.is_err(), words.is_some(), "{parameters}: {parsed:?}");
    }
}

/// Parameters of a class cannot be changed, but mount options can.
#[tokio::test]
async fn other_options_of_a_class_are_checked_again() {
    let stage = Stage::set("admission-changed-class").await;
    in_force(&stage, CLASSES, &class(&json!({"bucket": "b"}), &[])).await;
    let name = format!("{}-class", stage.here.namespace);
    let mut good = class(&json!({}), &["allow-delete"]);
    good["metadata"] = json!({"name": name});
    let classes = Api::<StorageClass>::all(stage.here.client.clone());
    classes.create(&PostParams::default(), &serde_json::from_value(good).unwrap()).await.unwrap();
    let path = format!("{CLASSES}/{name}");
    for (changed, words) in [
        (json!({"mountOptions": ["allow-deletes"]}), Some("unknown mount options")),
        // Who changes something else is not warned again.
        (json!({"metadata": {"labels": {"team": "a"}}}), None),
        (json!({"mountOptions": ["allow-deletes", "uid=x"]}), Some("invalid mount options")),
        (json!({"mountOptions": ["allow-delete", "uid=1000"]}), None),
        (json!({"mountOptions": null}), None),
    ] {
        let warnings = change(&stage, &path, &changed).await.unwrap().join("\n");
        match words {
            None => assert_eq!(warnings, "", "{changed}"),
            Some(words) => assert!(warnings.contains(words), "{changed}: {warnings}"),
        }
    }
    classes.delete(&name, &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_handle_used_twice_is_warned_about() {
    let stage = Stage::set("admission-handles").await;
    let name = |text: &str| format!("{}-{text}", stage.here.namespace);
    let bucket = json!({"bucketName": "bucket"});
    let with = |driver: &str, handle: &str| {
        let mut volume = volume(&bucket, &[]);
        volume["spec"]["csi"]["driver"] = json!(driver);
        volume["spec"]["csi"]["volumeHandle"] = json!(name(handle));
        volume
    };
    let called = |text: &str, mut volume: Value| {
        volume["metadata"] = json!({"name": name(text)});
        volume
    };
    // One without a handle, and one of a driver whose handles are its own affair.
    let mut local = called("local", volume(&bucket, &[]));
    local["spec"]["csi"] = Value::Null;
    local["spec"]["mountOptions"] = Value::Null;
    local["spec"]["hostPath"] = json!({"path": "/tmp/none"});
    let volumes = Api::<PersistentVolume>::all(stage.here.client.clone());
    for object in [
        local,
        called("other", with("nfs.example.com", "b")),
        called("one", with(DRIVER, "a")),
        called("two", with(DRIVER, "a")),
    ] {
        volumes.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }
    let warnings = eventually("both volumes are known", IN_FORCE_WITHIN, || async {
        let warnings = create(&stage, VOLUMES, &with(DRIVER, "a")).await.unwrap();
        Seen::some((warnings.len() == 2).then(|| warnings.join("\n")), format!("{warnings:?}"))
    })
    .await;
    for volume in ["one", "two"] {
        let words =
            format!("PersistentVolume {} has the same `volumeHandle` \"{}\"", name(volume), name("a"));
        assert!(warnings.contains(&words), "{words}: {warnings}");
    }
    for unused in [with(DRIVER, "b"), with("nfs.example.com", "a")] {
        assert_eq!(create(&stage, VOLUMES, &unused).await.unwrap(), [""; 0], "{unused}");
    }
    for volume in ["local", "other", "one", "two"] {
        volumes.delete(&name(volume), &DeleteParams::default()).await.unwrap();
    }
}

/// With the policies of all other tests: the bindings here are for objects with a label.
#[tokio::test]
async fn with_deny_a_mistake_is_refused() {
    let stage = Stage::set("admission-deny").await;
    let mut objects = chart::rendered(&stage.here.cluster, &["admission.action=Deny"]);
    let own = ["s3-csi-volumes", "s3-csi-classes", "s3-csi-handles"];
    objects.retain(|one| {
        one["kind"] == "ValidatingAdmissionPolicyBinding"
            && own.iter().any(|name| one["metadata"]["name"] == *name)
    });
    assert_eq!(objects.len(), 3);
    for binding in &mut objects {
        assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
        binding["metadata"]["name"] =
            json!(format!("{}-deny", binding["metadata"]["name"].as_str().unwrap()));
        binding["spec"]["matchResources"] = json!({"objectSelector": {"matchLabels": {"refuse": "yes"}}});
    }
    chart::apply(&stage.here.cluster, &objects, &[]);
    let labelled = |mut object: Value| {
        object["metadata"]["labels"] = json!({"refuse": "yes"});
        object
    };
    let wrong = labelled(volume(&json!({}), &[]));
    let refused = eventually("the volume is refused", IN_FORCE_WITHIN, || async {
        Seen::some(create(&stage, VOLUMES, &wrong).await.err(), "it is taken")
    })
    .await;
    assert!(refused.contains("volume attribute `bucketName` is missing"), "{refused}");
    let wrong = labelled(class(&json!({"bucketNames": "bucket"}), &[]));
    let refused = eventually("the class is refused", IN_FORCE_WITHIN, || async {
        Seen::some(create(&stage, CLASSES, &wrong).await.err(), "it is taken")
    })
    .await;
    assert!(refused.contains("unknown parameters"), "{refused}");
    let name = format!("{}-taken", stage.here.namespace);
    let handle = |metadata: Value| {
        let mut volume = volume(&json!({"bucketName": "bucket"}), &[]);
        volume["metadata"] = metadata;
        volume["spec"]["csi"]["volumeHandle"] = json!(name);
        volume
    };
    let volumes = Api::<PersistentVolume>::all(stage.here.client.clone());
    let taken = serde_json::from_value(handle(json!({"name": name}))).unwrap();
    volumes.create(&PostParams::default(), &taken).await.unwrap();
    let wrong = labelled(handle(json!({"generateName": "admission-"})));
    let refused = eventually("the handle is refused", IN_FORCE_WITHIN, || async {
        Seen::some(create(&stage, VOLUMES, &wrong).await.err(), "it is taken")
    })
    .await;
    assert!(refused.contains(&format!("PersistentVolume {name} has the same `volumeHandle`")), "{refused}");
    volumes.delete(&name, &DeleteParams::default()).await.unwrap();
    create(&stage, VOLUMES, &labelled(volume(&json!({"bucketName": "bucket"}), &[]))).await.unwrap();
    create(&stage, CLASSES, &labelled(class(&json!({}), &[]))).await.unwrap();
}
