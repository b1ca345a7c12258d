//! Who may reach the driver's pods, and what they may reach, where the values ask for it.

use s3_csi_tests::Stage;
use serde_json::{Value, json};
use xtask::driver;

use crate::chart::{find, objects};
use crate::identity_values::NODE_ROLE;

#[tokio::test]
async fn mountpoint_pods_reach_names_and_the_endpoint_where_a_policy_is_asked_for() {
    let stage = Stage::set("chart-network").await;
    assert!(objects(&stage, &[]).iter().all(|one| one["kind"] != "NetworkPolicy"));
    let anywhere = &Value::Null;
    for (values, ports, to) in [
        (&["s3.endpointUrl=http://s3.test"][..], &[80][..], anywhere),
        (&["s3.endpointUrl=https://s3.test"], &[443], anywhere),
        (&["s3.endpointUrl=https://s3.test", "node.s3EndpointUrl=http://s3.test:8000"], &[8000], anywhere),
        (&["s3.endpointUrl="], &[443], anywhere),
        (
            &[
                "mountpointPod.networkPolicy.endpointPorts={9000,3128}",
                "mountpointPod.networkPolicy.endpointCidrs={10.1.0.0/16}",
            ],
            &[9000, 3128],
            &json!([{"ipBlock": {"cidr": "10.1.0.0/16"}}]),
        ),
    ] {
        let values: Vec<&str> =
            values.iter().copied().chain(["mountpointPod.networkPolicy.enabled=true"]).collect();
        let objects = objects(&stage, &values);
        let policy = find(&objects, "NetworkPolicy", "s3-csi-mountpoint");
        assert_eq!(policy["metadata"]["namespace"], "mount-s3");
        let spec = &policy["spec"];
        assert_eq!((&spec["podSelector"], &spec["ingress"]), (&json!({}), &Value::Null));
        assert_eq!(spec["policyTypes"], json!(["Ingress", "Egress"]));
        let egress = spec["egress"].as_array().unwrap();
        assert_eq!(egress.len(), 2);
        assert_eq!((ports_of(&egress[0]), &egress[0]["to"]), (vec![53, 53], anywhere));
        assert_eq!((ports_of(&egress[1]), &egress[1]["to"]), (ports.to_vec(), to), "{values:?}");
    }
}

/// A policy sees the port of the pod behind the DNS Service, which is not 53 everywhere.
#[tokio::test]
async fn mountpoint_pods_reach_dns_where_it_listens() {
    let stage = Stage::set("chart-network-dns").await;
    for (values, ports) in [
        ("isOpenShift=true", &[5353, 5353, 53, 53][..]),
        ("isOpenShift=true,mountpointPod.networkPolicy.dnsPorts={5353}", &[5353, 5353]),
        ("mountpointPod.networkPolicy.dnsPorts={53,1053}", &[53, 53, 1053, 1053]),
    ] {
        // Not applied: this API server may know nothing of OpenShift's kinds.
        let on = ["mountpointPod.networkPolicy.enabled=true", values];
        let rendered = driver::render(&stage.here.cluster, None, &on).unwrap();
        let objects: Vec<Value> =
            rendered.split("\n---\n").filter_map(|one| serde_saphyr::from_str(one).ok()).collect();
        let policy = find(&objects, "NetworkPolicy", "s3-csi-mountpoint");
        assert_eq!(ports_of(&policy["spec"]["egress"][0]), ports, "{values}");
    }
}

fn ports_of(rule: &Value) -> Vec<u64> {
    rule["ports"].as_array().unwrap().iter().map(|port| port["port"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn mountpoint_pods_reach_the_ports_of_the_identities_that_are_used() {
    let stage = Stage::set("chart-network-identities").await;
    for (values, ports) in [
        (&["podIdentity.enabled=true"][..], &[443][..]),
        (&["podIdentity.enabled=true,sts.endpointUrl=http://sts.test:7000"], &[7000]),
        // STS for accounts with a role, the agent for the others.
        (&["podIdentity.enabled=true,podIdentity.eks.enabled=true"], &[443, 80]),
        (&["podIdentity.eks.driver=true"], &[80]),
        (&["instanceProfile.enabled=true"], &[80]),
        (&["instanceProfile.enabled=true", NODE_ROLE], &[443, 80]),
    ] {
        let of_endpoint = ["mountpointPod.networkPolicy.enabled=true", "s3.endpointUrl=https://s3.test:9000"];
        let values: Vec<&str> = values.iter().copied().chain(of_endpoint).collect();
        let objects = objects(&stage, &values);
        let egress =
            find(&objects, "NetworkPolicy", "s3-csi-mountpoint")["spec"]["egress"].as_array().unwrap();
        let all: Vec<Vec<u64>> = egress.iter().map(ports_of).collect();
        assert_eq!(all, [vec![53, 53], vec![9000], ports.to_vec()], "{values:?}");
        assert_eq!(egress[2]["to"], Value::Null, "only ports are limited");
    }
}

#[tokio::test]
async fn mountpoint_pods_reach_the_proxy_to_the_endpoint() {
    let stage = Stage::set("chart-network-proxy").await;
    for (values, expected) in [
        ("proxy.httpsProxy=http://proxy.test:3128", &[vec![53, 53], vec![443], vec![3128]][..]),
        ("proxy.httpsProxy=http://me:word@proxy.test:3128", &[vec![53, 53], vec![443], vec![3128]]),
        ("proxy.httpsProxy=http://proxy.test", &[vec![53, 53], vec![443], vec![80]]),
        (
            "proxy.httpsProxy=http://proxy.test:3128,podIdentity.eks.driver=true",
            &[vec![53, 53], vec![443], vec![80, 3128]],
        ),
        // An endpoint without TLS is reached directly.
        ("proxy.httpsProxy=http://proxy.test:3128,s3.endpointUrl=http://s3.test", &[vec![53, 53], vec![80]]),
    ] {
        let on = ["mountpointPod.networkPolicy.enabled=true", "s3.endpointUrl=https://s3.test", values];
        let objects = objects(&stage, &on);
        let policy = find(&objects, "NetworkPolicy", "s3-csi-mountpoint");
        let egress: Vec<Vec<u64>> =
            policy["spec"]["egress"].as_array().unwrap().iter().map(ports_of).collect();
        assert_eq!(egress, expected, "{values}");
    }
}

#[tokio::test]
async fn metrics_are_for_those_that_the_values_name() {
    let stage = Stage::set("chart-network-metrics").await;
    let on = "metrics.networkPolicy.enabled=true";
    let nobody = objects(&stage, &[on]);
    let spec = &find(&nobody, "NetworkPolicy", "s3-csi-metrics")["spec"];
    // The API server leaves an empty list out. Without rules, nothing is allowed.
    assert_eq!((&spec["policyTypes"], &spec["ingress"]), (&json!(["Ingress"]), &Value::Null));
    let prometheus = r"metrics.networkPolicy.from[0].namespaceSelector.matchLabels.kubernetes\.io/metadata\.name=monitoring";
    let objects = objects(&stage, &[on, prometheus, "sidecars.enabled=true"]);
    let policy = find(&objects, "NetworkPolicy", "s3-csi-metrics");
    assert_eq!(policy["metadata"]["namespace"], driver::NAMESPACE);
    let [rule] = policy["spec"]["ingress"].as_array().unwrap().as_slice() else { panic!("{policy}") };
    let labels = json!({"kubernetes.io/metadata.name": "monitoring"});
    assert_eq!(rule["from"], json!([{"namespaceSelector": {"matchLabels": labels}}]));
    let [port] = rule["ports"].as_array().unwrap().as_slice() else { panic!("{rule}") };
    let selected = &policy["spec"]["podSelector"]["matchExpressions"][0]["values"];
    for (kind, name, number) in
        [("DaemonSet", "s3-csi-node", 9808), ("Deployment", "s3-csi-controller", 8080)]
    {
        let template = &find(&objects, kind, name)["spec"]["template"];
        assert!(selected.as_array().unwrap().contains(&template["metadata"]["labels"]["app"]), "{selected}");
        let of_metrics = &template["spec"]["containers"][0]["ports"][0];
        assert_eq!((&of_metrics["name"], &of_metrics["containerPort"]), (&port["port"], &json!(number)));
        // A policy does not apply to pods in the node's network.
        assert_eq!(template["spec"]["hostNetwork"], Value::Null, "{name}");
    }
}
