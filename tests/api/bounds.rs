//! What Mountpoint Pods may use: as the chart says, or as their volume does.

use s3_csi_tests::Stage;
use s3_csi_tests::chart::rendered;
use s3_csi_tests::controller::{self, Controller};
use serde_json::{Value, json};

/// What the chart has the controller start with.
fn variable(objects: &[Value], name: &str) -> String {
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let all = container["env"].as_array().unwrap();
    let found = all.iter().find(|variable| variable["name"] == name).unwrap();
    found["value"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn what_a_volume_does_not_bound_the_chart_does() {
    let _none = controller::none().await;
    let stage = Stage::set("bounds").await;
    let objects = rendered(&stage.here.cluster, &[]);
    let resources = variable(&objects, "MOUNTPOINT_RESOURCES");
    let cache_limit = variable(&objects, "MOUNTPOINT_CACHE_SIZE_LIMIT");
    let flags = [
        format!("--mountpoint-resources={resources}"),
        format!("--mountpoint-cache-size-limit={cache_limit}"),
    ];
    let controller = Controller::start(&stage.here.client, &flags.each_ref().map(String::as_str)).await;
    let defaults: Value = serde_json::from_str(&resources).unwrap();
    let spec = async |name: &str, attributes: &[(&str, &str)], options: &[&str]| {
        stage.volume(name, attributes, options).await;
        let (_, pod) = stage.attached(&stage.workload(name, &[name]).await).await;
        serde_json::to_value(pod.spec.unwrap()).unwrap()
    };
    let resources = |spec: &Value| spec["containers"][0]["resources"].clone();
    let cache_size = |spec: &Value| {
        let volumes = spec["volumes"].as_array().unwrap();
        volumes.iter().find(|volume| volume["name"] == "local-cache").unwrap()["emptyDir"]["sizeLimit"]
            .clone()
    };

    assert_eq!(resources(&spec("plain", &[], &[]).await), defaults);
    for kind in ["requests", "limits"] {
        for resource in ["memory", "ephemeral-storage"] {
            assert!(defaults[kind][resource].is_string(), "{kind} of {resource} in {defaults}");
        }
    }
    let larger = [("mountpointContainerResourcesLimitsMemory", "3Gi")];
    assert_eq!(resources(&spec("larger", &larger, &[]).await)["limits"]["memory"], "3Gi");
    let tiny = [("mountpointContainerResourcesLimitsMemory", "1Mi")];
    let tiny = resources(&spec("tiny", &tiny, &[]).await);
    assert_eq!((&tiny["requests"]["memory"], &tiny["limits"]["memory"]), (&json!("1Mi"), &json!("1Mi")));

    let own = [("cache", "emptyDir"), ("cacheEmptyDirSizeLimit", "2Gi")];
    assert_eq!(cache_size(&spec("own", &own, &[]).await), "2Gi");
    assert_eq!(cache_size(&spec("option", &[], &["cache", "max-cache-size 950"]).await), "1000Mi");
    let unbounded = spec("unbounded", &[("cache", "emptyDir")], &[]).await;
    assert_eq!(cache_size(&unbounded), json!(cache_limit));
    assert_ne!(
        resources(&unbounded)["limits"]["ephemeral-storage"],
        defaults["limits"]["ephemeral-storage"],
        "the cache comes on top"
    );
    let note = stage.event("unbounded", "CacheSizeLimited").await;
    assert!(
        note.contains(&format!("the default {cache_limit} applies: set `cacheEmptyDirSizeLimit`")),
        "{note}"
    );
    // Those before it were looked at before it.
    for name in ["own", "option"] {
        let reasons = stage.reasons(name).await;
        assert!(!reasons.contains(&"CacheSizeLimited".to_owned()), "{name}: {reasons:?}");
    }
    drop(controller);
}

#[tokio::test]
async fn an_identity_that_is_switched_off_names_the_value_to_set() {
    let stage = Stage::set("identity-off").await;
    let _controller = controller::shared(&stage.here.client).await;
    stage.volume("data", &[("authenticationSource", "pod")], &[]).await;
    stage.workload("w", &["data"]).await;
    let note = stage.event("w", "PodIdentityDisabled").await;
    assert!(note.contains("`podIdentity.enabled`"), "{note}");
    assert!(stage.attachments_here().await.is_empty());
}
