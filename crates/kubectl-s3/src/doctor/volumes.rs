//! Classes, volumes and claims.

use std::collections::BTreeMap;

use contract::authentication::{AuthenticationError, AuthenticationSource};
use contract::names::DRIVER;
use contract::volume::VolumeError;
use controller::provision::claims::claim::FINALIZER;
use jiff::SignedDuration;
use kube::ResourceExt as _;

use super::finding::{Check, Finding, Level};
use crate::class;
use crate::events::{self, message, newest};
use crate::secret::SecretState;
use crate::snapshot::Snapshot;

/// A claim that is being deleted carries the mark for seconds.
const CLEANS_UP_WITHIN: SignedDuration = SignedDuration::from_mins(10);

pub(super) fn classes(snapshot: &Snapshot) -> Vec<Finding> {
    let installation = snapshot.installation();
    let mut found = Vec::new();
    for class in snapshot.classes.iter().filter(|class| class.provisioner == DRIVER) {
        let error = |message: String| Finding::new(Check::Classes, Level::Error, class.name_any(), message);
        if let Some(wrong) = class::invalid(class, installation.as_ref()) {
            found.push(
                error(wrong).remedy("parameters cannot be edited: delete the class and create it anew"),
            );
        }
        for name in class::secrets(class) {
            match snapshot.secrets.get(&name) {
                Some(SecretState::Missing) => {
                    found.push(error(format!("Secret {name} does not exist")).remedy("create it"));
                }
                Some(SecretState::Invalid(wrong)) => {
                    found.push(error(wrong.clone()).remedy("correct the Secret"))
                }
                _ => {}
            }
        }
    }
    found
}

pub(super) fn volumes(snapshot: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut handles: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for volume in &snapshot.volumes {
        handles.entry(&volume.handle).or_default().push(&volume.name);
        let finding =
            |level, message: String| Finding::new(Check::Volumes, level, volume.name.clone(), message);
        match &volume.meaning {
            Err(error) => found.push(finding(Level::Error, error.to_string()).remedy(remedy(error))),
            Ok(meaning) => {
                if !meaning.ignored.is_empty() {
                    let message = format!("mount options without effect: {}", meaning.ignored.join(", "));
                    found.push(finding(Level::Warning, message).remedy("remove them"));
                }
                let secret =
                    volume.secret.as_ref().filter(|_| meaning.source == AuthenticationSource::Secret);
                let state = secret.and_then(|name| Some((name, snapshot.secrets.get(name)?)));
                match state {
                    Some((name, SecretState::Missing)) => found.push(
                        finding(
                            Level::Error,
                            format!("Secret {name} of `nodePublishSecretRef` does not exist"),
                        )
                        .remedy("create it, or correct the reference"),
                    ),
                    Some((_, SecretState::Invalid(error))) => {
                        found.push(finding(Level::Error, error.clone()).remedy("correct the Secret"));
                    }
                    _ => {}
                }
            }
        }
    }
    for (handle, names) in handles.into_iter().filter(|(_, names)| names.len() > 1) {
        let message = format!("have the same volumeHandle \"{handle}\": the driver may confuse them");
        let finding = Finding::new(Check::Volumes, Level::Error, names.join(", "), message);
        found.push(
            finding.remedy("give each PersistentVolume a unique `volumeHandle`; the bucket may be the same"),
        );
    }
    found
}

fn remedy(error: &VolumeError) -> &'static str {
    match error {
        // Scality's driver made such volumes.
        VolumeError::Authentication(AuthenticationError::SecretUnnamed) => {
            "no file is lost: docs/migrating.md#create-a-volume-anew has the commands"
        }
        _ => "`mountOptions` can be edited; for another attribute create the volume anew",
    }
}

/// Claims of our classes that wait, and those that cannot be deleted.
pub(super) fn claims(snapshot: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    for claim in &snapshot.claims {
        let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
        let object = format!("{namespace}/{name}");
        let about = events::Subject {
            kind: "PersistentVolumeClaim",
            namespace: Some(&namespace),
            name: &name,
            uid: claim.metadata.uid.as_deref(),
        };
        let class = claim.spec.as_ref().and_then(|spec| snapshot.class(spec.storage_class_name.as_deref()?));
        let pending = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Pending");
        if pending
            && class.is_some_and(|class| class.provisioner == DRIVER)
            && let Some(event) = newest(&snapshot.events, about, &["ProvisioningFailed"])
        {
            let finding = Finding::new(Check::Claims, Level::Warning, object.clone(), message(event));
            found.push(finding.remedy("do what the message says; the controller tries again by itself"));
        }
        let deleted =
            claim.metadata.deletion_timestamp.as_ref().map(|time| snapshot.now.duration_since(time.0));
        let marked = claim.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
        if marked && deleted.is_some_and(|since| since > CLEANS_UP_WITHIN) {
            let said = newest(&snapshot.events, about, &["ProvisioningCleanupFailed"])
                .map(message)
                .unwrap_or_default();
            let message = format!("is being deleted, and its bucket cannot be removed: {said}");
            let finding = Finding::new(Check::Claims, Level::Warning, object, message);
            found.push(finding.remedy("allow the controller's keys to delete the bucket; without the driver, delete the bucket and remove the finalizer"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::tests::event;
    use crate::secret::SecretName;
    use crate::volume::tests::volume;
    use crate::why::scene::{claim, scene};
    use serde_json::json;

    fn messages(findings: &[Finding]) -> Vec<(Level, &str)> {
        findings.iter().map(|finding| (finding.level, finding.message.as_str())).collect()
    }

    #[test]
    fn classes_are_read_by_the_controllers_rules() {
        let mut snapshot = scene();
        let class = |parameters: serde_json::Value| {
            serde_json::from_value(
                json!({"metadata": {"name": "c"}, "provisioner": DRIVER, "parameters": parameters}),
            )
            .unwrap()
        };
        snapshot.classes = vec![class(json!({"bucketNamePrefix": "shop"}))];
        assert_eq!(classes(&snapshot), []);
        snapshot.classes = vec![class(json!({"endpoint": "http://other"}))];
        assert!(classes(&snapshot)[0].message.contains("http://other"));
    }

    #[test]
    fn volumes_are_read_by_the_drivers_rules() {
        let mut snapshot = scene();
        assert_eq!(volumes(&snapshot), []);
        let ignored = volume(|volume| volume["spec"]["mountOptions"] = json!(["endpoint-url=http://x"]));
        snapshot.volumes = vec![ignored];
        assert_eq!(
            messages(&volumes(&snapshot)),
            [(Level::Warning, "mount options without effect: endpoint-url")]
        );
        snapshot.volumes = vec![volume(|volume| volume["spec"]["csi"]["volumeAttributes"] = json!({}))];
        assert!(volumes(&snapshot)[0].message.contains("bucketName"));
        let of_the_reference = volume(|volume| {
            let attributes = json!({"bucketName": "bucket", "authenticationSource": "secret"});
            volume["spec"]["csi"]["volumeAttributes"] = attributes;
        });
        snapshot.volumes = vec![of_the_reference];
        assert!(volumes(&snapshot)[0].remedy.contains("docs/migrating.md#create-a-volume-anew"));
        let own = volume(|volume| {
            volume["spec"]["csi"]["nodePublishSecretRef"] = json!({"namespace": "ns", "name": "keys"});
        });
        snapshot.volumes = vec![own];
        snapshot
            .secrets
            .insert(SecretName { namespace: "ns".into(), name: "keys".into() }, SecretState::Missing);
        assert!(volumes(&snapshot)[0].message.contains("ns/keys"));
    }

    #[test]
    fn a_handle_names_one_volume() {
        let mut snapshot = scene();
        snapshot.volumes.push(volume(|volume| volume["metadata"]["name"] = json!("pv2")));
        let found = volumes(&snapshot);
        assert_eq!((found[0].level, found[0].object.as_str()), (Level::Error, "pv, pv2"));
    }

    #[test]
    fn claims_that_wait_or_stay_are_reported() {
        let mut snapshot = scene();
        snapshot.classes =
            vec![serde_json::from_value(json!({"metadata": {"name": "c"}, "provisioner": DRIVER})).unwrap()];
        snapshot.claims = vec![serde_json::from_value(claim("Pending", "c")).unwrap()];
        assert_eq!(claims(&snapshot), []);
        snapshot.events = vec![event("PersistentVolumeClaim", "data", "ProvisioningFailed", "denied", 1)];
        assert_eq!(messages(&claims(&snapshot)), [(Level::Warning, "denied")]);
        let mut leaving = claim("Bound", "c");
        leaving["metadata"]["finalizers"] = json!([FINALIZER]);
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        snapshot.claims = vec![serde_json::from_value(leaving).unwrap()];
        assert_eq!(claims(&snapshot), [], "it has had two minutes");
        snapshot.now = "2026-01-01T01:00:00Z".parse().unwrap();
        assert!(claims(&snapshot)[0].message.contains("cannot be removed"));
    }
}
