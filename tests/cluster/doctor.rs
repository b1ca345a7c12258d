//! `kubectl s3 doctor`: nothing to say of an installation that is whole, and what is broken by name.

use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use s3_csi_tests::plugin::s3;
use s3_csi_tests::{Seen, eventually, manifest};
use serde_json::{Value, json};
use xtask::command::run;
use xtask::driver;

use crate::changed::Changed;
use crate::plugin::{contains, kubeconfig};
use crate::story::{LIMIT, Story};

/// An account that may read everything, but not `exec`, does not learn what the endpoint answers.
async fn needs_exec(story: &Story) {
    const READ: &str = "--resource=pods,persistentvolumes,persistentvolumeclaims,nodes,events,secrets,configmaps,\
                        deployments.apps,daemonsets.apps,storageclasses.storage.k8s.io,csinodes.storage.k8s.io,\
                        csidrivers.storage.k8s.io,customresourcedefinitions.apiextensions.k8s.io,\
                        mountpoints3podattachments.s3.csi.scality.com";
    let kubeconfig = kubeconfig(story, "reader");
    let (cluster, own) = (&story.here.cluster, story.here.cluster.clone());
    let account = format!("--serviceaccount={}:reader", story.here.namespace);
    let grant = || {
        let create = |arguments: &[&str]| run(cluster.kubectl()?.arg("create").args(arguments));
        create(&["clusterrole", "plugin-reader", "--verb=get,list", READ])?;
        create(&["clusterrolebinding", "plugin-reader", "--clusterrole=plugin-reader", &account])?;
        create(&["clusterrolebinding", "plugin-reviewer", "--clusterrole=system:auth-delegator", &account])
    };
    let roles = ["plugin-reader", "plugin-reviewer"].map(|name| format!("clusterrolebinding/{name}"));
    let take = move || run(own.kubectl()?.args(["delete", "clusterrole/plugin-reader"]).args(&roles));
    let granted = Changed::make("the rights of the reader", grant, take);
    let doctor = |arguments: &[&str]| {
        let path = kubeconfig.path().to_str().unwrap();
        s3(story, &[&["doctor", "--kubeconfig", path][..], arguments].concat())
    };
    eventually("the reader may read everything", LIMIT, || async {
        let said = doctor(&["--no-exec"]);
        Seen::some((said.code == Some(0)).then_some(()), format!("{said:?}"))
    })
    .await;
    let said = doctor(&[]);
    assert_eq!(said.code, Some(2), "{said:?}");
    contains(&said.text, &["unknown  endpoint", "the self-check did not run", "unknown  clocks", "0 errors"]);
    granted.undo();
}

/// Amazon's driver gives its `DaemonSet` the same name and label. Its pod is neither asked nor counted.
async fn beside_another_driver(story: &Story) {
    let sets = Api::<DaemonSet>::namespaced(story.here.client.clone(), &story.here.namespace);
    let labels = json!({"app": "s3-csi-node"});
    let set = json!({
        "metadata": {"name": "s3-csi-node"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": manifest::pod(&[], "sleep 3600")},
        },
    });
    sets.create(&PostParams::default(), &serde_json::from_value(set).unwrap()).await.unwrap();
    eventually("the pod of the other driver is ready", LIMIT, || async {
        let status = sets.get("s3-csi-node").await.unwrap().status.unwrap_or_default();
        Seen::some((status.number_ready == 1).then_some(()), format!("{status:?}"))
    })
    .await;
    let said = s3(story, &["doctor"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(!said.text.contains(&story.here.namespace), "{said:?}");
    sets.delete("s3-csi-node", &DeleteParams::foreground()).await.unwrap();
}

#[tokio::test]
async fn the_doctor_finds_nothing_until_something_is_broken() {
    let story = Story::alone("plugin-doctor").await;
    let well = s3(&story, &["doctor", "-o", "json"]);
    assert_eq!(well.code, Some(0), "{well:?}");
    let report: Value = serde_json::from_str(&well.text).unwrap();
    // The endpoint was asked from inside, with the keys of the driver.
    for check in ["definition", "permissions", "driverKeys", "endpoint", "clock"] {
        let mut findings = report["findings"].as_array().unwrap().iter().filter(|it| it["check"] == check);
        let unchecked = ["error", "skipped", "unknown"];
        assert!(findings.all(|it| !unchecked.contains(&it["level"].as_str().unwrap())), "{check}: {report}");
    }
    // From a controller and from a node, each by name.
    for asked in ["controller s3-csi-controller-", "node "] {
        let said = |it: &&Value| it["check"] == "endpoint" && it["level"] == "ok";
        let mut found = report["findings"].as_array().unwrap().iter().filter(said);
        assert!(found.any(|it| it["object"].as_str().unwrap().starts_with(asked)), "{asked}: {report}");
    }
    needs_exec(&story).await;
    beside_another_driver(&story).await;
    let delete = |cluster: &xtask::cluster::Cluster| {
        run(cluster.kubectl()?.args(["--namespace", driver::NAMESPACE, "delete", "secret", driver::KEYS]))
    };
    let (cluster, own) = (story.here.cluster.clone(), story.here.cluster.clone());
    let broken =
        Changed::make("the driver's Secret", || delete(&cluster), move || driver::install(&own, &[]));
    story
        .volume("plugin-doctor-twice", |volume| volume["spec"]["csi"]["volumeHandle"] = json!(story.name))
        .await;
    let said = s3(&story, &["doctor"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    let secret = format!("ERROR    driver's keys  {}/{}: does not exist", driver::NAMESPACE, driver::KEYS);
    contains(&said.text, &[&secret, "plugin-doctor, plugin-doctor-twice: have the same volumeHandle"]);
    let report: Value =
        serde_json::from_str(&s3(&story, &["doctor", "--no-exec", "-o", "json"]).text).unwrap();
    assert_eq!(report["healthy"], false, "{report}");
    broken.undo();
    story.leaves_nothing().await;
}
