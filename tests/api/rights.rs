//! Controller and node can do what Helm gives them, and nothing else. That they need it is in `needed`.

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::Api;
use kube::api::PostParams;
use s3_csi_tests::Stage;
use s3_csi_tests::account::{CONTROLLER, MOUNTPOINT_NAMESPACE, NODE, RELEASE_NAMESPACE};
use s3_csi_tests::right::{Right, granted};
use serde_json::json;
use std::collections::BTreeSet;

#[tokio::test]
async fn the_accounts_have_the_rendered_rights_and_no_others() {
    let stage = Stage::set("rights").await;
    for account in [CONTROLLER, NODE] {
        let roles = account.roles(&[]);
        for namespace in [stage.here.namespace.as_str(), MOUNTPOINT_NAMESPACE, RELEASE_NAMESPACE] {
            let here = roles.iter().filter(|role| role.namespace.as_deref().is_none_or(|it| it == namespace));
            let here: BTreeSet<Right> = here.flat_map(|role| role.rights.clone()).collect();
            assert!(!here.is_empty());
            assert_eq!(granted(&account.user(), namespace).await, here, "{} in {namespace}", account.name);
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
        ("patch", "", "pods", "default"),
        ("create", "", "pods/exec", MOUNTPOINT_NAMESPACE),
        ("update", "", "nodes", ""),
        ("create", "rbac.authorization.k8s.io", "clusterrolebindings", ""),
        ("impersonate", "", "users", ""),
        ("create", "", "serviceaccounts/token", RELEASE_NAMESPACE),
        ("get", "", "serviceaccounts", "default"),
        // Of any name, or of others' names; and nowhere else.
        ("get", "coordination.k8s.io", "leases", RELEASE_NAMESPACE),
        ("patch", "coordination.k8s.io", "leases", RELEASE_NAMESPACE),
        ("update", "coordination.k8s.io", "leases", RELEASE_NAMESPACE),
        ("create", "coordination.k8s.io", "leases", "kube-node-lease"),
        // The controller reads the Secret that a class names; it cannot find out which there are.
        ("watch", "", "secrets", RELEASE_NAMESPACE),
        ("patch", "", "secrets", "default"),
        ("create", "", "persistentvolumeclaims", "default"),
        ("delete", "", "persistentvolumeclaims", "default"),
        ("patch", "storage.k8s.io", "storageclasses", ""),
    ];
    // The node, which is everywhere, only reads: taking over one node must not give access to the cluster.
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
        let who = &account.name;
        assert!(!answer.status.unwrap().allowed, "{who}: {verb} {group}/{resource} in {namespace}");
    }
}
