//! Which objects are packed, and what of them.

use std::collections::{BTreeMap, BTreeSet};

use contract::attachment::MountpointS3PodAttachment;
use contract::names::DRIVER;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};

use crate::answer::answer;
use crate::snapshot::Snapshot;
use crate::workload::claims;

/// By kind. Of what is not the driver's, only what has to do with its volumes.
pub(super) async fn objects(client: &Client, snapshot: &Snapshot) -> BTreeMap<&'static str, Vec<Value>> {
    async fn all<K>(api: Api<K>, keep: impl Fn(&K) -> bool) -> Vec<Value>
    where
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + Serialize,
    {
        let listed =
            answer(api.list(&ListParams::default())).await.map(|list| list.items).unwrap_or_default();
        listed
            .iter()
            .filter(|object| keep(object))
            .filter_map(|object| serde_json::to_value(object).ok())
            .collect()
    }
    let installation = snapshot.installation();
    let release = installation.map(|installation| installation.namespace).unwrap_or_default();
    let volumes: BTreeSet<&str> = snapshot.volumes.iter().map(|volume| volume.name.as_str()).collect();
    let classes: BTreeSet<String> = snapshot
        .classes
        .iter()
        .filter(|class| class.provisioner == DRIVER)
        .map(ResourceExt::name_any)
        .collect();
    let is_our_claim = |claim: &PersistentVolumeClaim| {
        let spec = claim.spec.as_ref();
        spec.and_then(|spec| spec.volume_name.as_deref()).is_some_and(|name| volumes.contains(name))
            || spec
                .and_then(|spec| spec.storage_class_name.as_ref())
                .is_some_and(|name| classes.contains(name))
    };
    let ours: BTreeSet<(String, String)> = snapshot
        .claims
        .iter()
        .filter(|claim| is_our_claim(claim))
        .map(|claim| (claim.namespace().unwrap_or_default(), claim.name_any()))
        .collect();
    let is_workload = |pod: &Pod| {
        let namespace = pod.namespace().unwrap_or_default();
        claims(pod).into_iter().any(|claim| ours.contains(&(namespace.clone(), claim)))
    };
    let workloads: BTreeSet<(String, String)> = snapshot
        .pods
        .iter()
        .filter(|pod| is_workload(pod))
        .map(|pod| (pod.namespace().unwrap_or_default(), pod.name_any()))
        .collect();
    let is_our_event = |event: &Event| {
        let object = &event.involved_object;
        let name = object.name.clone().unwrap_or_default();
        let whole = (object.namespace.clone().unwrap_or_default(), name.clone());
        whole.0 == snapshot.mountpoint_namespace
            || (!release.is_empty() && whole.0 == release && name.starts_with("s3-csi-"))
            || workloads.contains(&whole)
            || ours.contains(&whole)
            || volumes.contains(name.as_str())
    };
    let events = snapshot.events.iter().filter(|event| is_our_event(event));
    let workloads =
        snapshot.pods.iter().filter(|pod| is_workload(pod)).filter_map(|pod| serde_json::to_value(pod).ok());
    let driver = snapshot.controllers.iter().chain(&snapshot.node_services);
    let named: fn(&str) -> bool = |name| name.starts_with("s3-csi-");
    BTreeMap::from([
        ("events", events.filter_map(|event| serde_json::to_value(event).ok()).collect()),
        ("workloads", workloads.map(without_content).collect()),
        ("driver-pods", driver.filter_map(|pod| serde_json::to_value(pod).ok()).collect()),
        (
            "mountpoint-pods",
            all(Api::<Pod>::namespaced(client.clone(), &snapshot.mountpoint_namespace), |_| true).await,
        ),
        ("attachments", all(Api::<MountpointS3PodAttachment>::all(client.clone()), |_| true).await),
        (
            "volumes",
            all(Api::<PersistentVolume>::all(client.clone()), |volume| {
                volumes.contains(volume.name_any().as_str())
            })
            .await,
        ),
        ("claims", all(Api::<PersistentVolumeClaim>::all(client.clone()), is_our_claim).await),
        ("classes", all(Api::<StorageClass>::all(client.clone()), |class| class.provisioner == DRIVER).await),
        ("deployments", all(Api::<Deployment>::all(client.clone()), |it| named(&it.name_any())).await),
        ("daemon-sets", all(Api::<DaemonSet>::all(client.clone()), |it| named(&it.name_any())).await),
        ("nodes", all(Api::<Node>::all(client.clone()), |_| true).await),
        ("csi-nodes", all(Api::<CSINode>::all(client.clone()), |_| true).await),
        ("csi-drivers", all(Api::<CSIDriver>::all(client.clone()), |_| true).await),
        ("definition", snapshot.definition.iter().filter_map(|it| serde_json::to_value(it).ok()).collect()),
        (
            "secrets",
            snapshot
                .secrets
                .iter()
                .map(|(name, state)| json!({"name": name, "state": format!("{state:?}")}))
                .collect(),
        ),
    ])
}

/// What a user's containers run, and with which variables, is not ours to pass on.
fn without_content(mut pod: Value) -> Value {
    for kind in ["containers", "initContainers", "ephemeralContainers"] {
        for container in
            pod["spec"][kind].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut)
        {
            for field in [
                "command",
                "args",
                "env",
                "envFrom",
                "lifecycle",
                "livenessProbe",
                "readinessProbe",
                "startupProbe",
            ] {
                container.remove(field);
            }
        }
    }
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        metadata.remove("annotations");
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_users_container_runs_is_not_passed_on() {
        let pod = json!({
            "metadata": {"name": "web", "annotations": {"a": "secret"}},
            "spec": {"containers": [{"name": "main", "image": "i", "env": [{"name": "X", "value": "secret"}], "args": ["secret"]}]},
        });
        let text = without_content(pod).to_string();
        assert!(text.contains("\"image\":\"i\"") && !text.contains("secret"), "{text}");
    }
}
