//! Mistakes in volumes and classes are reported when they are made, by the same rules as later.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::authentication::SecretRef;
use contract::names::DRIVER;
use contract::volume_plan::VolumePlan;
use controller::provision::class::parameters::ClassParameters;
use controller::provision::s3::endpoint::Endpoint;
use http::header::WARNING;
use kube::client::Body;
use s3_csi_tests::{Seen, Stage, chart, eventually};
use serde_json::{Value, json};

/// The API server looks for new policies every second or so.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(30);
const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";

/// Sends an object as kubectl does, without keeping it. The warnings, or why it is refused.
async fn create(stage: &Stage, path: &str, object: &Value) -> Result<Vec<String>, String> {
    let request = http::Request::post(format!("{path}?dryRun=All"))
        .header("content-type", "application/json")
        .body(Body::from(object.to_string().into_bytes()))
        .unwrap();
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
        let warnings = create(&stage, VOLUMES, &volume(attributes, options)).await.unwrap();
        let warnings = warnings.join("\n");
        match words {
            None => assert_eq!(warnings, "", "{attributes} {options:?}"),
            Some(words) => assert!(warnings.contains(words), "{attributes} {options:?}: {warnings}"),
        }
        // The node would refuse it, or ignore an option, in the same cases.
        let plan = VolumePlan::parse(&texts(attributes), SecretRef::Absent, options);
        let is_wrong = plan.is_err() || plan.is_ok_and(|plan| !plan.ignored.is_empty());
        assert_eq!(is_wrong, words.is_some(), "{attributes} {options:?}");
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

/// With the policies of all other tests: the bindings here are for objects with a label.
#[tokio::test]
async fn with_deny_a_mistake_is_refused() {
    let stage = Stage::set("admission-deny").await;
    let mut objects = chart::rendered(&stage.here.cluster, &["admission.action=Deny"]);
    let own = ["s3-csi-volumes", "s3-csi-classes"];
    objects.retain(|one| {
        one["kind"] == "ValidatingAdmissionPolicyBinding"
            && own.iter().any(|name| one["metadata"]["name"] == *name)
    });
    assert_eq!(objects.len(), 2);
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
    create(&stage, VOLUMES, &labelled(volume(&json!({"bucketName": "bucket"}), &[]))).await.unwrap();
    create(&stage, CLASSES, &labelled(class(&json!({}), &[]))).await.unwrap();
}
