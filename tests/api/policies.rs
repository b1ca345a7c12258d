//! What RBAC cannot say, the chart's admission policies do.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use s3_csi_tests::account::{API_SERVER, MOUNTPOINT_NAMESPACE, NODE};
use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::{Value, json};

/// The API server looks for new policies every second or so.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(30);
const TAINT: &str = "s3.csi.scality.com/agent-not-ready";

/// As the node service on this node; with a token of no pod, if on none.
async fn node_service(stage: &Stage, on: Option<&str>) -> Api<Node> {
    let authority = stage.here.cluster.authority();
    let file = NODE.kubeconfig(&stage.here.client, &authority, API_SERVER, on).await;
    let kubeconfig = Kubeconfig::read_from(file).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Api::all(Client::try_from(config).unwrap())
}

fn taints(keys: &[&str]) -> Value {
    let taints: Vec<Value> = keys.iter().map(|key| json!({"key": key, "effect": "NoSchedule"})).collect();
    json!({"spec": {"taints": taints}})
}

async fn patch(nodes: &Api<Node>, name: &str, patch: &Value) -> Result<Node, String> {
    let patched = nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_node_service_changes_the_taint_of_its_own_node_and_nothing_else() {
    let stage = Stage::set("own-taint").await;
    let (own, other) = (stage.node.clone(), format!("{}-b", stage.node));
    stage.add_node(&other).await;
    let administrator = stage.all::<Node>();
    for node in [&own, &other] {
        patch(&administrator, node, &taints(&[TAINT, "others"])).await.unwrap();
    }
    let here = node_service(&stage, Some(&own)).await;
    eventually("the policy is in force", IN_FORCE_WITHIN, || async {
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        let tried = here.patch(&other, &params, &Patch::Merge(taints(&["others"]))).await;
        if tried.is_err() {
            Seen::Yes(())
        } else {
            Seen::NotYet("another node's taint can be removed".to_owned())
        }
    })
    .await;

    let ours_only = "can change only the taint";
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "none"});
    for (node, change, words) in [
        (&other, taints(&["others"]), format!("only its own Node; this token belongs to node '{own}'")),
        (&other, taints(&[TAINT, "others", "more"]), "only its own Node".to_owned()),
        (&own, taints(&[TAINT]), ours_only.to_owned()),
        (&own, taints(&[]), ours_only.to_owned()),
        (&own, taints(&["others", "more"]), ours_only.to_owned()),
        (&own, json!({"spec": {"unschedulable": true}}), ours_only.to_owned()),
        (&own, json!({"metadata": {"labels": {"zone": "mine"}}}), ours_only.to_owned()),
        (&own, json!({"metadata": {"annotations": {"a": "b"}}}), ours_only.to_owned()),
        (&own, json!({"metadata": {"finalizers": ["example.com/forever"]}}), ours_only.to_owned()),
        // The garbage collector deletes a Node whose owner does not exist.
        (&own, json!({"metadata": {"ownerReferences": [owner]}}), ours_only.to_owned()),
        (&own, json!({"spec": {"providerID": "example://another-machine"}}), ours_only.to_owned()),
    ] {
        let refused = patch(&here, node, &change).await.unwrap_err();
        assert!(refused.contains(&words), "{change}: {refused}");
    }
    let nowhere = node_service(&stage, None).await;
    let refused = patch(&nowhere, &own, &taints(&["others"])).await.unwrap_err();
    assert!(refused.contains("this token belongs to node ''"), "{refused}");

    let left = patch(&here, &own, &taints(&["others"])).await.unwrap();
    assert_eq!(left.spec.unwrap().taints.unwrap().len(), 1);
    // Others have the rights that they have.
    patch(&administrator, &other, &json!({"metadata": {"labels": {"zone": "any"}}})).await.unwrap();
}

#[tokio::test]
async fn the_priority_of_mountpoint_pods_is_for_their_namespace_alone() {
    let stage = Stage::set("priority").await;
    let create = async |namespace: &str, class: &str| {
        let pod = json!({
            "metadata": {"generateName": "priority-"},
            "spec": {
                "priorityClassName": class, "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": "none"}],
            },
        });
        let pods = Api::<Pod>::namespaced(stage.here.client.clone(), namespace);
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let created = pods.create(&params, &serde_json::from_value(pod).unwrap()).await;
        created.map_err(|error| error.to_string())
    };
    let tenant = stage.here.namespace.as_str();
    let refused = eventually("a tenant is refused", IN_FORCE_WITHIN, || async {
        match create(tenant, "mount-s3-critical").await {
            Err(refused) => Seen::Yes(refused),
            Ok(_) => Seen::NotYet("a tenant may use the priority of Mountpoint Pods".to_owned()),
        }
    })
    .await;
    assert!(refused.contains("is for the Mountpoint Pods in namespace mount-s3"), "{refused}");
    let made = create(MOUNTPOINT_NAMESPACE, "mount-s3-critical").await.unwrap();
    assert_eq!(made.spec.unwrap().priority, Some(1_000_000_000));
    create(tenant, "system-node-critical").await.unwrap();
}
