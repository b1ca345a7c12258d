//! The first links: claim, class, volume.

use contract::names::DRIVER;
use controller::provision::claims::claim::PROVISIONER;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;

use super::link::Outcome;
use super::subject::Subject;
use crate::class::invalid;
use crate::events::{self, message, newest};
use crate::installation::CONTROLLER;
use crate::readable::Readable;
use crate::snapshot::Snapshot;
use crate::workload::{is_ready, node};

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
            Outcome::stop(
                name,
                "ClaimMissing",
                format!("PersistentVolumeClaim {namespace}/{name} does not exist"),
                "create it, or correct `claimName` of the pod",
                format!("kubectl get pvc -n {namespace}"),
            )
        } else {
            Outcome::unknown(name, "not readable")
        };
        return Found { claim: None, outcome };
    };
    let phase = claim.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
    let outcome = match phase.as_str() {
        "Lost" => Outcome::stop(
            name,
            "ClaimLost",
            format!("PersistentVolumeClaim {namespace}/{name} has lost its PersistentVolume"),
            "restore the PersistentVolume, or create the claim anew",
            format!("kubectl describe pvc -n {namespace} {name}"),
        ),
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
    PROVISIONER
        .iter()
        .any(|key| claim.annotations().get(*key).is_some_and(|provisioner| provisioner != DRIVER))
}

/// A class that is another driver's. One that is missing may be of any driver.
pub(super) fn is_foreign_class(snapshot: &Snapshot, name: &str) -> bool {
    snapshot.class(name).is_some_and(|class| class.provisioner != DRIVER)
}

/// A claim that is bound no longer needs its class.
pub(super) fn class(snapshot: &Snapshot, name: &str, is_bound: bool) -> Outcome {
    let Some(class) = snapshot.class(name) else {
        return match (is_bound, snapshot.is_readable(Readable::Classes)) {
            (true, _) => Outcome::pass(name, "does not exist, but the claim is already bound"),
            (false, false) => Outcome::unknown(name, "not readable"),
            (false, true) => Outcome::stop(
                name,
                "StorageClassMissing",
                format!("StorageClass {name} does not exist"),
                "create it, or correct `storageClassName` of the claim; for a static volume it is \"\"",
                "kubectl get storageclass",
            ),
        };
    };
    let installation = snapshot.installation();
    match invalid(class, installation.as_ref()) {
        Some(error) if !is_bound => Outcome::stop(
            name,
            "InvalidStorageClass",
            format!("StorageClass {name}: {error}"),
            "correct the class: parameters cannot be edited, so delete it and create it anew",
            format!("kubectl get storageclass {name} -o yaml"),
        ),
        Some(error) => Outcome::pass(name, error),
        None => Outcome::pass(name, String::new()),
    }
}

pub(super) fn volume(subject: Subject<'_>, bound: Option<&str>, class: Option<&str>) -> Outcome {
    let snapshot = subject.snapshot;
    let Some(name) = bound else { return unbound(subject, class) };
    let Some(volume) = snapshot.volume(name) else {
        return if snapshot.is_readable(Readable::Volumes) {
            Outcome::stop(
                name,
                "PersistentVolumeMissing",
                format!("PersistentVolume {name} does not exist"),
                "restore it, or create claim and pod anew",
                format!("kubectl describe pvc -n {} {}", subject.namespace(), subject.claim),
            )
        } else {
            Outcome::unknown(name, "not readable")
        };
    };
    match &volume.meaning {
        Err(error) => Outcome::stop(
            name,
            "InvalidVolumeAttributes",
            format!("PersistentVolume {name}: {error}"),
            "correct it; `mountOptions` can be edited, `volumeAttributes` cannot: create the volume anew",
            format!("kubectl get pv {name} -o yaml"),
        ),
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
    if snapshot.claim(&namespace, name).is_none() {
        return Outcome::unknown("", "the claim is not readable");
    }
    let describe = format!("kubectl describe pvc -n {namespace} {name}");
    let about =
        events::Subject { kind: "PersistentVolumeClaim", namespace: Some(&namespace), name, uid: None };
    let newest_event = newest(&snapshot.events, about, UNBOUND);
    if let Some(event) = newest_event.filter(|event| event.reason.as_deref() == Some("ProvisioningFailed")) {
        return Outcome::stop(
            "",
            "ProvisioningFailed",
            message(event),
            "do what the message says; the controller tries again by itself, within a minute",
            describe,
        );
    }
    let Some(class) = class.and_then(|class| snapshot.class(class)) else {
        // Static: the PV controller reports a reserved volume that does not fit.
        let mine = (namespace.clone(), name.to_owned());
        let reserved = snapshot.volumes.iter().find(|volume| volume.claim.as_ref() == Some(&mine));
        return match (newest_event, reserved) {
            (Some(event), _) => Outcome::stop(
                "",
                "ClaimUnbound",
                format!("the claim is not bound: {}", message(event)),
                "make `storageClassName`, `accessModes`, capacity and `claimRef` of volume and claim fit each other",
                describe,
            ),
            (None, Some(volume)) => Outcome::stop(
                "",
                "ClaimUnbound",
                format!("PersistentVolume {} is reserved for the claim, and they are not bound", volume.name),
                "make `storageClassName`, `accessModes` and capacity of volume and claim fit each other",
                format!("kubectl describe pv {}", volume.name),
            ),
            (None, None) => Outcome::stop(
                "",
                "ClaimUnbound",
                format!("no PersistentVolume is there for claim {namespace}/{name}"),
                "create a PersistentVolume whose `claimRef` names the claim, or give the claim a StorageClass of this driver",
                describe,
            ),
        };
    };
    let waits = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
    if waits && node(subject.pod).is_none() {
        return Outcome::pass("", "is created once the pod is scheduled");
    }
    if snapshot.is_readable(Readable::DriverPods) && !snapshot.controllers.iter().any(is_ready) {
        return Outcome::stop(
            "",
            "ControllerNotRunning",
            "no controller of the driver is ready, so no bucket is created for the claim",
            "start the controller",
            format!("kubectl get pods -A -l app={CONTROLLER}"),
        );
    }
    Outcome::stop(
        "",
        "ProvisioningPending",
        "the claim has no volume yet, and no event says why",
        "wait a few seconds; if this persists, check the controller's logs",
        subject.controller_logs(),
    )
}
