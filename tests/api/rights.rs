//! The controller can do what its rules say, which is what it needs, and nothing else.

use k8s_openapi::api::authorization::v1::{SelfSubjectRulesReview, SubjectAccessReview};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use s3_csi_tests::Stage;
use s3_csi_tests::controller::{MOUNTPOINT_NAMESPACE, USER, rules};
use serde_json::json;
use std::collections::BTreeSet;

type Right = (String, String, String);

fn rights(rules: &[PolicyRule]) -> BTreeSet<Right> {
    let mut all = BTreeSet::new();
    for rule in rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                all.extend(rule.verbs.iter().map(|verb| (group.clone(), resource.clone(), verb.clone())));
            }
        }
    }
    all
}

/// What the API server says the account may do in a namespace, without what every account may.
async fn granted(stage: &Stage, namespace: &str) -> BTreeSet<Right> {
    let kubeconfig = Kubeconfig::read_from(stage.here.cluster.kubeconfig()).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.auth_info.impersonate = Some(USER.to_owned());
    let client = Client::try_from(config).unwrap();
    let review = serde_json::from_value(json!({"spec": {"namespace": namespace}})).unwrap();
    let answer: SelfSubjectRulesReview =
        Api::all(client).create(&PostParams::default(), &review).await.unwrap();
    let mut all = BTreeSet::new();
    for rule in answer.status.unwrap().resource_rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                all.extend(rule.verbs.iter().map(|verb| (group.clone(), resource.clone(), verb.clone())));
            }
        }
    }
    all.retain(|(group, ..)| group != "authorization.k8s.io" && group != "authentication.k8s.io");
    all
}

#[tokio::test]
async fn the_account_has_the_shipped_rights_and_no_others() {
    let stage = Stage::set("rights").await;
    let everywhere = rights(&rules("controller-cluster"));
    assert_eq!(granted(&stage, &stage.here.namespace).await, everywhere);
    let with = |file: &str| everywhere.union(&rights(&rules(file))).cloned().collect::<BTreeSet<Right>>();
    assert_eq!(granted(&stage, MOUNTPOINT_NAMESPACE).await, with("controller-mountpoint-namespace"));
    assert_eq!(granted(&stage, "kube-system").await, with("controller-release-namespace"));
}

#[tokio::test]
async fn what_would_hurt_is_denied() {
    let stage = Stage::set("denied").await;
    for (verb, group, resource, namespace) in [
        ("get", "", "secrets", "kube-system"),
        ("list", "", "secrets", MOUNTPOINT_NAMESPACE),
        ("create", "", "pods", "default"),
        ("delete", "", "pods", "default"),
        ("create", "", "pods/exec", MOUNTPOINT_NAMESPACE),
        ("update", "", "nodes", ""),
        ("delete", "", "persistentvolumes", ""),
        ("create", "rbac.authorization.k8s.io", "clusterrolebindings", ""),
        ("impersonate", "", "users", ""),
        ("create", "", "serviceaccounts/token", "kube-system"),
    ] {
        let review = json!({"spec": {"user": USER, "resourceAttributes": {
            "verb": verb, "group": group, "resource": resource, "namespace": namespace,
        }}});
        let answer: SubjectAccessReview = Api::all(stage.here.client.clone())
            .create(&PostParams::default(), &serde_json::from_value(review).unwrap())
            .await
            .unwrap();
        assert!(!answer.status.unwrap().allowed, "{verb} {group}/{resource} in {namespace}");
    }
}
