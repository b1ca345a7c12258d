//! What Helm prints: what is missing in the cluster, and which values are wrong.

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use s3_csi_tests::Stage;
use serde_json::{Value, json};
use xtask::driver;

use crate::identity_values::NODE_ROLE;

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
