//! What an installation has beside its programs: replicas that survive drains, metrics and `OpenShift`; and the same without Helm.

use std::time::Duration;

use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::{Value, json};
use xtask::command::{capture, run};
use xtask::{definitions, driver};

use crate::chart::{find, objects, pods, variable};

/// The API server serves a new kind after a moment.
const SERVED_WITHIN: Duration = Duration::from_mins(1);

/// Defines the kinds of the Prometheus operator and of `OpenShift`.
async fn define_kinds(stage: &Stage) {
    let cluster = &stage.here.cluster;
    for file in definitions::files(cluster.cache()) {
        // Too large for the annotation of a client-side apply.
        let mut kubectl = cluster.kubectl().unwrap();
        run(kubectl.args(["apply", "--server-side", "--force-conflicts", "--filename"]).arg(file)).unwrap();
    }
    for kind in ["podmonitors", "servicemonitors", "prometheusrules", "securitycontextconstraints"] {
        eventually(&format!("{kind} are served"), SERVED_WITHIN, || async {
            match capture(cluster.kubectl().unwrap().args(["get", kind, "--all-namespaces"])) {
                Ok(_) => Seen::Yes(()),
                Err(error) => Seen::NotYet(format!("{error:#}")),
            }
        })
        .await;
    }
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|one| one["kind"] == kind).collect()
}

#[tokio::test]
async fn replicas_survive_drains_and_prefer_different_nodes() {
    let stage = Stage::set("replicas").await;
    let two = objects(&stage, &[]);
    let budget = &find(&two, "PodDisruptionBudget", "s3-csi-controller")["spec"];
    let deployment = &find(&two, "Deployment", "s3-csi-controller")["spec"];
    assert_eq!(deployment["replicas"], 2, "a second replica takes over within seconds, for 20 MB");
    assert_eq!(budget["maxUnavailable"], 1);
    assert_eq!(budget["selector"], deployment["selector"]);
    let affinity = &deployment["template"]["spec"]["affinity"]["podAntiAffinity"];
    let preferred = &affinity["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"];
    assert_eq!(preferred["labelSelector"], deployment["selector"]);
    assert_eq!(preferred["topologyKey"], "kubernetes.io/hostname");

    let one = objects(&stage, &["controller.replicas=1"]);
    assert_eq!(of_kind(&one, "PodDisruptionBudget"), Vec::<&Value>::new(), "it would block every drain");
    assert_eq!(pods(&one)[1]["affinity"], Value::Null);
    let own = objects(
        &stage,
        &["controller.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution=null"],
    );
    assert_eq!(
        pods(&own)[1]["affinity"]["podAntiAffinity"],
        Value::Null,
        "a given affinity is the whole affinity"
    );
}

#[tokio::test]
async fn every_pod_takes_labels_and_annotations_and_keeps_its_own() {
    let stage = Stage::set("pod-labels").await;
    let values = ["node", "controller", "mountpointPod"].map(|kind| {
        format!("{kind}.podLabels.team={kind},{kind}.podLabels.app=x,{kind}.podAnnotations.note={kind}")
    });
    let objects = objects(&stage, &values.each_ref().map(String::as_str));
    for (kind, name, value) in
        [("DaemonSet", "s3-csi-node", "node"), ("Deployment", "s3-csi-controller", "controller")]
    {
        let spec = &find(&objects, kind, name)["spec"];
        let metadata = &spec["template"]["metadata"];
        assert_eq!(metadata["labels"]["team"], value);
        assert_eq!(metadata["annotations"]["note"], value);
        assert_eq!(metadata["labels"]["app"], spec["selector"]["matchLabels"]["app"]);
    }
    // The controller gives them to Mountpoint Pods.
    let controller = &pods(&objects)[1]["containers"][0];
    let given = |name| serde_json::from_str::<Value>(variable(controller, name).as_str().unwrap()).unwrap();
    assert_eq!(given("MOUNTPOINT_POD_LABELS"), json!({"app": "x", "team": "mountpointPod"}));
    assert_eq!(given("MOUNTPOINT_POD_ANNOTATIONS"), json!({"note": "mountpointPod"}));
}

#[tokio::test]
async fn updates_proxies_and_addressing_reach_the_programs() {
    let stage = Stage::set("programs").await;
    let defaults = objects(&stage, &[]);
    let strategy =
        |objects: &[Value]| find(objects, "DaemonSet", "s3-csi-node")["spec"]["updateStrategy"].clone();
    assert_eq!(strategy(&defaults)["rollingUpdate"]["maxUnavailable"], "10%");
    for container in pods(&defaults).map(|pod| &pod["containers"][0]) {
        assert_eq!(variable(container, "S3_ADDRESSING"), "path");
        assert!(!container.to_string().contains("PROXY"), "{container}");
    }
    let changed = objects(
        &stage,
        &[
            "node.updateStrategy.rollingUpdate.maxUnavailable=1,s3.addressing=virtual",
            "proxy.httpsProxy=http://proxy:3128,proxy.noProxy=.internal",
        ],
    );
    assert_eq!(strategy(&changed)["rollingUpdate"]["maxUnavailable"], 1);
    for (pod, prefix) in pods(&changed).into_iter().zip(["MOUNTPOINT_", "S3_"]) {
        let container = &pod["containers"][0];
        assert_eq!(variable(container, "S3_ADDRESSING"), "virtual");
        // Under its plain name, it would also apply to the API server.
        assert_eq!(variable(container, &format!("{prefix}HTTPS_PROXY")), "http://proxy:3128");
        assert_eq!(variable(container, &format!("{prefix}NO_PROXY")), ".internal");
        assert_eq!(variable(container, "HTTPS_PROXY"), &Value::Null);
    }
}

#[tokio::test]
async fn the_namespace_of_mountpoint_pods_can_be_the_administrators() {
    let stage = Stage::set("own-namespace").await;
    let namespace = format!("mountpointPod.namespace={}", stage.here.namespace);
    let theirs = objects(&stage, &["mountpointPod.createNamespace=false", &namespace]);
    assert_eq!(of_kind(&theirs, "Namespace"), Vec::<&Value>::new());
    let role = find(&theirs, "Role", "s3-csi-controller-mountpoint-namespace");
    assert_eq!(role["metadata"]["namespace"], stage.here.namespace.as_str());
}

#[tokio::test]
async fn prometheus_finds_the_programs() {
    let stage = Stage::set("metrics").await;
    define_kinds(&stage).await;
    let none = objects(&stage, &[]);
    for kind in ["Service", "ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap"] {
        assert_eq!(of_kind(&none, kind), Vec::<&Value>::new());
    }
    let all = objects(
        &stage,
        &[
            "metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.labels.release=mine",
            "metrics.prometheusRule.enabled=true,metrics.dashboard.enabled=true",
        ],
    );
    let pod_monitor = objects(&stage, &["metrics.podMonitor.enabled=true,metrics.podMonitor.interval=1m"]);
    let services = of_kind(&all, "Service");
    assert_eq!(services.len(), 2);
    for (kind, name) in [("DaemonSet", "s3-csi-node"), ("Deployment", "s3-csi-controller")] {
        let service = find(&all, "Service", &format!("{name}-metrics"));
        let template = &find(&all, kind, name)["spec"]["template"];
        assert_eq!(service["spec"]["selector"]["app"], template["metadata"]["labels"]["app"]);
        let port = &template["spec"]["containers"][0]["ports"][0];
        assert_eq!(service["spec"]["ports"][0]["targetPort"], port["name"]);
        assert_eq!(service["spec"]["ports"][0]["port"], port["containerPort"]);
        for (objects, monitor) in [(&all, "ServiceMonitor"), (&pod_monitor, "PodMonitor")] {
            let apps = &find(objects, monitor, "s3-csi")["spec"]["selector"]["matchExpressions"][0]["values"];
            assert!(apps.as_array().unwrap().contains(&service["metadata"]["labels"]["app"]), "{apps}");
        }
    }
    let monitor = find(&all, "ServiceMonitor", "s3-csi");
    assert_eq!(monitor["metadata"]["labels"]["release"], "mine");
    assert_eq!(monitor["spec"]["endpoints"][0]["port"], services[0]["spec"]["ports"][0]["name"]);
    let monitor = find(&pod_monitor, "PodMonitor", "s3-csi");
    assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["interval"], "1m");
    let rules = find(&all, "PrometheusRule", "s3-csi")["spec"]["groups"][0]["rules"].as_array().unwrap();
    // Braces are Prometheus's, not Helm's.
    assert!(rules[0]["annotations"]["summary"].as_str().unwrap().contains("{{ $value }}"), "{rules:?}");
    let dashboard = find(&all, "ConfigMap", "s3-csi-dashboard");
    assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
    let dashboard: Value = serde_json::from_str(dashboard["data"]["s3-csi.json"].as_str().unwrap()).unwrap();
    assert_eq!(dashboard["title"], "S3 CSI driver");
}

#[tokio::test]
async fn openshift_admits_the_node_service_and_assigns_the_other_users() {
    let stage = Stage::set("openshift").await;
    define_kinds(&stage).await;
    let users = |objects: &[Value]| -> Vec<Value> {
        let containers = pods(objects)[1]["containers"].as_array().unwrap().iter();
        containers.map(|container| container["securityContext"]["runAsUser"].clone()).collect()
    };
    let elsewhere = objects(&stage, &["sidecars.enabled=true"]);
    assert_eq!(users(&elsewhere), [65534, 65534]);
    assert_eq!(variable(&pods(&elsewhere)[1]["containers"][0], "OPENSHIFT"), &Value::Null);
    let there = objects(&stage, &["sidecars.enabled=true", "isOpenShift=true"]);
    assert_eq!(users(&there), [Value::Null, Value::Null]);
    assert_eq!(variable(&pods(&there)[1]["containers"][0], "OPENSHIFT"), "yes");
    let constraints = find(&there, "SecurityContextConstraints", "s3-csi-node");
    let node = pods(&there)[0];
    // What the node service is, the constraints allow, and no more than that.
    for (allowed, is) in [
        ("allowPrivilegedContainer", &node["containers"][0]["securityContext"]["privileged"]),
        ("readOnlyRootFilesystem", &node["containers"][0]["securityContext"]["readOnlyRootFilesystem"]),
        ("allowHostNetwork", &node["hostNetwork"]),
        ("allowHostPID", &node["hostPID"]),
        ("allowHostIPC", &node["hostIPC"]),
    ] {
        assert_eq!(constraints[allowed].as_bool().unwrap(), is.as_bool().unwrap_or_default(), "{allowed}");
    }
    for volume in node["volumes"].as_array().unwrap() {
        let kind = volume.as_object().unwrap().keys().find(|key| *key != "name").unwrap();
        assert!(constraints["volumes"].as_array().unwrap().contains(&json!(kind)), "{volume}");
    }
    let binding = find(&there, "RoleBinding", "s3-csi-node-scc");
    assert_eq!(binding["subjects"][0]["name"], node["serviceAccountName"]);
    assert_eq!(binding["metadata"]["namespace"], driver::NAMESPACE);
    let role = find(&there, "Role", "s3-csi-node-scc");
    assert_eq!(role["rules"][0]["resourceNames"], json!(["s3-csi-node"]));
    let denied = objects(&stage, &["isOpenShift=false"]);
    assert_eq!(variable(&pods(&denied)[1]["containers"][0], "OPENSHIFT"), "no");
}

/// People without Helm get the same objects, and the CRD.
#[tokio::test]
async fn the_plain_manifest_is_the_chart_with_its_definition() {
    let stage = Stage::set("manifest").await;
    let kubernetes = stage.here.cluster.plan().unwrap().kubernetes;
    let text =
        driver::manifest(stage.here.cluster.cache(), kubernetes, &["s3.region=eu-1".to_owned()]).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &text).unwrap();
    let mut apply = stage.here.cluster.kubectl().unwrap();
    apply.args(["apply", "--dry-run=server", "--validate=strict", "--output=json", "--filename"]);
    let list: Value = serde_json::from_str(&capture(apply.arg(file.path())).unwrap()).unwrap();
    let plain = list["items"].as_array().unwrap();
    assert_eq!(of_kind(plain, "CustomResourceDefinition").len(), 1);
    assert_eq!(plain.len() - 1, objects(&stage, &[]).len());
    assert_eq!(variable(&pods(plain)[0]["containers"][0], "AWS_REGION"), "eu-1");
}
