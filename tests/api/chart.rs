//! What the chart makes of values is what the API server takes, word by word.

mod reference;

use std::path::Path;

use s3_csi_tests::Stage;
use serde_json::{Value, json};
use xtask::command::capture;
use xtask::driver;

use crate::identity_values::NODE_ROLE;

/// Every object that `values` install, as the API server would keep it.
pub(crate) fn objects(stage: &Stage, values: &[&str]) -> Vec<Value> {
    objects_of(stage, None, values)
}

/// The same, with the values of a file.
pub(crate) fn objects_of(stage: &Stage, file: Option<&Path>, values: &[&str]) -> Vec<Value> {
    let cluster = &stage.here.cluster;
    let folder = tempfile::tempdir().unwrap();
    let rendered = folder.path().join("rendered.yaml");
    std::fs::write(&rendered, driver::render(cluster, file, values).unwrap()).unwrap();
    let mut apply = cluster.kubectl().unwrap();
    apply.args(["apply", "--dry-run=server", "--validate=strict", "--output=json", "--filename"]);
    let list: Value = serde_json::from_str(&capture(apply.arg(&rendered)).unwrap()).unwrap();
    list["items"].as_array().unwrap().clone()
}

pub(crate) fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects.iter().find(|one| one["kind"] == kind && one["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// The pods of node service and controller, as their templates have them.
pub(crate) fn pods(objects: &[Value]) -> [&Value; 2] {
    [("DaemonSet", "s3-csi-node"), ("Deployment", "s3-csi-controller")]
        .map(|(kind, name)| &find(objects, kind, name)["spec"]["template"]["spec"])
}

fn names(pod: &Value) -> Vec<&str> {
    pod["containers"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect()
}

pub(crate) fn variable<'a>(container: &'a Value, name: &str) -> &'a Value {
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
        let [nodes, controllers] = pods(&objects);
        assert_eq!(names(nodes), node);
        assert_eq!(names(controllers), controller);
        // What the upstream programs do, the driver leaves to them.
        let own = if sidecars { "off" } else { "on" };
        assert_eq!(variable(&nodes["containers"][0], "REGISTRATION"), own);
        assert_eq!(variable(&controllers["containers"][0], "PROVISIONING"), own);
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
        &["mountpointPod.networkPolicy.enabled=true", "podIdentity.enabled=true"],
        &["mountpointPod.networkPolicy.enabled=true", "instanceProfile.enabled=true", NODE_ROLE],
        &[
            "mountpointPod.networkPolicy.enabled=true",
            "podIdentity.enabled=true,podIdentity.eks.enabled=true",
        ],
    ] {
        pods(&objects(&stage, values));
    }
}

#[tokio::test]
async fn what_is_misspelt_is_refused() {
    let stage = Stage::set("chart-misspelt").await;
    for value in
        ["controller.replica=2", "node.toleration=a", "sidecars.livenessprobe=a", "tls.caCert=a", "s4=a"]
    {
        let error = driver::render(&stage.here.cluster, None, &[value]).unwrap_err().to_string();
        assert!(error.contains("additional properties"), "{value}: {error}");
    }
}

/// As for Docker: what stands before the first slash is a host if it has a dot or a port, or is `localhost`.
#[tokio::test]
async fn a_repository_that_names_its_registry_is_used_as_it_is() {
    let stage = Stage::set("chart-registries").await;
    let objects = objects(
        &stage,
        &[
            "image.containerRegistry=s3-csi.test:5000/mirror",
            "sidecars.enabled=true",
            "image.repository=driver.two",
            "sidecars.nodeDriverRegistrar.image.repository=s3-csi.test/registrar",
            "sidecars.livenessProbe.image.repository=mirror:5000/probe",
            "sidecars.csiProvisioner.image.repository=localhost/provisioner",
        ],
    );
    let [node, controller] = pods(&objects);
    for (image, repository) in [
        (&node["containers"][0]["image"], "s3-csi.test:5000/mirror/driver.two"),
        (&node["containers"][1]["image"], "s3-csi.test/registrar"),
        (&node["containers"][2]["image"], "mirror:5000/probe"),
        (&controller["containers"][1]["image"], "localhost/provisioner"),
        (
            variable(&controller["containers"][0], "MOUNTPOINT_IMAGE"),
            "s3-csi.test:5000/mirror/s3-csi/mounter",
        ),
    ] {
        let (named, _tag) = image.as_str().unwrap().rsplit_once(':').unwrap();
        assert_eq!(named, repository);
    }
}

#[tokio::test]
async fn older_names_of_endpoint_and_region_win() {
    let stage = Stage::set("chart-older").await;
    let (old, new) = ("https://old.example.com", "https://new.example.com");
    let (older, newer) =
        ("node.s3EndpointUrl=https://old.example.com", "s3.endpointUrl=https://new.example.com");
    for (values, endpoint, region) in [
        (&[newer, "s3.region=eu-west-1"][..], new, "eu-west-1"),
        (&[older, "node.s3Region=us-west-2"][..], old, "us-west-2"),
        (&[older, newer, "s3.region=eu-west-1", "node.s3Region=us-west-2"][..], old, "us-west-2"),
        (&[newer, "node.s3Region=us-west-2"][..], new, "us-west-2"),
    ] {
        let objects = objects(&stage, values);
        for pod in pods(&objects) {
            let container = &pod["containers"][0];
            assert_eq!(variable(container, "AWS_ENDPOINT_URL"), endpoint, "{values:?}");
            assert_eq!(variable(container, "AWS_REGION"), region, "{values:?}");
        }
    }
}

#[tokio::test]
async fn verbosity_is_a_level() {
    let stage = Stage::set("chart-levels").await;
    for (given, level) in [
        (["0", "3"], ["info", "info"]),
        (["4", "5"], ["debug", "debug"]),
        (["6", "10"], ["trace", "trace"]),
        (["warn", "info\\,kube=debug"], ["warn", "info,kube=debug"]),
    ] {
        let values = [format!("node.logLevel={}", given[0]), format!("controller.logLevel={}", given[1])];
        let objects = objects(&stage, &values.each_ref().map(String::as_str));
        let levels = pods(&objects).map(|pod| variable(&pod["containers"][0], "LOG_LEVEL"));
        assert_eq!(levels, level);
    }
}

#[tokio::test]
async fn who_makes_no_buckets_has_no_keys() {
    let stage = Stage::set("chart-keys").await;
    for sidecars in [false, true] {
        let sidecars = format!("sidecars.enabled={sidecars}");
        let objects = objects(&stage, &["provisioning.enabled=false", &sidecars, "tls.caCertConfigMap=a"]);
        let [_, controller] = pods(&objects);
        assert_eq!(names(controller), ["controller"]);
        assert_eq!(controller["volumes"], Value::Null);
        // What a csi-provisioner would need beside.
        let role = find(&objects, "Role", "s3-csi-controller-release-namespace");
        assert!(!role.to_string().contains("s3-csi-scality-com"), "{role}");
    }
}

fn keys(pod: &Value) -> &Value {
    let volumes = pod["volumes"].as_array().unwrap();
    &volumes.iter().find(|one| one["name"] == "credentials").unwrap()["secret"]
}

#[tokio::test]
async fn keys_that_make_buckets_can_be_the_controllers_alone() {
    let stage = Stage::set("chart-two-secrets").await;
    let ours = objects(&stage, &[]);
    for pod in pods(&ours) {
        assert_eq!(keys(pod)["secretName"], "s3-secret", "without a second Secret, the first serves");
    }
    let second = "provisioning.s3CredentialSecret.name=makers,provisioning.s3CredentialSecret.accessKeyId=id";
    let ours = objects(&stage, &[second]);
    let [node, controller] = pods(&ours);
    assert_eq!(keys(node)["secretName"], "s3-secret");
    assert_eq!(keys(controller)["secretName"], "makers");
    assert_eq!(keys(controller)["items"][0], json!({"key": "id", "path": "access_key_id"}));
    assert_eq!(keys(controller)["items"][1]["key"], "secret_access_key");
}

#[tokio::test]
async fn a_priority_class_of_kubernetes_is_neither_made_nor_bound() {
    let stage = Stage::set("chart-priority").await;
    let bound =
        |objects: &[Value]| objects.iter().any(|one| one["metadata"]["name"] == "s3-csi-mountpoint-priority");
    let ours = objects(&stage, &["mountpointPod.priorityClassName=gold"]);
    find(&ours, "PriorityClass", "gold");
    assert!(bound(&ours));
    let theirs = objects(&stage, &["mountpointPod.priorityClassName=system-node-critical"]);
    assert!(!bound(&theirs) && theirs.iter().all(|one| one["kind"] != "PriorityClass"));
    let controller = &pods(&theirs)[1]["containers"][0];
    assert_eq!(variable(controller, "MOUNTPOINT_PRIORITY_CLASS_NAME"), "system-node-critical");
}

#[tokio::test]
async fn no_container_writes_to_its_own_root() {
    let stage = Stage::set("chart-roots").await;
    let objects = objects(&stage, &["sidecars.enabled=true"]);
    for container in pods(&objects).iter().flat_map(|pod| pod["containers"].as_array().unwrap()) {
        assert_eq!(
            container["securityContext"]["readOnlyRootFilesystem"],
            json!(true),
            "{}",
            container["name"]
        );
    }
}
