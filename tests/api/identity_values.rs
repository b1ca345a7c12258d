//! What the chart makes of the values of identities.

use s3_csi_tests::Stage;
use serde_json::{Value, json};

use crate::chart::{objects, pods};

pub(crate) const NODE_ROLE: &str =
    r"node.serviceAccount.annotations.eks\.amazonaws\.com/role-arn=arn:aws:iam::1:role/node";

#[tokio::test]
async fn tokens_are_requested_only_for_identities_that_are_enabled() {
    let stage = Stage::set("chart-tokens").await;
    let off = &["podIdentity.enabled=false"][..];
    let roles = &["podIdentity.enabled=true", "podIdentity.tokenExpirationSeconds=600"][..];
    let agent = &["podIdentity.enabled=true", "podIdentity.eks.enabled=true"][..];
    let (sts, pods_eks) = ("sts.amazonaws.com", "pods.eks.amazonaws.com");
    for (values, audiences) in
        [(off, &[][..]), (roles, &[(sts, 600)]), (agent, &[(sts, 3600), (pods_eks, 3600)])]
    {
        let objects = objects(&stage, values);
        let spec = &objects.iter().find(|object| object["kind"] == "CSIDriver").unwrap()["spec"];
        let request =
            |(audience, seconds): &(&str, u32)| json!({"audience": audience, "expirationSeconds": seconds});
        let expected: Vec<Value> = audiences.iter().map(request).collect();
        assert_eq!(spec["tokenRequests"].as_array().cloned().unwrap_or_default(), expected, "{values:?}");
        let node = pods(&objects)[0];
        let agent_url = node["containers"][0]["env"].as_array().unwrap().iter().find_map(|one| {
            (one["name"] == "POD_IDENTITY_AGENT_URL").then(|| one["value"].as_str().unwrap())
        });
        let expected = (audiences.len() == 2).then_some("http://169.254.170.23/v1/credentials");
        assert_eq!(agent_url, expected, "{values:?}");
    }
}

#[tokio::test]
async fn the_driver_gets_the_identities_that_the_values_name() {
    let stage = Stage::set("chart-identity").await;
    let found = |pod: &Value, name: &str| {
        let mut all = pod["containers"][0]["env"].as_array().unwrap().iter();
        all.find_map(|one| (one["name"] == name).then(|| one["value"].as_str().unwrap().to_owned()))
    };
    let tokens = |pod: &Value| {
        let volumes = pod["volumes"].as_array().unwrap().iter();
        let audiences = volumes.filter_map(|one| {
            one["projected"]["sources"][0]["serviceAccountToken"]["audience"].as_str().map(str::to_owned)
        });
        audiences.collect::<Vec<_>>()
    };
    let (role, agent, metadata) =
        ("AWS_ROLE_ARN", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_EC2_METADATA_SERVICE_ENDPOINT");
    let plain = objects(&stage, &[]);
    for pod in pods(&plain) {
        assert_eq!([role, agent, metadata].map(|name| found(pod, name)), [None, None, None]);
        assert_eq!(tokens(pod), [""; 0]);
    }
    let annotated = objects(&stage, &[NODE_ROLE]);
    let [node, controller] = pods(&annotated);
    assert_eq!(found(node, role).as_deref(), Some("arn:aws:iam::1:role/node"));
    assert_eq!((tokens(node), found(controller, role)), (vec!["sts.amazonaws.com".to_owned()], None));
    for (values, url) in [
        (&["podIdentity.eks.driver=true"][..], "http://169.254.170.23/v1/credentials"),
        (
            &["podIdentity.eks.driver=true", "podIdentity.eks.ipFamily=ipv6"],
            "http://[fd00:ec2::23]/v1/credentials",
        ),
        (
            &[
                "podIdentity.eks.driver=true",
                "eksPodIdentityAgent.containerCredentialsFullURI=http://10.0.0.1/keys",
            ],
            "http://10.0.0.1/keys",
        ),
    ] {
        for pod in pods(&objects(&stage, values)) {
            assert_eq!(found(pod, agent).as_deref(), Some(url));
            assert_eq!(tokens(pod), ["pods.eks.amazonaws.com"]);
        }
    }
    let amazon = ["instanceProfile.enabled=true", "awsAccessSecret.name=aws-secret"];
    for pod in pods(&objects(&stage, &amazon)) {
        assert_eq!(found(pod, metadata).as_deref(), Some("http://169.254.169.254"));
        let volumes = pod["volumes"].as_array().unwrap();
        let keys = &volumes.iter().find(|one| one["name"] == "credentials").unwrap()["secret"];
        assert_eq!((&keys["secretName"], &keys["items"][0]["key"]), (&json!("aws-secret"), &json!("key_id")));
    }
}
