//! The volume that a claim and its class ask for, and its `PersistentVolume`. Pure.

use std::collections::BTreeMap;

use contract::arguments::Arguments;
use contract::names::DRIVER;
use contract::options::MountOption;
use contract::volume::{AuthenticationSource, attribute};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec, SecretReference,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt as _;
use kube::api::ObjectMeta;

use super::claims::claim::Claim;
use super::class::parameters::{ClassError, ClassParameters, DELETION_POLICY, Placement, REGION, SecretRef};
use super::class::template::Subject;
use super::reclaim::volume::{DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, FINALIZER, PROVISIONED_BY};
use super::s3::endpoint::Endpoint;
use super::volume_id::{DeletionPolicy, VolumeId};

/// csi-provisioner writes its identity into the attributes of every volume.
const IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";
/// The reclaim policy of a class that names none.
const DELETE: &str = "Delete";
/// Marks dynamically provisioned volumes, as the reference driver does.
pub const DYNAMIC: &str = "dynamicProvisioning";

#[derive(Clone, Debug)]
pub struct NewVolume {
    pub id: VolumeId,
    /// Region of the class, or of the Secret that its bucket is created with.
    pub region: Option<String>,
    pub provisioner_secret: Option<SecretRef>,
    node_publish_secret: Option<SecretRef>,
    parameters: ClassParameters,
}

impl NewVolume {
    /// Of a `CreateVolume` request. Nothing for a class of prefixes. csi-provisioner resolves the Secrets itself.
    pub fn of_request(name: &str, parameters: ClassParameters) -> Option<Self> {
        let Placement::Bucket { name_prefix, .. } = &parameters.placement else { return None };
        let id = VolumeId::bucket(name, name_prefix.as_deref());
        let region = parameters.region.clone();
        Some(Self { id, region, provisioner_secret: None, node_publish_secret: None, parameters })
    }

    pub fn of_claim(claim: &Claim, class: &StorageClass, endpoint: &Endpoint) -> Result<Self, ClassError> {
        let parameters = ClassParameters::of_class(class, endpoint)?;
        let volume_name = claim.volume_name();
        let subject = Subject {
            volume_name: &volume_name,
            namespace: &claim.namespace,
            name: &claim.name,
            annotations: &claim.annotations,
        };
        let id = match &parameters.placement {
            Placement::Bucket { name_prefix, .. } => VolumeId::bucket(&volume_name, name_prefix.as_deref()),
            Placement::Prefix { bucket, template, deletion } => {
                VolumeId::prefix(&volume_name, *deletion, bucket, template.resolve(&subject)?)
            }
        };
        let (provisioner, publish) = (&parameters.provisioner_secret, &parameters.node_publish_secret);
        Ok(Self {
            id,
            region: parameters.region.clone(),
            provisioner_secret: provisioner.as_ref().map(|secret| secret.resolve(&subject)).transpose()?,
            node_publish_secret: publish.as_ref().map(|secret| secret.resolve(&subject)).transpose()?,
            parameters,
        })
    }

    /// For the node, and for the deletion of the volume. `source` is for classes that name none.
    pub fn attributes(&self, source: Option<AuthenticationSource>) -> BTreeMap<String, String> {
        let policy = match self.parameters.placement {
            Placement::Bucket { deletion: DeletionPolicy::DeleteObjects, .. } => {
                Some((DELETION_POLICY, DeletionPolicy::DeleteObjects.into()))
            }
            Placement::Bucket { .. } | Placement::Prefix { .. } => None,
        };
        let is_named = self.parameters.attributes.contains_key(attribute::AUTHENTICATION_SOURCE);
        let source =
            source.filter(|_| !is_named).map(|source| (attribute::AUTHENTICATION_SOURCE, source.as_str()));
        let own = [(DYNAMIC, "true"), (attribute::BUCKET_NAME, self.id.bucket_name())].into_iter();
        let own =
            own.chain(source).chain(self.region.as_deref().map(|region| (REGION, region))).chain(policy);
        let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
        self.parameters.attributes.clone().into_iter().chain(own).collect()
    }

    fn mount_options(&self) -> Vec<String> {
        let mut options = self.parameters.mount_options.clone();
        if let VolumeId::Prefix { prefix, .. } = &self.id {
            options.push(format!("prefix={}", prefix.as_str()));
        }
        if let Some(region) =
            self.region.as_ref().filter(|_| !Arguments::parse(&options).has(MountOption::Region))
        {
            options.push(format!("region={region}"));
        }
        options
    }

    /// The `PersistentVolume` as csi-provisioner would write it.
    pub fn persistent_volume(&self, claim: &Claim, class: &StorageClass, identity: &str) -> PersistentVolume {
        let source = match self.node_publish_secret {
            Some(_) => AuthenticationSource::Secret,
            None => AuthenticationSource::Driver,
        };
        let mut attributes = self.attributes(Some(source));
        attributes.insert(IDENTITY.to_owned(), identity.to_owned());
        let deletion = self.provisioner_secret.as_ref();
        let deletion =
            deletion.map(|secret| (secret.name.as_str(), secret.namespace.as_str())).unwrap_or_default();
        let annotations = [
            (PROVISIONED_BY, DRIVER),
            (DELETION_SECRET_NAME, deletion.0),
            (DELETION_SECRET_NAMESPACE, deletion.1),
        ];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let policy = class.reclaim_policy.as_deref().unwrap_or(DELETE);
        let csi = CSIPersistentVolumeSource {
            driver: DRIVER.to_owned(),
            volume_handle: self.id.to_string(),
            volume_attributes: Some(attributes),
            node_publish_secret_ref: self.node_publish_secret.as_ref().map(|secret| SecretReference {
                name: Some(secret.name.clone()),
                namespace: Some(secret.namespace.clone()),
            }),
            ..CSIPersistentVolumeSource::default()
        };
        PersistentVolume {
            metadata: ObjectMeta {
                name: Some(claim.volume_name()),
                annotations: Some(annotations.into()),
                finalizers: (policy == DELETE).then(|| vec![FINALIZER.to_owned()]),
                ..ObjectMeta::default()
            },
            spec: Some(PersistentVolumeSpec {
                access_modes: Some(claim.access_modes.clone()),
                capacity: Some([("storage".to_owned(), Quantity(claim.storage.clone()))].into()),
                claim_ref: Some(claim.reference()),
                csi: Some(csi),
                mount_options: Some(self.mount_options()),
                persistent_volume_reclaim_policy: Some(policy.to_owned()),
                storage_class_name: Some(class.name_any()),
                volume_mode: Some("Filesystem".to_owned()),
                ..PersistentVolumeSpec::default()
            }),
            ..PersistentVolume::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim() -> Claim {
        let object = json!({
            "metadata": {
                "namespace": "ns", "name": "data", "uid": "1", "resourceVersion": "7",
                "annotations": {"volume.kubernetes.io/storage-provisioner": DRIVER},
            },
            "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "s3", "resources": {"requests": {"storage": "5Gi"}}},
        });
        Claim::of(&serde_json::from_value(object).unwrap()).unwrap()
    }

    fn volume(class: Value) -> Value {
        let class: StorageClass = serde_json::from_value(class).unwrap();
        let endpoint = Endpoint::parse("http://s3.test", "").unwrap();
        let new = NewVolume::of_claim(&claim(), &class, &endpoint).unwrap();
        serde_json::to_value(new.persistent_volume(&claim(), &class, "1-2-us")).unwrap()
    }

    #[test]
    fn a_volume_has_what_its_class_and_claim_say() {
        let written = volume(json!({
            "metadata": {"name": "s3"}, "provisioner": DRIVER, "reclaimPolicy": "Retain",
            "mountOptions": ["allow-delete"], "parameters": {
                "region": "eu-west-1", "bucketNamePrefix": "team",
                "csi.storage.k8s.io/provisioner-secret-name": "make", "csi.storage.k8s.io/provisioner-secret-namespace": "kube",
                "csi.storage.k8s.io/node-publish-secret-name": "use", "csi.storage.k8s.io/node-publish-secret-namespace": "${pvc.namespace}",
            },
        }));
        let bucket = VolumeId::bucket("pvc-1", Some("team")).to_string();
        assert_eq!(written["spec"]["csi"]["volumeHandle"], bucket);
        assert_eq!(written["spec"]["csi"]["nodePublishSecretRef"], json!({"name": "use", "namespace": "ns"}));
        let attributes = &written["spec"]["csi"]["volumeAttributes"];
        assert_eq!(attributes["bucketName"], bucket);
        assert_eq!(
            (attributes["authenticationSource"].as_str(), attributes["region"].as_str()),
            (Some("secret"), Some("eu-west-1"))
        );
        assert!(attributes.as_object().unwrap().keys().all(|key| !key.starts_with("csi.storage.k8s.io/")));
        assert_eq!(written["spec"]["mountOptions"], json!(["allow-delete", "region=eu-west-1"]));
        assert_eq!(written["metadata"]["annotations"][DELETION_SECRET_NAME], "make");
        assert_eq!(written["metadata"].get("finalizers"), None, "its bucket stays");
        assert_eq!(attributes.get("deletionPolicy"), None, "what is in it stays, too");
    }

    #[test]
    fn a_volume_says_what_becomes_of_its_objects() {
        let written = volume(json!({
            "metadata": {"name": "s3"}, "provisioner": DRIVER, "parameters": {"deletionPolicy": "delete-objects"},
        }));
        assert_eq!(written["spec"]["csi"]["volumeAttributes"]["deletionPolicy"], "delete-objects");
    }

    #[test]
    fn a_class_chooses_the_workloads_identity() {
        let written = volume(json!({
            "metadata": {"name": "s3"}, "provisioner": DRIVER,
            "parameters": {
                "authenticationSource": "pod", "stsRegion": "eu-west-1",
                "csi.storage.k8s.io/provisioner-secret-name": "make", "csi.storage.k8s.io/provisioner-secret-namespace": "kube",
            },
        }));
        let attributes = &written["spec"]["csi"]["volumeAttributes"];
        assert_eq!(
            (&attributes["authenticationSource"], &attributes["stsRegion"]),
            (&json!("pod"), &json!("eu-west-1"))
        );
        assert_eq!(written["spec"]["csi"].get("nodePublishSecretRef"), None);
    }

    #[test]
    fn a_prefix_reaches_the_mount() {
        let written = volume(json!({
            "metadata": {"name": "s3"}, "provisioner": DRIVER,
            "parameters": {"bucketName": "shared", "prefix": "${pvc.namespace}/${pvc.name}"},
        }));
        assert_eq!(written["spec"]["mountOptions"], json!(["prefix=ns/data/"]));
        assert_eq!(written["spec"]["csi"]["volumeAttributes"]["bucketName"], "shared");
        let id = VolumeId::parse(written["spec"]["csi"]["volumeHandle"].as_str().unwrap()).unwrap();
        assert!(id.is_derived_from("pvc-1"));
        assert_eq!(written["metadata"]["finalizers"], json!([FINALIZER]));
    }
}
