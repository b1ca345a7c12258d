//! The first links: claim, class, volume.

use contract::names::DRIVER;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;

use super::link::{Outcome, Stop};
use super::subject::Subject;
use crate::class::invalid;
use crate::events::{self, message, newest};
use crate::installation::{CONTROLLER, Installation};
use crate::readable::Readable;
use crate::snapshot::Snapshot;
use crate::workload::{is_ready, node};

/// Written by the cluster on claims of every class.
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// Reasons of the cluster's binder.
const UNBOUND: &[&str] = &["FailedBinding", "VolumeMismatch", "ProvisioningFailed"];

/// The claim, if it is there, and what that means.
pub(super) struct Found<'a> {
    claim: Option<&'a PersistentVolumeClaim>,
    pub(super) outcome: Outcome,
}

impl<'a> Found<'a> {
    pub(super) fn object(&self) -> Option<&'a PersistentVolumeClaim> {
        self.claim
    }
}

pub(super) fn claim(subject: Subject<'_>) -> Found<'_> {
    let (namespace, name) = (subject.namespace(), subject.claim);
    let Some(claim) = subject.snapshot.claim(&namespace, name) else {
        let outcome = if subject.snapshot.is_readable(Readable::Claims) {
            Outcome::Stops(Stop {
                object: name.to_owned(),
                reason: "ClaimMissing".to_owned(),
                message: format!("PersistentVolumeClaim {namespace}/{name} does not exist"),
                remedy: "create it, or correct `claimName` of the pod".to_owned(),
                command: format!("kubectl get pvc -n {namespace}"),
            })
        } else {
            Outcome::unknown(name, "not readable")
        };
        return Found { claim: None, outcome };
    };
    let phase = claim.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
    let outcome = match phase.as_str() {
        "Lost" => Outcome::Stops(Stop {
            object: name.to_owned(),
            reason: "ClaimLost".to_owned(),
            message: format!("PersistentVolumeClaim {namespace}/{name} has lost its PersistentVolume"),
            remedy: "restore the PersistentVolume, or create the claim anew".to_owned(),
            command: format!("kubectl describe pvc -n {namespace} {name}"),
        }),
        _ => Outcome::pass(name, phase),
    };
    Found { claim: Some(claim), outcome }
}

/// The volume that the claim is bound to.
pub(super) fn volume_name(claim: &PersistentVolumeClaim) -> Option<String> {
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    claim.spec.as_ref()?.volume_name.clone().filter(|_| bound)
}

/// The claim says who made its volume, also to those who may read neither volumes nor classes.
pub(super) fn is_of_foreign_provisioner(claim: &PersistentVolumeClaim) -> bool {
    claim.annotations().get(PROVISIONER).is_some_and(|provisioner| provisioner != DRIVER)
}

/// A class that is another driver's. One that is missing may be of any driver.
pub(super) fn is_foreign_class(snapshot: &Snapshot, name: &str) -> bool {
    snapshot.class(name).is_some_and(|class| class.provisioner != DRIVER)
}

/// A claim that is bound no longer needs its class.
pub(super) fn class(snapshot: &Snapshot, name: &str, is_bound: bool) -> Outcome {
    let Some(class) = snapshot.class(name) else {
        return match (is_bound, snapshot.is_readable(Readable::Classes)) {
            (true, _) => Outcome::pass(name, "does not exist; the claim is bound all the same"),
            (false, false) => Outcome::unknown(name, "not readable"),
            (false, true) => Outcome::Stops(Stop {
                object: name.to_owned(),
                reason: "StorageClassMissing".to_owned(),
                message: format!("StorageClass {name} does not exist"),
                remedy:
                    "create it, or correct `storageClassName` of the claim; for a static volume it is \"\""
                        .to_owned(),
                command: "kubectl get storageclass".to_owned(),
            }),
        };
    };
    let installation = Installation::of(&snapshot.deployments, &snapshot.daemon_sets);
    match invalid(class, installation.as_ref()) {
        Some(error) if !is_bound => Outcome::Stops(Stop {
            object: name.to_owned(),
            reason: "InvalidStorageClass".to_owned(),
            message: format!("StorageClass {name}: {error}"),
            remedy: "correct the class: parameters cannot be edited, so delete it and create it anew"
                .to_owned(),
            command: format!("kubectl get storageclass {name} -o yaml"),
        }),
        Some(error) => Outcome::pass(name, error),
        None => Outcome::pass(name, String::new()),
    }
}

pub(super) fn volume(subject: Subject<'_>, bound: Option<&str>, class: Option<&str>) -> Outcome {
    let snapshot = subject.snapshot;
    let Some(name) = bound else { return unbound(subject, class) };
    let Some(volume) = snapshot.volume(name) else {
        return if snapshot.is_readable(Readable::Volumes) {
            Outcome::Stops(Stop {
                object: name.to_owned(),
                reason: "PersistentVolumeMissing".to_owned(),
                message: format!("PersistentVolume {name} does not exist"),
                remedy: "restore it, or create claim and pod anew".to_owned(),
                command: format!("kubectl describe pvc -n {} {}", subject.namespace(), subject.claim),
            })
        } else {
            Outcome::unknown(name, "not readable")
        };
    };
    match &volume.meaning {
        Err(error) => Outcome::Stops(Stop {
            object: name.to_owned(),
            reason: "InvalidVolumeAttributes".to_owned(),
            message: format!("PersistentVolume {name}: {error}"),
            remedy:
                "correct it; `mountOptions` can be edited, `volumeAttributes` cannot: create the volume anew"
                    .to_owned(),
            command: format!("kubectl get pv {name} -o yaml"),
        }),
        Ok(meaning) => {
            let mut note = format!("bucket {}", volume.bucket);
            if !meaning.ignored.is_empty() {
                note = format!("{note}; mount options without effect: {}", meaning.ignored.join(", "));
            }
            Outcome::pass(name, note)
        }
    }
}

fn unbound(subject: Subject<'_>, class: Option<&str>) -> Outcome {
    let (snapshot, namespace, name) = (subject.snapshot, subject.namespace(), subject.claim);
    let stop = |reason: &str, message: String, remedy: &str, command: String| {
        let (reason, remedy) = (reason.to_owned(), remedy.to_owned());
        Outcome::Stops(Stop { object: String::new(), reason, message, remedy, command })
    };
    if snapshot.claim(&namespace, name).is_none() {
        return Outcome::unknown("", "the claim is not readable");
    }
    let describe = format!("kubectl describe pvc -n {namespace} {name}");
    let about =
        events::Subject { kind: "PersistentVolumeClaim", namespace: Some(&namespace), name, uid: None };
    let newest_event = newest(&snapshot.events, about, UNBOUND);
    if let Some(event) = newest_event.filter(|event| event.reason.as_deref() == Some("ProvisioningFailed")) {
        return stop(
            "ProvisioningFailed",
            message(event).to_owned(),
            "do what the message says; the controller tries again by itself, within a minute",
            describe,
        );
    }
    let Some(class) = class.and_then(|class| snapshot.class(class)) else {
        // Static: the PV controller reports a reserved volume that does not fit.
        let mine = (namespace.clone(), name.to_owned());
        let reserved = snapshot.volumes.iter().find(|volume| volume.claim.as_ref() == Some(&mine));
        return match (newest_event, reserved) {
            (Some(event), _) => stop(
                "ClaimUnbound",
                format!("the claim is not bound: {}", message(event)),
                "make `storageClassName`, `accessModes`, capacity and `claimRef` of volume and claim fit each other",
                describe,
            ),
            (None, Some(volume)) => stop(
                "ClaimUnbound",
                format!("PersistentVolume {} is reserved for the claim, and they are not bound", volume.name),
                "make `storageClassName`, `accessModes` and capacity of volume and claim fit each other",
                format!("kubectl describe pv {}", volume.name),
            ),
            (None, None) => stop(
                "ClaimUnbound",
                format!("no PersistentVolume is there for claim {namespace}/{name}"),
                "create a PersistentVolume whose `claimRef` names the claim, or give the claim a StorageClass of this driver",
                describe,
            ),
        };
    };
    let waits = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
    if waits && node(subject.pod).is_none() {
        return Outcome::pass("", "is made when the pod has been scheduled");
    }
    if snapshot.is_readable(Readable::DriverPods) && !snapshot.controllers.iter().any(is_ready) {
        return stop(
            "ControllerNotRunning",
            "no controller of the driver is ready, so that nothing makes a bucket for the claim".to_owned(),
            "start the controller",
            format!("kubectl get pods -A -l app={CONTROLLER}"),
        );
    }
    stop(
        "ProvisioningPending",
        "the claim has no volume yet, and no event says why".to_owned(),
        "wait a few seconds; if this persists, check the controller's logs",
        subject.controller_logs(),
    )
}
