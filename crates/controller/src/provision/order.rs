//! A claim and its class together: the volume to be made, and the object that stands for it. Pure.

use contract::arguments::Arguments;
use contract::names::DRIVER;
use contract::volume::AuthenticationSource;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use serde_json::json;

use super::claim::Claim;
use super::naming::VolumeId;
use super::reclaim::{DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, FINALIZER, PROVISIONED_BY};
use super::storage_class::{ClassError, Plan, SecretRef, Target};
use super::template::Subject;
use super::volume;

/// csi-provisioner leaves its mark in the attributes of every volume.
const IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";

#[derive(Clone, Debug)]
pub struct Order {
    pub id: VolumeId,
    pub region: Option<String>,
    pub provisioner_secret: Option<SecretRef>,
    node_publish_secret: Option<SecretRef>,
    plan: Plan,
}

impl Order {
    /// `endpoint` is the driver's own.
    pub fn of(claim: &Claim, class: &StorageClass, endpoint: &str) -> Result<Self, ClassError> {
        let parameters = class.parameters.clone().unwrap_or_default();
        let plan = Plan::parse(&parameters, class.mount_options.as_deref().unwrap_or_default(), endpoint)?;
        let name = claim.persistent_volume();
        let subject = Subject {
            volume_name: &name,
            namespace: &claim.namespace,
            name: &claim.name,
            annotations: &claim.annotations,
        };
        let id = match &plan.target {
            Target::Bucket { name_prefix, .. } => VolumeId::bucket(&name, name_prefix.as_deref()),
            Target::Prefix { bucket, template, deletion } => {
                VolumeId::prefix(&name, *deletion, bucket, template.resolve(&subject)?)
            }
        };
        let resolve = |secret: &Option<super::storage_class::SecretTemplate>| {
            secret.as_ref().map(|secret| secret.resolve(&subject)).transpose()
        };
        Ok(Self {
            id,
            region: plan.region.clone(),
            provisioner_secret: resolve(&plan.provisioner_secret)?,
            node_publish_secret: resolve(&plan.node_publish_secret)?,
            plan,
        })
    }

    /// The class's, and what its parameters mean for a mount.
    fn mount_options(&self) -> Vec<String> {
        let mut options = self.plan.mount_options.clone();
        if let VolumeId::Prefix { prefix, .. } = &self.id {
            options.push(format!("prefix={}", prefix.as_str()));
        }
        if let Some(region) = self.region.as_ref().filter(|_| !Arguments::parse(&options).has("region")) {
            options.push(format!("region={region}"));
        }
        options
    }

    /// As csi-provisioner would write it. `identity` is who writes it.
    pub fn persistent_volume(&self, claim: &Claim, class: &StorageClass, identity: &str) -> PersistentVolume {
        let source = match self.node_publish_secret {
            Some(_) => AuthenticationSource::Secret,
            None => AuthenticationSource::Driver,
        };
        let mut attributes = volume::context(&self.id, Some(source), &self.plan, self.region.as_deref());
        attributes.insert(IDENTITY.to_owned(), identity.to_owned());
        let secret = |secret: &SecretRef| json!({"name": secret.name, "namespace": secret.namespace});
        let (deleting, policy) = (self.provisioner_secret.as_ref(), reclaim_policy(class));
        let annotations = json!({
            PROVISIONED_BY: DRIVER,
            DELETION_SECRET_NAME: deleting.map(|secret| secret.name.as_str()).unwrap_or_default(),
            DELETION_SECRET_NAMESPACE: deleting.map(|secret| secret.namespace.as_str()).unwrap_or_default(),
        });
        let finalizers: &[&str] = if policy == "Delete" { &[FINALIZER] } else { &[] };
        let mut object = json!({
            "metadata": {
                "name": claim.persistent_volume(), "annotations": annotations, "finalizers": finalizers,
            },
            "spec": {
                "accessModes": claim.access_modes,
                "capacity": {"storage": claim.storage},
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace,
                    "name": claim.name, "uid": claim.uid, "resourceVersion": claim.resource_version.to_string(),
                },
                "csi": {"driver": DRIVER, "volumeHandle": self.id.to_string(), "volumeAttributes": attributes},
                "mountOptions": self.mount_options(),
                "persistentVolumeReclaimPolicy": policy,
                "storageClassName": class.name_any(),
                "volumeMode": "Filesystem",
            },
        });
        if let Some(publish) = &self.node_publish_secret {
            object["spec"]["csi"]["nodePublishSecretRef"] = secret(publish);
        }
        serde_json::from_value(object).expect("this has the shape of a volume")
    }
}

/// The API server's default is Delete.
fn reclaim_policy(class: &StorageClass) -> &str {
    class.reclaim_policy.as_deref().unwrap_or("Delete")
}

/// Whether a volume is made only when a pod needs it.
pub fn waits_for_consumer(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

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
        let order = Order::of(&claim(), &class, "http://s3.test").unwrap();
        serde_json::to_value(order.persistent_volume(&claim(), &class, "1-2-us")).unwrap()
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
        assert_eq!(written["metadata"].get("finalizers"), Some(&json!([])), "its bucket stays");
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
    fn a_prefix_reaches_the_mount() {
        let written = volume(json!({
            "metadata": {"name": "s3"}, "provisioner": DRIVER,
            "parameters": {"bucketName": "shared", "prefix": "${pvc.namespace}/${pvc.name}"},
        }));
        assert_eq!(written["spec"]["mountOptions"], json!(["prefix=ns/data/"]));
        assert_eq!(written["spec"]["csi"]["volumeAttributes"]["bucketName"], "shared");
        let id = VolumeId::parse(written["spec"]["csi"]["volumeHandle"].as_str().unwrap()).unwrap();
        assert!(id.is_of("pvc-1"));
        assert_eq!(written["metadata"]["finalizers"], json!([FINALIZER]));
    }
}
