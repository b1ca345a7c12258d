//! What other drivers and other installations left behind, and kernels that cannot do everything.

use std::collections::BTreeSet;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::{DRIVER, NOT_READY_TAINT};
use k8s_openapi::api::core::v1::Node;
use kube::{CustomResourceExt as _, ResourceExt};

use super::finding::{Check, Finding, Level};
use crate::snapshot::Snapshot;
use crate::workload::{self, is_ready};

/// Drivers that mount S3 buckets, which may be moved from.
const OTHERS: &[&str] = &["s3.csi.aws.com", "ru.yandex.s3.csi", "ch.ctrox.csi.s3-driver"];
/// The first kernel that sends requests again to another server of a mount.
const RESEND: (u32, u32) = (6, 9);

pub(super) fn leftovers(snapshot: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    let finding =
        |level, object: String, message: String| Finding::new(Check::Leftovers, level, object, message);
    let places = |namespaces: BTreeSet<String>| namespaces.into_iter().collect::<Vec<_>>().join(", ");
    let namespaces = |all: Vec<Option<String>>| all.into_iter().flatten().collect::<BTreeSet<String>>();
    let controllers = namespaces(snapshot.deployments.iter().map(ResourceExt::namespace).collect());
    let services = namespaces(snapshot.daemon_sets.iter().map(ResourceExt::namespace).collect());
    for all in [controllers, services].into_iter().filter(|all| all.len() > 1) {
        let message = format!("the driver is installed more than once: in namespaces {}", places(all));
        found.push(finding(Level::Error, DRIVER.to_owned(), message).remedy("uninstall all but one of them"));
    }
    let stored = snapshot
        .definition
        .iter()
        .filter_map(|definition| definition.status.as_ref()?.stored_versions.as_ref());
    let current = MountpointS3PodAttachment::crd().spec.versions.first().map(|version| version.name.clone());
    for version in stored.flatten().filter(|version| Some(*version) != current.as_ref()) {
        let message = format!("attachments may be stored as version {version} of an older driver");
        let name = MountpointS3PodAttachment::crd_name();
        let remedy = format!(
            "once there are none: kubectl patch crd {name} --subresource=status --type=merge \
             -p '{{\"status\": {{\"storedVersions\": [\"v2\"]}}}}'"
        );
        found.push(finding(Level::Warning, name.to_owned(), message).remedy(remedy));
    }
    for other in
        snapshot.csi_drivers.iter().map(ResourceExt::name_any).filter(|name| OTHERS.contains(&name.as_str()))
    {
        let message = "another S3 driver is installed as well; it keeps serving its own volumes".to_owned();
        found.push(finding(Level::Info, other, message).remedy("uninstall it when no volume names it"));
    }
    for node in snapshot.nodes.iter().filter(|node| is_tainted(node)) {
        let name = node.name_any();
        let ready =
            snapshot.node_services.iter().any(|pod| is_ready(pod) && workload::node(pod) == Some(&name));
        if ready {
            let message = format!("has the taint {NOT_READY_TAINT}, though its node service is ready");
            let remedy = format!("kubectl taint node {name} {NOT_READY_TAINT}-");
            found.push(finding(Level::Warning, name, message).remedy(remedy));
        }
    }
    found
}

fn is_tainted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().any(|taint| taint.key == NOT_READY_TAINT)
}

pub(super) fn kernels(snapshot: &Snapshot) -> Vec<Finding> {
    let kernel = |node: &Node| Some(node.status.as_ref()?.node_info.as_ref()?.kernel_version.clone());
    let kernels = snapshot.nodes.iter().filter_map(|node| Some((node.name_any(), kernel(node)?)));
    let old = kernels.filter(|(_, kernel)| version(kernel).is_some_and(|version| version < RESEND));
    old.map(|(node, kernel)| {
        let message = format!(
            "kernel {kernel} cannot send requests again: when a mount process dies, programs get errors until the bucket is \
             mounted anew"
        );
        Finding::new(Check::Kernel, Level::Info, node, message).remedy("6.9 or newer can")
    })
    .collect()
}

/// `6.1.0-28-amd64`
fn version(kernel: &str) -> Option<(u32, u32)> {
    let mut numbers = kernel.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::installation::tests::daemon_set;
    use crate::why::scene::scene;
    use serde_json::json;

    fn found(change: impl FnOnce(&mut Snapshot)) -> Vec<(Level, String)> {
        let mut snapshot = scene();
        change(&mut snapshot);
        leftovers(&snapshot).into_iter().map(|finding| (finding.level, finding.message)).collect()
    }

    #[test]
    fn a_driver_is_installed_once() {
        assert!(found(|_| {}).is_empty());
        let twice = found(|it| {
            let mut other = daemon_set(1, 1);
            other.metadata.namespace = Some("storage".to_owned());
            it.daemon_sets.push(other);
        });
        assert!(twice[0].0 == Level::Error && twice[0].1.contains("kube-system, storage"), "{twice:?}");
    }

    #[test]
    fn leftovers_of_others_are_named() {
        let stored = found(|it| {
            let mut definition = MountpointS3PodAttachment::crd();
            definition.status = serde_json::from_value(json!({"storedVersions": ["v1", "v2"]})).unwrap();
            it.definition = Some(definition);
        });
        assert!(stored.len() == 1 && stored[0].1.contains("version v1"), "{stored:?}");
        let other = found(|it| {
            it.csi_drivers = vec![
                serde_json::from_value(json!({"metadata": {"name": "s3.csi.aws.com"}, "spec": {}})).unwrap(),
            ];
        });
        assert_eq!(other[0].0, Level::Info);
        let tainted = found(|it| {
            it.nodes[0].spec =
                serde_json::from_value(json!({"taints": [{"key": NOT_READY_TAINT, "effect": "NoSchedule"}]}))
                    .unwrap();
        });
        assert!(tainted[0].1.contains("though its node service is ready"), "{tainted:?}");
    }

    #[test]
    fn kernels_are_compared_by_number() {
        for (kernel, old) in [
            ("6.1.0-28-amd64", true),
            ("6.8.12", true),
            ("6.9.0", false),
            ("6.12.3+deb13", false),
            ("7.0", false),
            ("odd", false),
        ] {
            let mut snapshot = scene();
            snapshot.nodes[0].status.as_mut().unwrap().node_info.as_mut().unwrap().kernel_version =
                kernel.to_owned();
            assert_eq!(kernels(&snapshot).len(), usize::from(old), "{kernel}");
        }
    }
}
