//! What pages show as YAML is what the API server takes.

use std::collections::BTreeSet;
use std::fs;

use contract::names::DRIVER;
use s3_csi_tests::{Seen, Stage, eventually, manifest, pages};
use serde_json::{Value, json};
use xtask::command::run;

use crate::admission::IN_FORCE_WITHIN;
use crate::chart::objects_of;

/// Applies objects without keeping them. A warning is a mistake, too: most of the driver's own rules only warn.
fn takes(stage: &Stage, text: &str) -> anyhow::Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), text)?;
    let mut kubectl = stage.here.cluster.kubectl()?;
    kubectl.args(["apply", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "--filename"]);
    run(kubectl.arg(file.path()))
}

fn keys(part: &Value) -> BTreeSet<&str> {
    part.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect()
}

/// The object that a page shows a part of, by the keys of the part. None for values of the chart.
fn completed(part: &Value, namespace: &str) -> Option<Value> {
    let pod = |claims: &[&str]| {
        let metadata = json!({"name": "part", "namespace": namespace});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": manifest::pod(claims, "true")})
    };
    match keys(part).into_iter().collect::<Vec<_>>()[..] {
        ["mountOptions"] => {
            let mut volume = manifest::volume("part", namespace, "bucket");
            (volume["apiVersion"], volume["kind"]) = (json!("v1"), json!("PersistentVolume"));
            volume["spec"]["mountOptions"] = part["mountOptions"].clone();
            Some(volume)
        }
        ["volumeMounts"] => {
            let mounts = part["volumeMounts"].as_array().unwrap();
            let names: Vec<&str> = mounts.iter().map(|mount| mount["name"].as_str().unwrap()).collect();
            let mut pod = pod(&names);
            pod["spec"]["containers"][0]["volumeMounts"] = part["volumeMounts"].clone();
            Some(pod)
        }
        ["spec"] => {
            let mut pod = pod(&["bucket"]);
            for (key, value) in part["spec"].as_object().unwrap() {
                pod["spec"][key] = value.clone();
            }
            Some(pod)
        }
        ["parameters"] => {
            let mut class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass"});
            (class["metadata"], class["provisioner"]) = (json!({"name": "part"}), json!(DRIVER));
            class["parameters"] = part["parameters"].clone();
            Some(class)
        }
        _ => None,
    }
}

/// A block without `apiVersion` is a part of an object, or values of the chart.
#[tokio::test]
async fn every_yaml_block_of_every_page_is_taken() {
    let stage = Stage::set("pages").await;
    let values: Value =
        serde_saphyr::from_str(&fs::read_to_string(pages::root().join("charts/s3-csi/values.yaml")).unwrap())
            .unwrap();
    let (mut objects, mut parts, mut of_chart) = (0, 0, 0);
    for block in pages::all().iter().flat_map(|page| page.blocks("yaml")) {
        let documents: Vec<Value> = serde_saphyr::from_multiple(&block.text)
            .unwrap_or_else(|error| panic!("{}: {error}\n{}", block.page, block.text));
        let failed = |error: anyhow::Error| panic!("{}: {error:#}\n{}", block.page, block.text);
        if documents.iter().all(|document| document["apiVersion"].is_string()) {
            // Without controllers, only the test's own namespace has the account that pods need.
            let here = format!("namespace: {}", stage.here.namespace);
            takes(&stage, &block.text.replace("namespace: default", &here)).unwrap_or_else(failed);
            objects += 1;
            continue;
        }
        for part in &documents {
            if let Some(object) = completed(part, &stage.here.namespace) {
                takes(&stage, &object.to_string()).unwrap_or_else(failed);
                parts += 1;
            } else {
                assert!(
                    !keys(part).is_empty() && keys(part).is_subset(&keys(&values)),
                    "{}: neither values of the chart nor a part of a known object:\n{}",
                    block.page,
                    block.text
                );
                let file = tempfile::NamedTempFile::new().unwrap();
                fs::write(file.path(), &block.text).unwrap();
                // The chart's schema refuses values that do not exist.
                assert!(!objects_of(&stage, Some(file.path()), &[]).is_empty());
                of_chart += 1;
            }
        }
    }
    assert!(objects > 0 && parts > 2 && of_chart > 2, "{objects} objects, {parts} parts, {of_chart} values");
}

/// The check itself finds mistakes.
#[tokio::test]
async fn a_part_with_a_mistake_is_refused() {
    let stage = Stage::set("pages-mistakes").await;
    for part in [
        json!({"mountOptions": ["allow-deletes"]}),
        json!({"volumeMounts": [{"name": "data", "mountPath": "/data", "mountPropagation": "Sideways"}]}),
        json!({"spec": {"schedulingGate": []}}),
        json!({"parameters": {"bucketPrefix": "a"}}),
    ] {
        let object = completed(&part, &stage.here.namespace).unwrap().to_string();
        // The API server looks for new policies every second or so.
        eventually(&format!("{part} is refused"), IN_FORCE_WITHIN, || async {
            Seen::some(takes(&stage, &object).err().map(drop), "it is taken")
        })
        .await;
    }
    assert_eq!(completed(&json!({"sts": {}}), "default"), None);
}
