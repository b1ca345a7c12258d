//! What the chart makes of values is what the API server takes, word by word.

use std::collections::BTreeMap;

use s3_csi_tests::Stage;
use serde_json::Value;
use xtask::command::capture;
use xtask::driver;

/// Every object that `values` install, as the API server would keep it: by kind and name.
fn objects(stage: &Stage, values: &[&str]) -> BTreeMap<(String, String), Value> {
    let cluster = &stage.here.cluster;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rendered.yaml");
    std::fs::write(&file, driver::render(cluster, values).unwrap()).unwrap();
    let mut apply = cluster.kubectl().unwrap();
    apply.args(["apply", "--dry-run=server", "--validate=strict", "--output=json", "--filename"]).arg(&file);
    let list: Value = serde_json::from_str(&capture(&mut apply).unwrap()).unwrap();
    let named = |object: &Value| {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        ((text(&object["kind"]), text(&object["metadata"]["name"])), object.clone())
    };
    list["items"].as_array().unwrap().iter().map(named).collect()
}

/// The containers of a pod template, and what a variable of the first one is.
fn containers(objects: &BTreeMap<(String, String), Value>, kind: &str, name: &str) -> Vec<(String, Value)> {
    let object = &objects[&(kind.to_owned(), name.to_owned())];
    let containers = object["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    containers.iter().map(|one| (one["name"].as_str().unwrap().to_owned(), one.clone())).collect()
}

fn variable<'a>(container: &'a Value, name: &str) -> &'a Value {
    let all = container["env"].as_array().unwrap();
    all.iter().find(|one| one["name"] == name).map_or(&Value::Null, |one| &one["value"])
}

#[tokio::test]
async fn one_program_per_pod_or_the_upstream_ones_in_their_places() {
    let stage = Stage::set("chart").await;
    for (sidecars, node, controller) in [
        (false, &["node"][..], &["controller"][..]),
        (true, &["node", "node-driver-registrar", "liveness-probe"], &["controller", "csi-provisioner"]),
    ] {
        let objects = objects(&stage, &[&format!("sidecars.enabled={sidecars}")]);
        let names = |containers: &[(String, Value)]| -> Vec<String> {
            containers.iter().map(|(name, _)| name.clone()).collect()
        };
        let nodes = containers(&objects, "DaemonSet", "s3-csi-node");
        let controllers = containers(&objects, "Deployment", "s3-csi-controller");
        assert_eq!(names(&nodes), node);
        assert_eq!(names(&controllers), controller);
        // What the upstream programs do, the driver leaves to them.
        let own = if sidecars { "off" } else { "on" };
        assert_eq!(variable(&nodes[0].1, "REGISTRATION"), own);
        assert_eq!(variable(&controllers[0].1, "PROVISIONING"), own);
    }
}

#[tokio::test]
async fn the_server_takes_whatever_the_values_make() {
    let stage = Stage::set("chart-values").await;
    for values in [
        &["provisioning.enabled=false"][..],
        &["provisioning.secretNamespaces={default,kube-system}", "controller.replicas=2"],
        &["sidecars.enabled=true", "provisioning.secretNamespaces={default}"],
        &["tls.caCertConfigMap=authority", "imagePullSecrets={one,two}"],
        &["node.tolerateAllTaints=true", "node.nodeSelector.disk=fast", "node.maxVolumes=7"],
        &["node.serviceAccount.create=false", "controller.serviceAccount.create=false"],
    ] {
        let objects = objects(&stage, values);
        assert!(objects.len() > 5, "{values:?}: {:?}", objects.keys());
    }
}
