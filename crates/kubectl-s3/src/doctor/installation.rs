//! The parts of the driver: there, of one version, and at work.

use std::collections::BTreeSet;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::DRIVER;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinitionVersion;
use kube::{CustomResourceExt as _, ResourceExt as _};

use super::finding::{Check, Finding, Level};
use crate::installation::{CONTROLLER, NODE_SERVICE};
use crate::snapshot::Snapshot;
use crate::why::{is_node_ready, is_registered};
use crate::workload::{self, chart_version, image, is_ready, start_failure};

/// The controller may change the definition, but not create it.
const CREATE: &str = "helm show crds CHART | kubectl apply --server-side --filename -; the controller only updates a \
                      definition that is there";
const UPDATE: &str = "restart the controller, which updates the definition at its start, and logs why if it cannot; if it is \
                      older than this plugin, upgrade the driver";

/// Compared with the definition that this version of the driver generates.
pub(super) fn definition(snapshot: &Snapshot) -> Vec<Finding> {
    let expected = MountpointS3PodAttachment::crd();
    let finding =
        |level, message: String| Finding::new(Check::Definition, level, expected.name_any(), message);
    let Some(found) = &snapshot.definition else {
        let message = "the CRD of attachments is not installed: new pods wait".to_owned();
        return vec![finding(Level::Error, message).remedy(CREATE)];
    };
    let wrong = |level, message: String| vec![finding(level, message).remedy(UPDATE)];
    let Some(mine) = expected.spec.versions.first() else { return Vec::new() };
    let Some(its) = found.spec.versions.iter().find(|version| version.name == mine.name && version.served)
    else {
        return wrong(Level::Error, format!("the CRD does not serve version {}", mine.name));
    };
    let selectable = |version: &CustomResourceDefinitionVersion| -> BTreeSet<String> {
        version.selectable_fields.iter().flatten().map(|field| field.json_path.clone()).collect()
    };
    if let Some(missing) = selectable(mine).difference(&selectable(its)).next() {
        return wrong(Level::Error, format!("the CRD is outdated: it has no selectable field {missing}"));
    }
    if let Some(missing) = properties(mine).difference(&properties(its)).next() {
        return wrong(Level::Warning, format!("the CRD is outdated: it has no field {missing}"));
    }
    Vec::new()
}

fn properties(version: &CustomResourceDefinitionVersion) -> BTreeSet<String> {
    let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
    let spec = schema.and_then(|schema| schema.properties.as_ref()?.get("spec"));
    spec.and_then(|spec| spec.properties.as_ref())
        .into_iter()
        .flatten()
        .map(|(name, _)| name.clone())
        .collect()
}

pub(super) fn csi_driver(snapshot: &Snapshot) -> Vec<Finding> {
    let found = snapshot.csi_drivers.iter().find(|driver| driver.name_any() == DRIVER);
    let wrong = |message: &str| {
        let finding = Finding::new(Check::CsiDriver, Level::Error, DRIVER, message);
        vec![finding.remedy("install the chart again")]
    };
    let Some(driver) = found else { return wrong("there is no CSIDriver of this name") };
    for (field, value, expected) in [
        ("attachRequired", driver.spec.attach_required.unwrap_or(true), false),
        ("podInfoOnMount", driver.spec.pod_info_on_mount.unwrap_or(false), true),
        ("requiresRepublish", driver.spec.requires_republish.unwrap_or(false), true),
    ] {
        if value != expected {
            return wrong(&format!("`{field}` is {value}, not {expected}"));
        }
    }
    Vec::new()
}

/// Each pod of the driver that does not work.
fn unready(check: Check, pods: &[Pod]) -> impl Iterator<Item = Finding> {
    let unready = pods.iter().filter(|pod| !is_ready(pod) && !workload::phase(pod).has_ended());
    unready.map(move |pod| {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let why =
            start_failure(pod).map_or_else(|| "it is not ready".to_owned(), |failure| failure.to_string());
        let place = workload::node(pod).unwrap_or("no node");
        Finding::new(check, Level::Error, format!("{namespace}/{name}"), format!("on {place}: {why}"))
            .remedy(format!("kubectl logs -n {namespace} {name}"))
    })
}

pub(super) fn controller(snapshot: &Snapshot) -> Vec<Finding> {
    let Some(deployment) = snapshot.deployments.first() else {
        let finding = Finding::new(Check::Controller, Level::Error, CONTROLLER, "there is no controller");
        return vec![finding.remedy("install the chart s3-csi")];
    };
    let mut found: Vec<Finding> = unready(Check::Controller, &snapshot.controllers).collect();
    let ready = deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
    if ready == 0 && found.is_empty() {
        let message = "no controller is ready: new pods wait, and claims get no buckets";
        let remedy = format!(
            "kubectl describe deployment -n {} {CONTROLLER}",
            deployment.namespace().unwrap_or_default()
        );
        found.push(Finding::new(Check::Controller, Level::Error, CONTROLLER, message).remedy(remedy));
    }
    found
}

pub(super) fn node_service(snapshot: &Snapshot) -> Vec<Finding> {
    let error = |object: &str, message: String, remedy: &str| {
        Finding::new(Check::NodeService, Level::Error, object, message).remedy(remedy)
    };
    let Some(daemon_set) = snapshot.daemon_sets.first() else {
        return vec![error(NODE_SERVICE, "there is no node service".to_owned(), "install the chart s3-csi")];
    };
    let mut found: Vec<Finding> = unready(Check::NodeService, &snapshot.node_services).collect();
    let status = daemon_set.status.clone().unwrap_or_default();
    if status.number_ready < status.desired_number_scheduled && found.is_empty() {
        let message = format!("{} of {} are ready", status.number_ready, status.desired_number_scheduled);
        found.push(error(
            NODE_SERVICE,
            message,
            "kubectl describe daemonset -A -l app.kubernetes.io/component=csi-driver",
        ));
    }
    let runs_on = |node: &str| {
        snapshot.node_services.iter().any(|pod| is_ready(pod) && workload::node(pod) == Some(node))
    };
    for csi_node in snapshot.csi_nodes.iter().filter(|node| runs_on(&node.name_any()) && !is_registered(node))
    {
        let message = "the node service runs, but the driver is not registered with the kubelet".to_owned();
        found.push(error(&csi_node.name_any(), message, "check `node.kubeletPath` of the chart"));
    }
    // A workload with a volume of ours can only be scheduled to a node that has the driver if the cluster says so.
    for node in snapshot.nodes.iter().filter(|node| is_node_ready(node) && !runs_on(&node.name_any())) {
        let name = node.name_any();
        if !snapshot.node_services.iter().any(|pod| workload::node(pod) == Some(&name)) {
            let message = "no node service runs here: pods with S3 volumes wait on this node";
            let remedy = "if that is not intended: `node.tolerations`, `node.nodeSelector` and `node.affinity` of the chart";
            found.push(Finding::new(Check::NodeService, Level::Info, name, message).remedy(remedy));
        }
    }
    found
}

pub(super) fn versions(snapshot: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    let driver: Vec<&Pod> = snapshot.controllers.iter().chain(&snapshot.node_services).collect();
    let versions: BTreeSet<String> = driver.iter().map(|pod| chart_version(pod)).collect();
    let images: BTreeSet<&str> = driver.iter().map(|pod| image(pod)).collect();
    let joined = |texts: &BTreeSet<&str>| texts.iter().copied().collect::<Vec<_>>().join(", ");
    if versions.len() > 1 || images.len() > 1 {
        let message = format!("controller and node services run different images: {}", joined(&images));
        let remedy = "wait for the rollout, or delete the pods of the old version";
        found.push(Finding::new(Check::Versions, Level::Warning, "", message).remedy(remedy));
    }
    let plugin = env!("CARGO_PKG_VERSION");
    if let Some(other) = versions.iter().find(|version| !version.is_empty() && *version != plugin) {
        let message = format!("the driver is {other}, this plugin {plugin}: results may be inaccurate");
        found.push(
            Finding::new(Check::Versions, Level::Info, "", message)
                .remedy("use the plugin of the driver's version"),
        );
    }
    let older = snapshot.mountpoint_pods.iter().filter(|pod| !versions.contains(&pod.driver_version));
    let older = older.filter(|_| !versions.is_empty() && !versions.contains("")).count();
    if older > 0 {
        let message = format!("{older} Mountpoint Pods are of another version than the driver");
        let moves = snapshot.installation().is_some_and(|installation| installation.moves_on_upgrade);
        let remedy = if moves {
            "nothing has to be done: their mounts move to pods of the driver's version, one after the other on each node; \
             those that cannot move (Linux before 6.9) stay until their workloads end"
        } else {
            "nothing has to be done: they serve until their workloads end, new workloads get new ones \
             (`mountpointPod.moveOnUpgrade` of the chart is false)"
        };
        found.push(Finding::new(Check::Versions, Level::Info, "", message).remedy(remedy));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::installation::tests::daemon_set;
    use crate::why::scene::{driver_pod, mountpoint_pod, scene};
    use serde_json::json;

    fn levels(findings: &[Finding]) -> Vec<Level> {
        findings.iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn a_definition_is_compared_with_our_own() {
        let mut snapshot = scene();
        assert_eq!(levels(&definition(&snapshot)), [Level::Error]);
        assert!(
            definition(&snapshot)[0].remedy.contains("kubectl apply"),
            "the controller does not create it"
        );
        snapshot.definition = Some(MountpointS3PodAttachment::crd());
        assert_eq!(definition(&snapshot), []);
        let mut outdated = MountpointS3PodAttachment::crd();
        outdated.spec.versions[0].selectable_fields = None;
        snapshot.definition = Some(outdated);
        assert!(definition(&snapshot)[0].message.contains("no selectable field"));
        assert!(definition(&snapshot)[0].remedy.starts_with("restart the controller"));
        let mut other = MountpointS3PodAttachment::crd();
        other.spec.versions[0].name = "v1".to_owned();
        snapshot.definition = Some(other);
        assert!(definition(&snapshot)[0].message.contains("v2"));
    }

    #[test]
    fn the_csi_driver_has_three_fields_that_matter() {
        let mut snapshot = scene();
        assert!(csi_driver(&snapshot)[0].message.contains("no CSIDriver"));
        let driver = |republish: bool| {
            serde_json::from_value(json!({"metadata": {"name": DRIVER},
                "spec": {"attachRequired": false, "podInfoOnMount": true, "requiresRepublish": republish}}))
            .unwrap()
        };
        snapshot.csi_drivers = vec![driver(true)];
        assert_eq!(csi_driver(&snapshot), []);
        snapshot.csi_drivers = vec![driver(false)];
        assert!(csi_driver(&snapshot)[0].message.contains("requiresRepublish"));
    }

    #[test]
    fn programs_that_do_not_work_are_named() {
        let mut snapshot = scene();
        assert_eq!((controller(&snapshot), node_service(&snapshot)), (vec![], vec![]));
        snapshot.controllers = vec![driver_pod("s3-csi-controller-1", false)];
        assert!(controller(&snapshot)[0].object.contains("s3-csi-controller-1"));
        snapshot.deployments.clear();
        assert!(controller(&snapshot)[0].message.contains("no controller"));
        snapshot.daemon_sets = vec![daemon_set(2, 1)];
        assert!(node_service(&snapshot)[0].message.contains("1 of 2"));
        snapshot.csi_nodes[0].spec.drivers.clear();
        assert!(node_service(&snapshot)[1].message.contains("not registered with the kubelet"));
        snapshot.node_services.clear();
        assert_eq!(levels(&node_service(&snapshot)), [Level::Error, Level::Info]);
    }

    #[test]
    fn versions_that_differ_are_reported() {
        let mut snapshot = scene();
        snapshot.mountpoint_pods.clear();
        let other = versions(&snapshot);
        assert!(other[0].message.contains("this plugin"), "{other:?}");
        let mut next = driver_pod("s3-csi-node-2", true);
        next.spec.as_mut().unwrap().containers[0].image = Some("s3-csi/driver:2".to_owned());
        snapshot.node_services.push(next);
        assert_eq!(versions(&snapshot)[0].level, Level::Warning);
        let mut old = mountpoint_pod(&json!({"phase": "Running"}));
        old.driver_version = "0.9.0".to_owned();
        snapshot.mountpoint_pods = vec![old];
        let moving = &versions(&snapshot)[2];
        assert!(moving.message.contains("1 Mountpoint Pods") && moving.remedy.contains("move to pods"));
        let template = &mut snapshot.deployments[0].spec.as_mut().unwrap().template;
        let container = &mut template.spec.as_mut().unwrap().containers[0];
        let variable = json!([{"name": "MOVE_ON_UPGRADE", "value": "false"}]);
        container.env = serde_json::from_value(variable).unwrap();
        assert!(versions(&snapshot)[2].remedy.contains("until their workloads end, new workloads"));
    }
}
