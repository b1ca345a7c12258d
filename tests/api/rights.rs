//! Controller and node can do what Helm gives them, and nothing else. That they need it is in `needed`.

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::Api;
use kube::api::PostParams;
use s3_csi_tests::Stage;
use s3_csi_tests::account::{Account, CONTROLLER, MOUNTPOINT_NAMESPACE, NODE, RELEASE_NAMESPACE};
use s3_csi_tests::chart::Granted;
use s3_csi_tests::right::{Right, granted};
use serde_json::json;
use std::collections::BTreeSet;

/// Verb, API group, resource, and namespace.
type Request = (&'static str, &'static str, &'static str, &'static str);

const PATCH_ANY_POD: Request = ("patch", "", "pods", "default");
const GET_ANY_ACCOUNT: Request = ("get", "", "serviceaccounts", "default");

/// Values with which the chart renders other rules for the controller, and which of the requests below they allow.
const VALUES: &[(&str, &[Request])] = &[
    ("podIdentity.enabled=true", &[GET_ANY_ACCOUNT]),
    ("mountpointPod.reserveHeadroom=true", &[PATCH_ANY_POD]),
    ("sidecars.enabled=true", &[]),
    ("provisioning.enabled=false", &[]),
];

/// The account that the controller has with these values.
async fn controller_with(stage: &Stage, number: usize, value: &str) -> (Account, Vec<Granted>) {
    let roles = CONTROLLER.roles(&[value]);
    (CONTROLLER.variant(&stage.here.client, &format!("values-{number}"), &roles).await, roles)
}

fn rights_in(roles: &[Granted], namespace: &str) -> BTreeSet<Right> {
    let here = roles.iter().filter(|role| role.namespace.as_deref().is_none_or(|it| it == namespace));
    here.flat_map(|role| role.rights.clone()).collect()
}

#[tokio::test]
async fn the_accounts_have_the_rendered_rights_and_no_others() {
    let stage = Stage::set("rights").await;
    let namespaces = [stage.here.namespace.as_str(), MOUNTPOINT_NAMESPACE, RELEASE_NAMESPACE];
    let (of_controller, of_node) = (CONTROLLER.roles(&[]), NODE.roles(&[]));
    let mut accounts = vec![(CONTROLLER, of_controller.clone()), (NODE, of_node.clone())];
    for (number, (value, _)) in VALUES.iter().enumerate() {
        let (account, roles) = controller_with(&stage, number, value).await;
        let differs = |namespace| rights_in(&roles, namespace) != rights_in(&of_controller, namespace);
        assert!(namespaces.into_iter().any(differs), "{value} changes nothing");
        accounts.push((account, roles));
        for namespace in namespaces {
            let node = rights_in(&NODE.roles(&[*value]), namespace);
            assert_eq!(node, rights_in(&of_node, namespace), "{value} is none of the node's business");
        }
    }
    for (account, roles) in accounts {
        for namespace in namespaces {
            let here = rights_in(&roles, namespace);
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
        PATCH_ANY_POD,
        ("create", "", "pods/exec", MOUNTPOINT_NAMESPACE),
        ("update", "", "nodes", ""),
        ("create", "rbac.authorization.k8s.io", "clusterrolebindings", ""),
        ("impersonate", "", "users", ""),
        ("create", "", "serviceaccounts/token", RELEASE_NAMESPACE),
        GET_ANY_ACCOUNT,
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
        // Of no use to a csi-provisioner for a driver without topology, which only writes Events.
        ("get", "storage.k8s.io", "csinodes", ""),
        ("list", "", "events", "default"),
        ("update", "", "events", "default"),
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
    let of_node: Vec<Request> = [&both[..], &node].concat();
    let mut accounts = vec![(CONTROLLER, both.to_vec(), &[][..]), (NODE, of_node, &[][..])];
    for (number, (value, allowed)) in VALUES.iter().enumerate() {
        accounts.push((controller_with(&stage, number, value).await.0, both.to_vec(), *allowed));
    }
    for (account, requests, allowed) in accounts {
        for request in requests {
            let (verb, group, resource, namespace) = request;
            let review = json!({"spec": {"user": account.user(), "resourceAttributes": {
                "verb": verb, "group": group, "resource": resource, "namespace": namespace,
            }}});
            let answer: SubjectAccessReview = Api::all(stage.here.client.clone())
                .create(&PostParams::default(), &serde_json::from_value(review).unwrap())
                .await
                .unwrap();
            let is_allowed = answer.status.unwrap().allowed;
            assert_eq!(is_allowed, allowed.contains(&request), "{}: {request:?}", account.name);
        }
    }
}
