//! One rule of the driver, checked: what an attachment names exists and is healthy, and nothing else is left.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use super::finding::{Check, Finding, Level};
use crate::snapshot::Snapshot;
use crate::why::unhealthy;

/// The controller acts within a second; a busy one within a few.
const SETTLES_WITHIN: SignedDuration = SignedDuration::from_mins(1);
/// The grace period of Mountpoint Pods is ten minutes.
const DRAINS_WITHIN: SignedDuration = SignedDuration::from_mins(15);
/// A controller that runs would have done it already.
const CHECK_CONTROLLER: &str = "check that the controller is running, and see its log";

pub(super) fn attachments(snapshot: &Snapshot) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    let finding =
        |level, object: String, message: String| Finding::new(Check::Attachments, level, object, message);
    let older = |time: Option<&Time>, than: SignedDuration| {
        time.is_none_or(|time| snapshot.now.duration_since(time.0) > than)
    };
    for (name, error) in &snapshot.malformed_attachments {
        let message = format!("cannot be parsed: {error}");
        found.push(
            finding(Level::Error, name.clone(), message).remedy(format!("kubectl get s3pa {name} -o yaml")),
        );
    }
    let uids: BTreeSet<&str> = snapshot.pods.iter().filter_map(|pod| pod.metadata.uid.as_deref()).collect();
    let mut listed = BTreeSet::new();
    for attachment in &snapshot.attachments {
        let name = attachment.name_any();
        listed.extend(attachment.spec.mountpoint_pods.keys().map(String::as_str));
        if let Some((reason, message)) = unhealthy(attachment) {
            let finding = finding(Level::Error, name.clone(), format!("{reason}: {message}"));
            found.push(finding.remedy(format!("kubectl describe s3pa {name}")));
        }
        if !older(attachment.metadata.creation_timestamp.as_ref(), SETTLES_WITHIN) {
            continue;
        }
        for pod in attachment.spec.mountpoint_pods.keys().filter(|pod| snapshot.mountpoint_pod(pod).is_none())
        {
            let message = format!("names Mountpoint Pod {pod}, which does not exist");
            found.push(finding(Level::Error, name.clone(), message).remedy(CHECK_CONTROLLER));
        }
        let gone = attachment.spec.workload_uids().filter(|uid| !uids.contains(uid)).count();
        if gone > 0 {
            let message = format!("lists {gone} workloads that no longer exist");
            found.push(finding(Level::Warning, name, message).remedy(CHECK_CONTROLLER));
        }
    }
    for pod in &snapshot.mountpoint_pods {
        let object = format!("{}/{}", snapshot.mountpoint_namespace, pod.name);
        let is_listed = listed.contains(pod.name.as_str());
        if !is_listed && pod.warm.is_none() && !pod.is_ending() && older(pod.created.as_ref(), SETTLES_WITHIN)
        {
            let message =
                "no attachment names this Mountpoint Pod, and it is not marked for unmounting".to_owned();
            found.push(finding(Level::Warning, object, message).remedy(CHECK_CONTROLLER));
        } else if !is_listed && pod.is_ending() && older(pod.created.as_ref(), DRAINS_WITHIN) {
            let message = "this Mountpoint Pod should have unmounted".to_owned();
            let remedy = format!(
                "check that the node service of node {} is running",
                pod.node.as_deref().unwrap_or("?")
            );
            found.push(finding(Level::Warning, object, message).remedy(remedy));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::why::scene::{attachment, mountpoint_pod, scene};
    use contract::mountpoint_pod::Warm;
    use serde_json::json;

    fn found(change: impl FnOnce(&mut Snapshot)) -> Vec<String> {
        let mut snapshot = scene();
        change(&mut snapshot);
        attachments(&snapshot).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn what_is_named_exists_and_is_healthy() {
        assert!(found(|_| {}).is_empty());
        let condition = json!([{"type": "Healthy", "status": "False", "reason": "MountpointPodUnschedulable", "message": "full",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        assert_eq!(
            found(|it| it.attachments = vec![attachment(&condition)]),
            ["MountpointPodUnschedulable: full"]
        );
        assert_eq!(
            found(|it| it.mountpoint_pods.clear()),
            ["names Mountpoint Pod mp-1, which does not exist"]
        );
        assert_eq!(found(|it| it.pods.clear()), ["lists 1 workloads that no longer exist"]);
        let malformed =
            |it: &mut Snapshot| it.malformed_attachments = vec![("s3pa-2".into(), "no nodeName".into())];
        assert_eq!(found(malformed), ["cannot be parsed: no nodeName"]);
    }

    #[test]
    fn nothing_else_is_left() {
        let orphan = found(|it| it.attachments.clear());
        assert!(orphan[0].contains("no attachment names"), "{orphan:?}");
        let young = found(|it| {
            it.attachments.clear();
            it.now = "2026-01-01T00:00:10Z".parse().unwrap();
        });
        assert!(young.is_empty(), "the controller may be about to act");
        let ready = found(|it| {
            it.attachments.clear();
            it.mountpoint_pods[0].warm = Some(Warm { node: "n".to_owned(), shape: String::new() });
        });
        assert!(ready.is_empty(), "it waits for a volume");
        let mut draining = mountpoint_pod(&json!({"phase": "Running"}));
        draining.needs_unmount = true;
        let stuck = found(|it| {
            it.attachments.clear();
            it.mountpoint_pods = vec![draining];
            it.now = "2026-01-01T01:00:00Z".parse().unwrap();
        });
        assert_eq!(stuck, ["this Mountpoint Pod should have unmounted"]);
    }
}
