//! Mistakes in volumes and classes are reported when they are made, by the same rules as later.

mod classes;
mod volumes;

use std::collections::BTreeMap;
use std::time::Duration;

use contract::names::DRIVER;
use http::header::WARNING;
use k8s_openapi::api::core::v1::PersistentVolume;
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
