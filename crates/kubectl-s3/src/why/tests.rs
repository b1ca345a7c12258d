//! A table of everything that can stop a chain; of its later links: `placement_tests.rs` and `serving_tests.rs`.

use contract::names::DRIVER;
use serde_json::{Value, json};

use super::scene::{claim, running, scene};
use super::*;
use crate::events::tests::event;
use crate::readable::Readable;
use crate::secret::{SecretName, SecretState};
use crate::volume::tests::volume;
use crate::workload::tests::pod;

/// When the scene is looked at, in seconds.
pub(super) const NOW: i64 = 1_767_225_720;

pub(super) fn answer(change: impl FnOnce(&mut Snapshot)) -> Answer {
    let mut snapshot = scene();
    change(&mut snapshot);
    let pod = snapshot.pods[0].clone();
    why(&snapshot, &pod)
}

/// Step and reason of the cause, and a word that the remedy or the message must contain.
pub(super) fn stops(change: impl FnOnce(&mut Snapshot), step: Step, reason: &str, word: &str) {
    let answer = answer(change);
    let cause = answer.cause.expect(reason);
    assert_eq!((cause.step, cause.reason.as_str()), (step, reason), "{cause:?}");
    let text = format!("{} {} {}", cause.message, cause.remedy, cause.command);
    assert!(text.contains(word), "{word} is not in: {text}");
    assert!(!cause.remedy.is_empty(), "{cause:?}");
    can_run(&cause.command);
    let stopped = answer.volumes[0].links.iter().filter(|link| link.state == State::Stops).count();
    assert_eq!(stopped, usize::from(step != Step::Workload), "{:?}", answer.volumes);
}

/// Every cause comes through here.
fn can_run(command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    assert_eq!(words[0], "kubectl");
    assert!(["describe", "get", "logs", "s3"].contains(&words[1]), "{command}");
    let has = |flag: &str| words.contains(&flag);
    // `kubectl logs` knows one namespace only, and a workload's name shows one of its pods.
    let everywhere = has("-A") || has("--all-namespaces") || command.contains("deployment/");
    assert!(words[1] != "logs" || has("-n") && !everywhere, "{command}");
    assert!(words.iter().all(|word| !word.is_empty()), "{command}");
}

pub(super) fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn secret(name: &str) -> SecretName {
    SecretName { namespace: "ns".into(), name: name.into() }
}

/// The volume with a Secret of its own in this state.
fn own_keys(snapshot: &mut Snapshot, state: SecretState) {
    snapshot.volumes = vec![volume(|volume| {
        volume["spec"]["csi"]["nodePublishSecretRef"] = json!({"namespace": "ns", "name": "keys"});
    })];
    snapshot.secrets.insert(secret("keys"), state);
}

pub(super) fn waiting(reason: &str, message: &str) -> Value {
    json!({"phase": "Pending", "containerStatuses": [{"name": "m", "image": "", "imageID": "", "ready": false,
        "restartCount": 0, "state": {"waiting": {"reason": reason, "message": message}}}]})
}

#[test]
fn a_pod_that_runs_has_no_cause() {
    let answer = answer(|snapshot| snapshot.pods = vec![running()]);
    assert_eq!(answer.cause, None);
    let states: Vec<State> = answer.volumes[0].links.iter().map(|link| link.state).collect();
    assert!(states.iter().all(|state| *state == State::Ok), "{:?}", answer.volumes);
}

#[test]
fn claims_stop_the_chain() {
    stops(|it| it.claims.clear(), Step::Claim, "ClaimMissing", "ns/data");
    stops(|it| it.claims = vec![from(claim("Lost", ""))], Step::Claim, "ClaimLost", "lost");
    stops(|it| it.claims = vec![from(claim("Pending", ""))], Step::Volume, "ClaimUnbound", "reserved");
    let unclaimed = |it: &mut Snapshot| {
        it.claims = vec![from(claim("Pending", ""))];
        it.volumes.clear();
    };
    stops(unclaimed, Step::Volume, "ClaimUnbound", "claimRef");
    let event = |it: &mut Snapshot| {
        it.claims = vec![from(claim("Pending", ""))];
        it.events = vec![event("PersistentVolumeClaim", "data", "VolumeMismatch", "too small", 1)];
    };
    stops(event, Step::Volume, "ClaimUnbound", "too small");
}

#[test]
fn classes_stop_the_chain() {
    let dynamic = |class: Value| {
        move |it: &mut Snapshot| {
            it.claims = vec![from(claim("Pending", "fast"))];
            it.volumes.clear();
            it.classes = vec![from(class)];
        }
    };
    let good = || json!({"metadata": {"name": "fast"}, "provisioner": DRIVER, "parameters": {}});
    let missing = |it: &mut Snapshot| it.claims = vec![from(claim("Pending", "fast"))];
    stops(missing, Step::Class, "StorageClassMissing", "fast");
    let unknown =
        json!({"metadata": {"name": "fast"}, "provisioner": DRIVER, "parameters": {"colour": "red"}});
    stops(dynamic(unknown), Step::Class, "InvalidStorageClass", "colour");
    let failed = |it: &mut Snapshot| {
        dynamic(good())(it);
        it.events = vec![event("PersistentVolumeClaim", "data", "ProvisioningFailed", "access denied", 1)];
    };
    stops(failed, Step::Volume, "ProvisioningFailed", "access denied");
    let alone = |it: &mut Snapshot| {
        dynamic(good())(it);
        it.controllers.clear();
    };
    stops(alone, Step::Volume, "ControllerNotRunning", "s3-csi-controller");
    stops(dynamic(good()), Step::Volume, "ProvisioningPending", "log");
    // A class of another driver is not this plugin's business.
    let other = answer(dynamic(json!({"metadata": {"name": "fast"}, "provisioner": "ebs"})));
    assert!(other.volumes.is_empty() && other.cause.is_none(), "{other:?}");
}

#[test]
fn volumes_stop_the_chain() {
    stops(|it| it.volumes.clear(), Step::Volume, "PersistentVolumeMissing", "pv");
    let invalid = |it: &mut Snapshot| {
        it.volumes = vec![volume(|volume| volume["spec"]["mountOptions"] = json!(["colour=red"]))];
    };
    stops(invalid, Step::Volume, "InvalidVolumeAttributes", "colour");
    let foreign = answer(|it| {
        it.volumes.clear();
        it.foreign_volumes.insert("pv".to_owned());
    });
    assert!(foreign.volumes.is_empty() && foreign.cause.is_none());
}

#[test]
fn keys_stop_the_chain() {
    stops(|it| own_keys(it, SecretState::Missing), Step::Keys, "SecretMissing", "ns/keys");
    let invalid = |it: &mut Snapshot| own_keys(it, SecretState::Invalid("`access_key_id` is empty".into()));
    stops(invalid, Step::Keys, "SecretInvalid", "access_key_id");
    let of_driver = |it: &mut Snapshot| {
        let name = it.secrets.keys().next().unwrap().clone();
        it.secrets.insert(name, SecretState::Missing);
    };
    stops(of_driver, Step::Keys, "SecretMissing", "s3CredentialSecret");
    // A user who may not read Secrets still hears the rest.
    let hidden = |it: &mut Snapshot| {
        own_keys(it, SecretState::Unreadable("forbidden".into()));
        it.controllers.clear();
        it.attachments.clear();
    };
    stops(hidden, Step::Attachment, "ControllerNotRunning", "controller");
}

#[test]
fn the_controllers_logs_are_looked_for_where_it_is_installed() {
    let moved = |it: &mut Snapshot| {
        it.deployments[0].metadata.namespace = Some("storage".to_owned());
        it.daemon_sets[0].metadata.namespace = Some("storage".to_owned());
    };
    let unknown = |it: &mut Snapshot| {
        it.deployments.clear();
        it.daemon_sets.clear();
        it.controllers.clear();
        it.unreadable.insert(Readable::DriverPods, "forbidden".to_owned());
    };
    let unattached: fn(&mut Snapshot) = |it| it.attachments.clear();
    let unserved: fn(&mut Snapshot) = |it| it.mountpoint_pods.clear();
    let unmade: fn(&mut Snapshot) = |it| {
        it.claims = vec![from(claim("Pending", "fast"))];
        it.volumes.clear();
        it.classes = vec![from(json!({"metadata": {"name": "fast"}, "provisioner": DRIVER}))];
    };
    for (step, reason, change) in [
        (Step::Attachment, "AttachmentPending", unattached),
        (Step::MountpointPod, "MountpointPodMissing", unserved),
        (Step::Volume, "ProvisioningPending", unmade),
    ] {
        let there = "kubectl logs -n storage -l app=s3-csi-controller --prefix";
        let anywhere = "kubectl get pods -A -l app=s3-csi-controller";
        for (installed, command) in [(moved as fn(&mut Snapshot), there), (unknown, anywhere)] {
            let both = |it: &mut Snapshot| {
                installed(it);
                change(it);
            };
            stops(both, step, reason, command);
        }
    }
}

#[test]
fn what_is_mounted_survives_what_is_only_for_mounting() {
    let answer = answer(|it| {
        it.pods = vec![running()];
        it.node_services.clear();
    });
    assert_eq!(answer.cause, None);
    let warns = answer.volumes[0].links.iter().find(|link| link.state == State::Warns).unwrap();
    assert_eq!(warns.step, Step::NodeService);
}

#[test]
fn a_pod_with_its_volumes_may_fail_for_reasons_of_its_own() {
    let own = |it: &mut Snapshot| it.pods = vec![pod(&waiting("ImagePullBackOff", "no such image"))];
    stops(own, Step::Workload, "ImagePullBackOff", "no such image");
    let ended = answer(|it| it.pods = vec![pod(&json!({"phase": "Failed", "reason": "Evicted"}))]);
    assert_eq!(ended.cause, None, "nothing can be done for it any more");
}

/// A user who may read nothing but their namespace.
fn confined(it: &mut Snapshot) {
    it.volumes.clear();
    it.attachments.clear();
    it.mountpoint_pods.clear();
    it.node_services.clear();
    it.nodes.clear();
    it.secrets.clear();
    for what in [
        Readable::Volumes,
        Readable::Attachments,
        Readable::MountpointPods,
        Readable::DriverPods,
        Readable::DriverWorkloads,
        Readable::Nodes,
        Readable::CsiNodes,
        Readable::Classes,
    ] {
        it.unreadable.insert(what, "forbidden".to_owned());
    }
}

#[test]
fn events_tell_those_who_may_read_nothing_else() {
    assert_eq!(scene().now.as_second(), NOW);
    let failed = |it: &mut Snapshot| {
        confined(it);
        let text = "MountVolume.SetUp failed for volume \"pv\" : rpc error: code = NotFound desc = there is no bucket";
        it.events = vec![event("Pod", "web", "FailedMount", text, NOW)];
    };
    stops(failed, Step::Mount, "FailedMount", "there is no bucket");
    stops(confined, Step::Mount, "MountPending", "no event says why");
    let unserved = |second: i64| {
        move |it: &mut Snapshot| {
            confined(it);
            it.events = vec![event("Pod", "web", "MountpointPodUnschedulable", "full", second)];
        }
    };
    stops(unserved(NOW), Step::MountpointPod, "MountpointPodUnschedulable", "full");
    stops(unserved(NOW - 3600), Step::Mount, "MountPending", "no event says why");
    let running = answer(|it| {
        confined(it);
        it.pods = vec![running()];
    });
    assert_eq!(running.cause, None);
    let foreign = answer(|it| {
        confined(it);
        let mut other = claim("Bound", "fast");
        other["metadata"]["annotations"] = json!({"volume.kubernetes.io/storage-provisioner": "ebs"});
        it.claims = vec![from(other)];
    });
    assert!(foreign.volumes.is_empty() && foreign.cause.is_none(), "{foreign:?}");
}
