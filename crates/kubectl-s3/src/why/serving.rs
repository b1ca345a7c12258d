//! The last links: attachment, Mountpoint Pod, mount.

use contract::attachment::MountpointS3PodAttachment;
use contract::mountpoint_pod::Phase;
use contract::names::mount_event;
use controller::events::Reason;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt as _;

use super::link::{Outcome, Stop};
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

/// The one that `choose` takes of the Events, about the pod.
fn about_pod<'a>(
    subject: Subject<'a>,
    choose: impl FnOnce(&'a [Event], events::Subject<'_>) -> Option<&'a Event>,
) -> Option<&'a Event> {
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
        Outcome::Stops(Stop {
            object: String::new(),
            reason: event.reason.clone().unwrap_or_default(),
            message: message(event).to_owned(),
            remedy: "do what the message says".to_owned(),
            command: format!("kubectl describe pod -n {} {}", subject.namespace(), subject.pod.name_any()),
        })
    })
}

/// What the attachment's condition has against its Mountpoint Pods.
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
    let stop = |reason: &str, message: String, remedy: &str, command: String| {
        let (reason, remedy) = (reason.to_owned(), remedy.to_owned());
        Outcome::Stops(Stop { object: String::new(), reason, message, remedy, command })
    };
    if snapshot.is_readable(Readable::DriverPods) && !snapshot.controllers.iter().any(is_ready) {
        let message = "no controller of the driver is ready, so that the pod is not attached".to_owned();
        let pods = format!("kubectl get pods -A -l app={CONTROLLER}");
        return stop("ControllerNotRunning", message, "start the controller", pods);
    }
    stop(
        "AttachmentPending",
        "the controller has not attached the pod yet".to_owned(),
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
    let stop = |reason: &str, message: String, remedy: &str, command: String| {
        let (reason, remedy) = (reason.to_owned(), remedy.to_owned());
        Outcome::Stops(Stop { object: name.to_owned(), reason, message, remedy, command })
    };
    let unhealthy = unhealthy(attachment);
    let Some(facts) = snapshot.mountpoint_pod(name) else {
        if let Some((reason, message)) = unhealthy {
            let command = format!("kubectl describe s3pa {}", attachment.name_any());
            return stop(reason, message.to_owned(), "do what the message says", command);
        }
        if !snapshot.is_readable(Readable::MountpointPods) {
            return Outcome::unknown(name, "not readable");
        }
        let message = format!("Mountpoint Pod {namespace}/{name} does not exist yet");
        let remedy = "wait a few seconds; if this persists, check the controller's logs";
        return stop("MountpointPodMissing", message, remedy, subject.controller_logs());
    };
    let pod = &facts.pod;
    if let Some(failure) = &pod.start_failure {
        let reason = Reason::from(failure);
        let message = format!("Mountpoint Pod {namespace}/{name} does not start: {failure}");
        let command = match reason {
            Reason::MountpointPodCrashing => format!("kubectl logs -n {namespace} {name} --previous"),
            _ => describe,
        };
        return stop(reason.into(), message, remedy(reason), command);
    }
    let note = format!("version {}", pod.driver_version);
    match pod.phase {
        Phase::Running if pod.is_ending() => Outcome::pass(name, format!("{note}, ends after its workloads")),
        Phase::Running => Outcome::pass(name, note),
        _ if subject.is_mounted() => Outcome::pass(name, "starting"),
        _ => {
            let message = format!("Mountpoint Pod {namespace}/{name} is starting");
            stop("MountpointPodStarting", message, "wait; it takes a second or two", describe)
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
        "" => format!("kubectl describe pod -n {} {}", subject.namespace(), subject.pod.name_any()),
        pod => format!("kubectl logs -n {} {pod}", subject.snapshot.mountpoint_namespace),
    };
    let name = name.unwrap_or_default();
    let stop = |reason: &str, message: String, remedy: String, command: String| {
        Outcome::Stops(Stop { object: name.to_owned(), reason: reason.to_owned(), message, remedy, command })
    };
    if subject.is_mounted() {
        return match about_pod(subject, events::mount_trouble) {
            Some(event) => {
                let reason = event.reason.as_deref().unwrap_or_default();
                let remedy = match reason {
                    mount_event::KEYS_EXPIRED => {
                        "do what the message says; the mount process gets new keys by itself within a minute, and no \
                         container must be restarted"
                    }
                    _ => {
                        "the node service mounts it again by itself; a container without `mountPropagation: \
                         HostToContainer` must be restarted to see it"
                    }
                };
                stop(reason, message(event).to_owned(), remedy.to_owned(), logs)
            }
            None => Outcome::pass(name, "mounted"),
        };
    }
    let failed = newest_on_pod(subject, &["FailedMount"]);
    match failed.and_then(|event| mount_failure(message(event), name)) {
        Some(failure) => {
            let (remedy, command) = advice(&failure, name, subject.snapshot.volume(name), &logs);
            stop("FailedMount", failure.message, remedy, command)
        }
        None => stop(
            "MountPending",
            "the kubelet has not mounted the volume yet, and no event says why".to_owned(),
            "wait a few seconds; the kubelet tries again with growing pauses of up to two minutes".to_owned(),
            format!("kubectl describe pod -n {} {}", subject.namespace(), subject.pod.name_any()),
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
