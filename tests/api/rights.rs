//! Controller and node can do what their rules say, which is what they need, and nothing else.

use k8s_openapi::api::authorization::v1::{SelfSubjectRulesReview, SubjectAccessReview};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use s3_csi_tests::Stage;
use s3_csi_tests::account::{Account, CONTROLLER, MOUNTPOINT_NAMESPACE, NODE, RELEASE_NAMESPACE};
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
async fn granted(stage: &Stage, account: &Account, namespace: &str) -> BTreeSet<Right> {
    let kubeconfig = Kubeconfig::read_from(stage.here.cluster.kubeconfig()).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.auth_info.impersonate = Some(account.user());
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
async fn the_accounts_have_the_shipped_rights_and_no_others() {
    let stage = Stage::set("rights").await;
    for account in [CONTROLLER, NODE] {
        let everywhere = rights(&account.rules_everywhere());
        assert_eq!(granted(&stage, &account, &stage.here.namespace).await, everywhere);
        for namespace in [MOUNTPOINT_NAMESPACE, RELEASE_NAMESPACE] {
            let there = &everywhere | &rights(&account.rules_in(namespace));
            assert_eq!(granted(&stage, &account, namespace).await, there, "{} in {namespace}", account.name);
        }
    }
}

#[tokio::test]
async fn what_would_hurt_is_denied() {
    let stage = Stage::set("denied").await;
    let both = [
        ("list", "", "secrets", MOUNTPOINT_NAMESPACE),
        ("create", "", "pods", "default"),
        ("delete", "", "pods", "default"),
        ("create", "", "pods/exec", MOUNTPOINT_NAMESPACE),
        ("update", "", "nodes", ""),
        ("create", "rbac.authorization.k8s.io", "clusterrolebindings", ""),
        ("impersonate", "", "users", ""),
        ("create", "", "serviceaccounts/token", RELEASE_NAMESPACE),
        // The controller reads the Secret that a class names; it cannot find out which there are.
        ("watch", "", "secrets", RELEASE_NAMESPACE),
        ("patch", "", "secrets", "default"),
        ("create", "", "persistentvolumeclaims", "default"),
        ("delete", "", "persistentvolumeclaims", "default"),
        ("patch", "storage.k8s.io", "storageclasses", ""),
    ];
    // The node, which is everywhere, only reads: whoever takes one over must not get the cluster.
    let node = [
        ("list", "", "pods", "default"),
        ("delete", "", "pods", MOUNTPOINT_NAMESPACE),
        ("create", "", "pods", MOUNTPOINT_NAMESPACE),
        ("patch", "s3.csi.scality.com", "mountpoints3podattachments", ""),
        ("list", "", "persistentvolumes", ""),
        ("delete", "", "persistentvolumes", ""),
        ("get", "", "secrets", RELEASE_NAMESPACE),
    ];
    let cases = both.iter().map(|case| (CONTROLLER, case));
    let cases = cases.chain(both.iter().chain(&node).map(|case| (NODE, case)));
    for (account, (verb, group, resource, namespace)) in cases {
        let review = json!({"spec": {"user": account.user(), "resourceAttributes": {
            "verb": verb, "group": group, "resource": resource, "namespace": namespace,
        }}});
        let answer: SubjectAccessReview = Api::all(stage.here.client.clone())
            .create(&PostParams::default(), &serde_json::from_value(review).unwrap())
            .await
            .unwrap();
        let who = account.name;
        assert!(!answer.status.unwrap().allowed, "{who}: {verb} {group}/{resource} in {namespace}");
    }
}
