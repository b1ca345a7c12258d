//! A `PersistentVolume` of the driver, read by the driver's own rules.

use contract::authentication::{AuthenticationSource, SecretPresence};
use contract::names::DRIVER;
use contract::volume::{VolumeError, attribute};
use contract::volume_plan::VolumePlan;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;

use crate::secret::SecretName;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeFacts {
    pub name: String,
    pub handle: String,
    /// As it is written, whether or not it is a possible one.
    pub bucket: String,
    pub phase: String,
    pub class: String,
    /// The Secret in `nodePublishSecretRef`.
    pub secret: Option<SecretName>,
    /// (namespace, name) of the claim that it is reserved for or bound to.
    pub claim: Option<(String, String)>,
    pub meaning: Result<Meaning, VolumeError>,
}

/// What the driver makes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meaning {
    pub source: AuthenticationSource,
    /// Mount options without effect.
    pub ignored: Vec<String>,
    /// Requests are not signed: no keys are needed.
    pub anonymous: bool,
}

impl VolumeFacts {
    /// Nothing for volumes of other drivers.
    pub fn of(volume: &PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let csi = spec.csi.as_ref().filter(|csi| csi.driver == DRIVER)?;
        let attributes = csi.volume_attributes.clone().unwrap_or_default();
        let secret = csi.node_publish_secret_ref.as_ref().map(|secret| SecretName {
            namespace: secret.namespace.clone().unwrap_or_default(),
            name: secret.name.clone().unwrap_or_default(),
        });
        let named = if secret.is_some() { SecretPresence::Present } else { SecretPresence::Absent };
        let options = spec.mount_options.clone().unwrap_or_default();
        let meaning = VolumePlan::parse(&attributes, named, &options);
        let claim = spec.claim_ref.as_ref();
        Some(Self {
            name: volume.name_any(),
            handle: csi.volume_handle.clone(),
            bucket: attributes.get(attribute::BUCKET_NAME).cloned().unwrap_or_default(),
            phase: volume.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default(),
            class: spec.storage_class_name.clone().unwrap_or_default(),
            secret,
            claim: claim.and_then(|claim| Some((claim.namespace.clone()?, claim.name.clone()?))),
            meaning: meaning.as_ref().map(Meaning::of).map_err(VolumeError::clone),
        })
    }

    /// Whether it is mounted with the driver's own keys.
    pub fn uses_driver_keys(&self) -> bool {
        let by_driver =
            |meaning: &Meaning| meaning.source == AuthenticationSource::Driver && !meaning.anonymous;
        self.meaning.as_ref().is_ok_and(by_driver)
    }
}

impl Meaning {
    fn of(plan: &VolumePlan) -> Self {
        Self {
            source: plan.volume.authentication,
            ignored: plan.ignored.iter().map(|option| option.as_ref().to_owned()).collect(),
            anonymous: plan.arguments.has(contract::options::MountOption::NoSignRequest),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A volume `pv` for bucket `bucket`, bound to `ns/data`.
    pub(crate) fn volume(change: impl FnOnce(&mut Value)) -> VolumeFacts {
        let mut volume = json!({
            "metadata": {"name": "pv"},
            "spec": {
                "csi": {"driver": DRIVER, "volumeHandle": "pv", "volumeAttributes": {"bucketName": "bucket"}},
                "claimRef": {"namespace": "ns", "name": "data"},
            },
            "status": {"phase": "Bound"},
        });
        change(&mut volume);
        VolumeFacts::of(&serde_json::from_value(volume).unwrap()).unwrap()
    }

    #[test]
    fn the_drivers_rules_decide_what_a_volume_means() {
        let plain = volume(|_| {});
        assert_eq!((plain.bucket.as_str(), plain.uses_driver_keys()), ("bucket", true));
        let own = volume(|volume| {
            volume["spec"]["csi"]["nodePublishSecretRef"] = json!({"namespace": "ns", "name": "keys"});
            volume["spec"]["mountOptions"] = json!(["--endpoint-url=http://other", "allow-delete"]);
        });
        assert_eq!(own.secret, Some(SecretName { namespace: "ns".into(), name: "keys".into() }));
        let meaning = own.meaning.unwrap();
        assert_eq!(
            (meaning.source, meaning.ignored),
            (AuthenticationSource::Secret, vec!["endpoint-url".to_owned()])
        );
        let wrong = volume(|volume| volume["spec"]["mountOptions"] = json!(["no-such-option"]));
        assert!(wrong.meaning.unwrap_err().to_string().contains("no-such-option"));
    }

    #[test]
    fn other_drivers_volumes_are_none_of_ours() {
        let other =
            json!({"metadata": {"name": "pv"}, "spec": {"csi": {"driver": "ebs", "volumeHandle": "x"}}});
        assert_eq!(VolumeFacts::of(&serde_json::from_value(other).unwrap()), None);
    }
}
