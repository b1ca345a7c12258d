//! The last links: attachment, Mountpoint Pod, mount.

use contract::attachment::MountpointS3PodAttachment;
use contract::mountpoint_pod::Phase;
use contract::names::mount_event;
use controller::events::Reason;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt as _;

use super::link::Outcome;
use super::subject::Subject;
use crate::events::{self, MountFailure, last_seen, message, mount_failure, newest};
use crate::installation::CONTROLLER;
use crate::readable::Readable;
use crate::secret::SecretName;
use crate::volume::VolumeFacts;
use crate::workload::is_ready;

/// Why the controller does not attach a workload.
const UNATTACHED: &[Reason] = &[
    Reason::InvalidVolumeAttributes,
    Reason::PersistentVolumeMissing,
    Reason::MountpointPodRejected,
    Reason::ServiceAccountMissing,
    Reason::PodIdentityDisabled,
];
/// Why a Mountpoint Pod does not serve, from the Events of its workloads.
const UNSERVED: &[Reason] = &[
    Reason::MountpointPodUnschedulable,
    Reason::MountpointPodImagePullFailed,
    Reason::MountpointPodCrashing,
    Reason::MountpointPodStartFailed,
    Reason::MountpointPodFailed,
];
/// The controller repeats these Events every ten minutes while they are true.
const TRUE_FOR: SignedDuration = SignedDuration::from_mins(11);

/// What `choose` takes of the Events, about the pod.
fn about_pod<'a, T>(
    subject: Subject<'a>,
    choose: impl FnOnce(&'a [Event], events::Subject<'_>) -> Option<T>,
) -> Option<T> {
    let (namespace, name, uid) = (subject.namespace(), subject.pod.name_any(), subject.pod.uid());
    let about =
        events::Subject { kind: "Pod", namespace: Some(&namespace), name: &name, uid: uid.as_deref() };
    choose(&subject.snapshot.events, about)
}

fn newest_on_pod<'a>(subject: Subject<'a>, reasons: &[&str]) -> Option<&'a Event> {
    about_pod(subject, |all, about| newest(all, about, reasons))
}

/// What the controller says about the pod: all that a user sees who may read nothing but this namespace.
fn reported(subject: Subject<'_>, reasons: &[Reason]) -> Option<Outcome> {
    let names: Vec<&str> = reasons.iter().map(|reason| (*reason).into()).collect();
    let event = newest_on_pod(subject, &names)?;
    let is_true = subject.snapshot.now.duration_since(last_seen(event)) < TRUE_FOR;
    is_true.then(|| {
        Outcome::stop(
            "",
            event.reason.clone().unwrap_or_default(),
            message(event),
            "do what the message says",
            subject.describe_pod(),
        )
    })
}

/// Why the attachment's condition rejects its Mountpoint Pods.
pub(crate) fn unhealthy(attachment: &MountpointS3PodAttachment) -> Option<(&str, &str)> {
    let conditions = attachment.status.iter().flat_map(|status| &status.conditions);
    let mut wrong =
        conditions.filter(|condition| condition.type_ == "Healthy" && condition.status == "False");
    wrong.next().map(|condition| (condition.reason.as_str(), condition.message.as_str()))
}

pub(super) fn attachment(
    subject: Subject<'_>,
    volume: Option<&VolumeFacts>,
    attachment: Option<&MountpointS3PodAttachment>,
) -> Outcome {
    let snapshot = subject.snapshot;
    if let Some(attachment) = attachment {
        return Outcome::pass(attachment.name_any(), "lists the pod");
    }
    // Volumes of the driver's first version were mounted without one.
    if subject.is_mounted() {
        return Outcome::pass(
            "",
            "none: the volume was mounted before the pod was attached, or the pod is leaving",
        );
    }
    if let Some(stop) = reported(subject, UNATTACHED) {
        return stop;
    }
    if !snapshot.is_readable(Readable::Attachments) {
        return Outcome::unknown("", "not readable");
    }
    if volume.is_none() {
        return Outcome::unknown("", "");
    }
    if snapshot.is_readable(Readable::DriverPods) && !snapshot.controllers.iter().any(is_ready) {
        let message = "no controller of the driver is ready, so the pod is not attached";
        let pods = format!("kubectl get pods -A -l app={CONTROLLER}");
        return Outcome::stop("", "ControllerNotRunning", message, "start the controller", pods);
    }
    Outcome::stop(
        "",
        "AttachmentPending",
        "the controller has not attached the pod yet",
        "wait a few seconds; if this persists, check the controller's logs",
        subject.controller_logs(),
    )
}

pub(super) fn mountpoint_pod(
    subject: Subject<'_>,
    attachment: Option<&MountpointS3PodAttachment>,
) -> Outcome {
    let snapshot = subject.snapshot;
    let uid = subject.pod.uid().unwrap_or_default();
    let Some((attachment, name)) =
        attachment.and_then(|attachment| Some((attachment, attachment.spec.mountpoint_pod_of(&uid)?)))
    else {
        let reported = if subject.is_mounted() { None } else { reported(subject, UNSERVED) };
        return reported.unwrap_or_else(|| Outcome::unknown("", "not readable"));
    };
    let namespace = &snapshot.mountpoint_namespace;
    let describe = format!("kubectl describe pod -n {namespace} {name}");
    let unhealthy = unhealthy(attachment);
    let Some(pod) = snapshot.mountpoint_pod(name) else {
        if let Some((reason, message)) = unhealthy {
            let command = format!("kubectl describe s3pa {}", attachment.name_any());
            return Outcome::stop(name, reason, message, "do what the message says", command);
        }
        if !snapshot.is_readable(Readable::MountpointPods) {
            return Outcome::unknown(name, "not readable");
        }
        let message = format!("Mountpoint Pod {namespace}/{name} does not exist yet");
        let remedy = "wait a few seconds; if this persists, check the controller's logs";
        return Outcome::stop(name, "MountpointPodMissing", message, remedy, subject.controller_logs());
    };
    if let Some(failure) = &pod.start_failure {
        let reason = Reason::from(failure);
        let message = format!("Mountpoint Pod {namespace}/{name} does not start: {failure}");
        let command = match reason {
            Reason::MountpointPodCrashing => format!("kubectl logs -n {namespace} {name} --previous"),
            _ => describe,
        };
        return Outcome::stop(name, <&str>::from(reason), message, remedy(reason), command);
    }
    let note = format!("version {}", pod.driver_version);
    match pod.phase {
        Phase::Running if pod.is_ending() => Outcome::pass(name, format!("{note}, ends after its workloads")),
        Phase::Running => Outcome::pass(name, note),
        _ if subject.is_mounted() => Outcome::pass(name, "starting"),
        _ => {
            let message = format!("Mountpoint Pod {namespace}/{name} is starting");
            Outcome::stop(name, "MountpointPodStarting", message, "wait; it takes a second or two", describe)
        }
    }
}

fn remedy(reason: Reason) -> &'static str {
    match reason {
        Reason::MountpointPodImagePullFailed => {
            "correct `mountpointPod.image` of the chart, or give the node access to the registry (`imagePullSecrets`)"
        }
        Reason::MountpointPodUnschedulable => {
            "make room on the node: the Mountpoint Pod must run beside its workload"
        }
        Reason::MountpointPodCrashing => "read the last log lines of its container",
        Reason::MountpointPodStartFailed => "do what the message says; the kubelet tries again by itself",
        _ => "the controller replaces it; if the node rejected it, make room there",
    }
}

/// `name` is the volume's, which the claim says even to those who may not read volumes.
pub(super) fn mount(
    subject: Subject<'_>,
    name: Option<&str>,
    attachment: Option<&MountpointS3PodAttachment>,
) -> Outcome {
    let uid = subject.pod.uid().unwrap_or_default();
    let pod = attachment.and_then(|attachment| attachment.spec.mountpoint_pod_of(&uid)).unwrap_or_default();
    let logs = match pod {
        "" => subject.describe_pod(),
        pod => format!("kubectl logs -n {} {pod}", subject.snapshot.mountpoint_namespace),
    };
    let name = name.unwrap_or_default();
    if subject.is_mounted() {
        return match about_pod(subject, events::mount_trouble) {
            Some(event) => {
                let reason = event.reason.as_deref().unwrap_or_default();
                let remedy = match reason {
                    mount_event::KEYS_EXPIRED => {
                        "do what the message says; the mount process gets new keys by itself within a minute, and no \
                         container needs a restart"
                    }
                    _ => {
                        "the node service mounts it again by itself; a container without `mountPropagation: \
                         HostToContainer` must be restarted to see it"
                    }
                };
                Outcome::stop(name, reason, message(event), remedy, logs)
            }
            None => Outcome::pass(name, "mounted"),
        };
    }
    match about_pod(subject, |all, about| mount_failure(all, about, name)) {
        Some(failure) => {
            let (remedy, command) = advice(&failure, name, subject.snapshot.volume(name), &logs);
            Outcome::stop(name, "FailedMount", failure.message, remedy, command)
        }
        None => Outcome::stop(
            name,
            "MountPending",
            "the kubelet has not mounted the volume yet, and no event says why",
            "wait a few seconds; the kubelet tries again with increasing delays of up to two minutes",
            subject.describe_pod(),
        ),
    }
}

/// Chooses by the code that the node service answers the kubelet with.
fn advice(failure: &MountFailure, name: &str, volume: Option<&VolumeFacts>, logs: &str) -> (String, String) {
    let look = format!("kubectl get pv {name} -o yaml");
    let bucket = volume.map_or("the bucket".to_owned(), |volume| format!("bucket {}", volume.bucket));
    let keys = volume.and_then(|volume| volume.secret.as_ref()).map_or_else(
        || {
            let whose = if volume.is_some() { "the driver's Secret" } else { "the Secret with the keys" };
            (whose.to_owned(), "kubectl s3 doctor".to_owned())
        },
        |name| {
            let SecretName { namespace, name: short } = name;
            (format!("Secret {name}"), format!("kubectl describe secret -n {namespace} {short}"))
        },
    );
    match failure.code.as_deref().unwrap_or_default() {
        "NotFound" => (format!("create {bucket}, or correct `bucketName`"), look),
        "PermissionDenied" => (format!("allow the keys of {} to list {bucket}", keys.0), keys.1),
        "Unauthenticated" => (format!("correct the keys in {}", keys.0), keys.1),
        "InvalidArgument" => ("correct what the message names".to_owned(), look),
        "Unavailable" => {
            let remedy =
                "do what the message says; the doctor checks whether the node reaches the S3 endpoint";
            (remedy.to_owned(), "kubectl s3 doctor".to_owned())
        }
        // The kubelet did not come as far as the driver.
        "" => ("do what the message says; the kubelet tries again by itself".to_owned(), look),
        _ => (
            "see the log of the Mountpoint Pod; the kubelet tries again by itself".to_owned(),
            logs.to_owned(),
        ),
    }
}
