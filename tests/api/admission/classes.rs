//! A class's parameters and mount options.

use controller::provision::class::parameters::ClassParameters;
use controller::provision::s3::endpoint::Endpoint;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use s3_csi_tests::Stage;
use serde_json::json;

use super::{CLASSES, change, class, create, in_force, texts};

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
