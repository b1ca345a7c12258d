//! Which workload has which bucket, by which Mountpoint Pod, and how that goes.

use contract::attachment::{MountpointS3PodAttachment, WorkloadAttachment};
use contract::mountpoint_pod::{MountpointPod, Phase};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde::Serialize;
use strum::IntoStaticStr;

use crate::events::{self, message, mount_failure, mount_trouble};
use crate::readable::Readable;
use crate::snapshot::Snapshot;
use crate::why::unhealthy;
use crate::workload::has_volumes;

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    pub namespace: String,
    pub workload: String,
    pub volume: String,
    pub bucket: String,
    pub node: String,
    pub mountpoint_pod: String,
    pub attachment: String,
    /// When the workload was attached.
    pub since: Timestamp,
    pub state: State,
    /// Version of the driver that made the Mountpoint Pod.
    pub version: String,
    pub last_error: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, IntoStaticStr)]
#[strum(const_into_str)]
pub enum State {
    Mounted,
    /// The Mountpoint Pod or the kubelet is not done yet.
    Mounting,
    /// It needs help.
    Failed,
    /// Mounted, by a Mountpoint Pod that takes no more workloads.
    Draining,
    /// The workload is gone, and its attachment is about to be.
    Leaving,
    /// The Mountpoint Pods may not be read.
    Unknown,
}

/// Of one namespace, or of all.
pub fn mounts(snapshot: &Snapshot, namespace: Option<&str>) -> Vec<Mount> {
    let mut found = Vec::new();
    for attachment in &snapshot.attachments {
        for (mountpoint_pod, workloads) in &attachment.spec.mountpoint_pods {
            found.extend(workloads.iter().map(|entry| mount(snapshot, attachment, mountpoint_pod, entry)));
        }
    }
    found.retain(|mount| namespace.is_none_or(|namespace| mount.namespace == namespace));
    found.sort_by(|one, other| {
        (&one.namespace, &one.workload, &one.volume).cmp(&(&other.namespace, &other.workload, &other.volume))
    });
    found
}

fn mount(
    snapshot: &Snapshot,
    attachment: &MountpointS3PodAttachment,
    mountpoint_pod: &str,
    entry: &WorkloadAttachment,
) -> Mount {
    let spec = &attachment.spec;
    let workload =
        snapshot.pods.iter().find(|pod| pod.metadata.uid.as_ref() == Some(&entry.workload_pod_uid));
    let volume = snapshot.volume(&spec.persistent_volume_name);
    let claim = volume.and_then(|volume| volume.claim.clone());
    let served_by = snapshot.mountpoint_pod(mountpoint_pod);
    Mount {
        // A workload that is gone was in the namespace of the claim.
        namespace: workload
            .and_then(ResourceExt::namespace)
            .or(claim.map(|claim| claim.0))
            .unwrap_or_default(),
        workload: workload.map_or_else(|| format!("({})", entry.workload_pod_uid), ResourceExt::name_any),
        volume: spec.persistent_volume_name.clone(),
        bucket: volume.map(|volume| volume.bucket.clone()).unwrap_or_default(),
        node: spec.node_name.clone(),
        mountpoint_pod: mountpoint_pod.to_owned(),
        attachment: attachment.name_any(),
        since: entry.attachment_time.0,
        state: state(snapshot, workload, served_by),
        version: served_by.map(|served_by| served_by.driver_version.clone()).unwrap_or_default(),
        last_error: last_error(snapshot, workload, attachment, served_by),
    }
}

fn state(snapshot: &Snapshot, workload: Option<&Pod>, served_by: Option<&MountpointPod>) -> State {
    let Some(workload) = workload else { return State::Leaving };
    let Some(served_by) = served_by else {
        let readable = snapshot.is_readable(Readable::MountpointPods);
        return if readable { State::Mounting } else { State::Unknown };
    };
    match served_by.phase {
        _ if served_by.start_failure.is_some() => State::Failed,
        Phase::Running if !has_volumes(workload) => State::Mounting,
        Phase::Running if served_by.is_ending() || served_by.no_new_workload => State::Draining,
        Phase::Running => State::Mounted,
        Phase::Pending | Phase::Unknown => State::Mounting,
        Phase::Succeeded | Phase::Failed => State::Failed,
    }
}

/// The newest of what the kubelet and the driver said about it, unless it is over.
fn last_error(
    snapshot: &Snapshot,
    workload: Option<&Pod>,
    attachment: &MountpointS3PodAttachment,
    served_by: Option<&MountpointPod>,
) -> String {
    if let Some(failure) = served_by.and_then(|served_by| served_by.start_failure.as_ref()) {
        return failure.to_string();
    }
    if let Some((reason, said)) = unhealthy(attachment) {
        return format!("{reason}: {said}");
    }
    let Some(workload) = workload else { return String::new() };
    let (namespace, name, uid) = (workload.namespace(), workload.name_any(), workload.uid());
    let about =
        events::Subject { kind: "Pod", namespace: namespace.as_deref(), name: &name, uid: uid.as_deref() };
    if let Some(event) = mount_trouble(&snapshot.events, about) {
        return message(event).to_owned();
    }
    if has_volumes(workload) {
        return String::new();
    }
    let failed = mount_failure(&snapshot.events, about, &attachment.spec.persistent_volume_name);
    failed.map(|failure| failure.message).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::tests::{event, recovery};
    use crate::why::scene::{attachment, mountpoint_pod, running, scene};
    use crate::workload::tests::pod;
    use serde_json::json;

    fn only(snapshot: &Snapshot) -> Mount {
        let mut all = mounts(snapshot, Some("ns"));
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    #[test]
    fn a_workload_is_shown_with_all_that_serves_it() {
        let mut snapshot = scene();
        snapshot.pods = vec![running()];
        let mount = only(&snapshot);
        assert_eq!(
            (mount.workload.as_str(), mount.bucket.as_str(), mount.node.as_str()),
            ("web", "bucket", "n")
        );
        assert_eq!((mount.mountpoint_pod.as_str(), mount.version.as_str()), ("mp-1", "1.0.0"));
        assert_eq!((mount.state, mount.last_error.as_str()), (State::Mounted, ""));
        assert!(mounts(&snapshot, Some("elsewhere")).is_empty());
        assert_eq!(mounts(&snapshot, None).len(), 1);
    }

    #[test]
    fn states_follow_from_workload_and_mountpoint_pod() {
        let failed = json!({"phase": "Pending", "containerStatuses": [{"name": "m", "image": "", "imageID": "", "ready": false,
            "restartCount": 0, "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]});
        for (workload, mountpoint, state) in [
            (Some(running()), json!({"phase": "Running"}), State::Mounted),
            (Some(pod(&json!({}))), json!({"phase": "Running"}), State::Mounting),
            (Some(pod(&json!({}))), json!({"phase": "Pending"}), State::Mounting),
            (Some(pod(&json!({}))), failed, State::Failed),
            (None, json!({"phase": "Running"}), State::Leaving),
        ] {
            let mut snapshot = scene();
            snapshot.pods = workload.into_iter().collect();
            snapshot.mountpoint_pods = vec![mountpoint_pod(&mountpoint)];
            assert_eq!(only(&snapshot).state, state, "{mountpoint}");
        }
    }

    #[test]
    fn an_error_is_shown_until_it_is_over() {
        let said = "MountVolume.SetUp failed for volume \"pv\" : rpc error: code = NotFound desc = there is no bucket";
        let mut snapshot = scene();
        snapshot.pods = vec![pod(&json!({}))];
        snapshot.events = vec![event("Pod", "web", "FailedMount", said, 1)];
        assert_eq!(only(&snapshot).last_error, "there is no bucket");
        let other = said.replace("\"pv\"", "\"pv2\"").replace("there is no bucket", "of another volume");
        snapshot.events.push(event("Pod", "web", "FailedMount", &other, 2));
        assert_eq!(only(&snapshot).last_error, "there is no bucket");
        snapshot.pods = vec![running()];
        assert_eq!(only(&snapshot).last_error, "", "it has its volumes now");
        snapshot.events = vec![event("Pod", "web", "BucketMountLost", "gone", 1)];
        assert_eq!(only(&snapshot).last_error, "gone");
        snapshot.events.push(recovery("Pod", "web", "BucketMountRestored", "back", 2));
        assert_eq!(only(&snapshot).last_error, "");
        snapshot.events.push(event("Pod", "web", "BucketCredentialsExpired", "expired", 1));
        assert_eq!(only(&snapshot).last_error, "expired", "which the new mount does not change");
        snapshot.events.push(recovery("Pod", "web", "BucketCredentialsRenewed", "renewed", 3));
        assert_eq!(only(&snapshot).last_error, "");
        snapshot.attachments =
            vec![attachment(&json!([{"type": "Healthy", "status": "False", "reason": "R", "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]))];
        assert_eq!(only(&snapshot).last_error, "R: m");
    }
}
