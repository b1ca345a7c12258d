//! What stops the last links of a chain: attachment, Mountpoint Pod, mount.

use contract::names::mount_event;
use serde_json::{Value, json};

use super::scene::{attachment, driver_pod, mountpoint_pod, running};
use super::tests::{NOW, answer, stops, waiting};
use super::*;
use crate::events::tests::{event, recovery};
use crate::readable::Readable;

#[test]
fn attachments_stop_the_chain() {
    stops(|it| it.attachments.clear(), Step::Attachment, "AttachmentPending", "log");
    let alone = |it: &mut Snapshot| {
        it.attachments.clear();
        it.controllers = vec![driver_pod("s3-csi-controller-1", false)];
    };
    stops(alone, Step::Attachment, "ControllerNotRunning", "get pods -A -l app=s3-csi-controller");
    let event = |it: &mut Snapshot| {
        it.attachments.clear();
        it.events = vec![event("Pod", "web", "PodIdentityDisabled", "set podIdentity.enabled", NOW)];
    };
    stops(event, Step::Attachment, "PodIdentityDisabled", "podIdentity.enabled");
    let hidden = answer(|it| {
        it.attachments.clear();
        it.unreadable.insert(Readable::Attachments, "forbidden".to_owned());
    });
    assert_eq!(hidden.cause.unwrap().step, Step::Mount, "it goes on with what may be read");
}

#[test]
fn mountpoint_pods_stop_the_chain() {
    let with = |status: Value| move |it: &mut Snapshot| it.mountpoint_pods = vec![mountpoint_pod(&status)];
    for (reason, expected) in [
        ("ErrImagePull", "MountpointPodImagePullFailed"),
        ("CrashLoopBackOff", "MountpointPodCrashing"),
        ("CreateContainerError", "MountpointPodStartFailed"),
    ] {
        stops(with(waiting(reason, "because")), Step::MountpointPod, expected, "because");
    }
    let crashes = with(waiting("CrashLoopBackOff", ""));
    stops(crashes, Step::MountpointPod, "MountpointPodCrashing", "logs -n mounts mp-1 --previous");
    let full = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"}]});
    stops(with(full), Step::MountpointPod, "MountpointPodUnschedulable", "room");
    stops(with(json!({"phase": "Pending"})), Step::MountpointPod, "MountpointPodStarting", "wait");
    stops(|it| it.mountpoint_pods.clear(), Step::MountpointPod, "MountpointPodMissing", "mounts/mp-1");
    let rejected = |it: &mut Snapshot| {
        it.mountpoint_pods.clear();
        it.attachments = vec![attachment(
            &json!([{"type": "Healthy", "status": "False", "reason": "MountpointPodRejected",
            "message": "quota", "lastTransitionTime": "2026-01-01T00:00:00Z"}]),
        )];
    };
    stops(rejected, Step::MountpointPod, "MountpointPodRejected", "quota");
}

#[test]
fn mounts_stop_the_chain() {
    let failed = |code: &str, said: &str| {
        let text =
            format!("MountVolume.SetUp failed for volume \"pv\" : rpc error: code = {code} desc = {said}");
        move |it: &mut Snapshot| it.events = vec![event("Pod", "web", "FailedMount", &text, 1)]
    };
    for (code, word) in [
        ("NotFound", "create bucket bucket"),
        ("PermissionDenied", "allow"),
        ("Unauthenticated", "correct the keys"),
        ("InvalidArgument", "get pv pv"),
        ("Unavailable", "doctor"),
        ("Internal", "logs -n mounts mp-1"),
    ] {
        stops(failed(code, "said"), Step::Mount, "FailedMount", word);
    }
    stops(|_| {}, Step::Mount, "MountPending", "kubelet");
    let another_too = |it: &mut Snapshot| {
        failed("NotFound", "said")(it);
        let text = "MountVolume.SetUp failed for volume \"pv2\" : rpc error: code = Internal desc = of another volume";
        it.events.push(event("Pod", "web", "FailedMount", text, 2));
    };
    stops(another_too, Step::Mount, "FailedMount", "create bucket bucket");
    let lost = |it: &mut Snapshot| {
        it.pods = vec![running()];
        it.events = vec![event("Pod", "web", "BucketMountLost", "the process is gone", 1)];
    };
    stops(lost, Step::Mount, "BucketMountLost", "HostToContainer");
    let restored = answer(|it| {
        lost(it);
        it.events.push(recovery("Pod", "web", "BucketMountRestored", "back", 2));
    });
    assert_eq!(restored.cause, None);
}

#[test]
fn expired_keys_stop_the_chain_until_they_are_renewed() {
    let expired = |it: &mut Snapshot| {
        it.pods = vec![running()];
        it.events = vec![event("Pod", "web", mount_event::KEYS_EXPIRED, "STS does not answer", 1)];
    };
    stops(expired, Step::Mount, "BucketCredentialsExpired", "do what the message says");
    // A mount that dies meanwhile and is restored has the same keys.
    let restored = |it: &mut Snapshot| {
        expired(it);
        it.events.push(recovery("Pod", "web", mount_event::RESTORED, "back", 2));
    };
    stops(restored, Step::Mount, "BucketCredentialsExpired", "STS does not answer");
    let renewed = answer(|it| {
        restored(it);
        it.events.push(recovery("Pod", "web", mount_event::KEYS_RENEWED, "renewed", 3));
    });
    assert_eq!(renewed.cause, None);
    let again = |it: &mut Snapshot| {
        expired(it);
        it.events.push(recovery("Pod", "web", mount_event::KEYS_RENEWED, "renewed", 2));
        it.events.push(event("Pod", "web", mount_event::KEYS_EXPIRED, "STS refuses", 3));
    };
    stops(again, Step::Mount, "BucketCredentialsExpired", "STS refuses");
}

/// It stays the newest Warning, because no Event follows it.
#[test]
fn a_mount_that_survived_its_process_is_not_broken() {
    let survived = answer(|it| {
        it.pods = vec![running()];
        it.events = vec![event("Pod", "web", mount_event::PROCESS_DIED, "another one continues", 1)];
    });
    assert_eq!(survived.cause, None);
}
