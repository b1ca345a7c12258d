//! What an installation has beside its programs: replicas that survive drains, metrics, `OpenShift`, and what Helm prints.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::{Value, json};
use xtask::command::{capture, run};
use xtask::{definitions, driver};

use crate::chart::{find, objects, pods, variable};
use crate::identity_values::NODE_ROLE;

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

#[tokio::test]
async fn helm_says_what_is_missing() {
    let stage = Stage::set("notes").await;
    let secrets = Api::<Secret>::namespaced(stage.here.client.clone(), driver::NAMESPACE);
    let name = format!("keys-{}", stage.here.namespace);
    let keys = format!("s3CredentialSecret.name={name}");
    let notes = |values: &[&str]| {
        let values: Vec<&str> = values.iter().copied().chain([keys.as_str()]).collect();
        driver::notes(&stage.here.cluster, &values).unwrap()
    };
    let missing = format!("there is no Secret {name} in namespace kube-system");
    let said = notes(&[]);
    assert!(said.contains("is the example of the chart") && said.contains(&missing), "{said}");
    let said = notes(&["s3.endpointUrl=http://s3.test"]);
    assert!(said.contains("plain HTTP") && !said.contains("example of the chart"), "{said}");
    let said = notes(&["awsAccessSecret.name=none"]);
    assert!(said.contains("there is no Secret none") && said.contains("--from-literal=key_id="), "{said}");
    assert!(!said.contains(&missing), "the other Secret is not used: {said}");
    // With an identity, the driver needs no keys.
    for identity in ["podIdentity.eks.driver=true", "instanceProfile.enabled=true"] {
        let said = notes(&[identity]);
        assert!(!said.contains("there is no Secret"), "{identity}: {said}");
    }
    let said = notes(&[NODE_ROLE]);
    assert!(!said.contains("Only volumes") && said.contains("the controller has no identity"), "{said}");
    let said = notes(&[NODE_ROLE, "provisioning.enabled=false"]);
    assert!(!said.contains("there is no Secret"), "{said}");

    let create = async |data: Value| {
        let secret = json!({"metadata": {"name": name}, "stringData": data});
        secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    };
    create(json!({"access_key_id": "a"})).await;
    let said = notes(&[]);
    assert!(said.contains("has no entry `secret_access_key`") && !said.contains(&missing), "{said}");
    secrets.delete(&name, &DeleteParams::default()).await.unwrap();
    create(json!({"access_key_id": "a", "secret_access_key": "b"})).await;
    let narrow = "provisioning.secretNamespaces={default}";
    let said = notes(&["s3.endpointUrl=https://s3.test", narrow]);
    assert!(
        !said.contains("WARNING") && !said.contains("Note:") && said.contains("kubectl s3 doctor"),
        "{said}"
    );
    let said = notes(&["tls.caCertConfigMap=authority", "provisioning.s3CredentialSecret.name=none"]);
    assert_eq!(said.matches("there is no ConfigMap authority").count(), 2, "{said}");
    assert!(said.contains("there is no Secret none"), "{said}");
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

#[tokio::test]
async fn wrong_values_are_named() {
    let stage = Stage::set("wrong-values").await;
    for (value, place, words) in [
        ("admission.action=Log", "/admission/action", "value must be one of 'Warn', 'Deny'"),
        ("controller.replicas=two", "/controller/replicas", "got string, want integer"),
        ("s3.endpointUrl=s3.example.com", "/s3/endpointUrl", "does not match pattern"),
        ("s3.addressing=host", "/s3/addressing", "value must be one of 'path', 'virtual'"),
        ("isOpenShift=maybe", "/isOpenShift", "got string, want"),
        ("proxy.httpsProxy=proxy:3128", "/proxy/httpsProxy", "does not match pattern"),
        ("metrics.podMonitor.interval=30", "/metrics/podMonitor/interval", "want string"),
        ("mountpointPod.namespace=Mount_S3", "/mountpointPod/namespace", "does not match pattern"),
        (
            "podIdentity.eks.enabled=true",
            "`podIdentity.eks.enabled` needs",
            "`podIdentity.enabled`, which is false",
        ),
        ("node.logLevel=verbose", "/node/logLevel", "does not match pattern"),
        ("controller.logLevel=info\\,kube", "/controller/logLevel", "does not match pattern"),
        ("mountpointPod.cacheSizeLimit=1GB", "/mountpointPod/cacheSizeLimit", "does not match pattern"),
        (
            "mountpointPod.resources.limits.memory=512MB",
            "/mountpointPod/resources/limits/memory",
            "does not match pattern",
        ),
        (
            "metrics.serviceMonitor.enabled=true,metrics.podMonitor.enabled=true",
            "`metrics.podMonitor.enabled` are both true",
            "scrape each pod twice",
        ),
        ("tls.caCertData=PEM", "`tls.caCertData` needs", "`tls.caCertConfigMap`, which is empty"),
        (
            "mountpointPod.warm.perNode=auto,mountpointPod.priorityClassName=system-node-critical",
            "`mountpointPod.warm.perNode` is auto",
            "would preempt workloads that run",
        ),
    ] {
        let error = driver::render(&stage.here.cluster, None, &[value]).unwrap_err().to_string();
        assert!(error.contains(place) && error.contains(words), "{value}: {error}");
    }
}
