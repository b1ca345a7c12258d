//! Mountpoint Pods without a volume, and what makes them those of one.
//!
//! Nothing of a pod's spec can be changed later, its priority class included. So a warm pod is, from the start, what it will
//! be when it serves, and only volumes that need no other spec can claim it.

use std::collections::BTreeMap;

use contract::mountpoint_pod::EarlyMount;
use contract::names::annotation;
use contract::sharing::SharingKey;
use contract::volume::Volume;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha224};

use super::shape::Shape;
use super::{Blueprint, ClaimName};

/// As long as it is warm, a cluster autoscaler may remove its node without asking.
pub(super) const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

impl Blueprint {
    pub fn build_warm(&self, name: &str, node: &str) -> Pod {
        let mut pod = self.unmarked(name, node);
        let marks = [(annotation::WARM_ON, node.to_owned()), (annotation::WARM_SHAPE, self.warm_shape())];
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.extend(marks.map(|(key, value)| (key.to_owned(), value)));
        pod
    }

    /// Distinguishes the warm pods that this controller makes from those of one with other flags or of another version.
    pub fn warm_shape(&self) -> String {
        let pod = json!(self.unmarked("", "")).to_string();
        base16ct::lower::encode_string(&Sha224::digest(pod))
    }

    /// Whether a warm pod can serve the volume.
    pub fn suits_warm(&self, volume: &Volume) -> bool {
        self.spec("", &Shape::of(volume)) == self.spec("", &Shape::default())
    }

    /// The labels and annotations that a pod created for the attachment would have, as a merge patch of a warm pod's
    /// metadata, and what the node may mount at once.
    pub fn claim(
        &self,
        attachment: &str,
        workload_uid: &str,
        key: &SharingKey,
        claim: Option<&ClaimName>,
        early_mount: Option<&EarlyMount>,
    ) -> Value {
        let mut annotations: BTreeMap<String, Option<String>> =
            [SAFE_TO_EVICT, annotation::WARM_ON, annotation::WARM_SHAPE]
                .map(|mark| (mark.to_owned(), None))
                .into();
        let usual = self.annotations(attachment, key, claim);
        annotations.extend(usual.into_iter().map(|(name, value)| (name, Some(value))));
        let early_mount =
            early_mount.map(|early| (annotation::EARLY_MOUNT.to_owned(), Some(json!(early).to_string())));
        annotations.extend(early_mount);
        json!({"labels": self.labels(workload_uid, &key.volume_name), "annotations": annotations})
    }

    fn unmarked(&self, name: &str, node: &str) -> Pod {
        let mut annotations = self.installation_annotations();
        annotations.insert(SAFE_TO_EVICT.to_owned(), "true".to_owned());
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.flags.mountpoint_namespace.clone()),
            labels: Some(self.installation_labels()),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        };
        Pod { metadata, spec: Some(self.spec(node, &Shape::default())), status: None }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use contract::authentication::SecretRef;
    use contract::sharing::Identity;
    use contract::volume_plan::VolumePlan;

    use super::super::Served;
    use super::*;
    use crate::flags::Flags;

    fn blueprint(flags: &[&str]) -> Blueprint {
        blueprint_of("image:1", "9.8.7", flags)
    }

    fn blueprint_of(image: &str, version: &str, flags: &[&str]) -> Blueprint {
        let flags =
            ["s3-csi-controller", "--mountpoint-image", image].into_iter().chain(flags.iter().copied());
        Blueprint::new(Flags::parse_from(flags), version, false)
    }

    fn volume(attributes: &[(&str, &str)]) -> Volume {
        let attributes = [("bucketName", "bucket")].iter().chain(attributes);
        let attributes = attributes.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        VolumePlan::parse(&attributes, SecretRef::Absent, [""]).unwrap().volume
    }

    /// RFC 7386, as far as strings in two levels need it.
    fn merged(mut metadata: Value, patch: &Value) -> Value {
        for (part, changes) in patch.as_object().unwrap() {
            for (name, value) in changes.as_object().unwrap() {
                let part = metadata[part].as_object_mut().unwrap();
                match value {
                    Value::Null => part.remove(name),
                    value => part.insert(name.clone(), value.clone()),
                };
            }
        }
        metadata
    }

    #[test]
    fn a_claimed_pod_is_what_would_have_been_created() {
        let key = SharingKey {
            node: "worker-1".into(),
            volume_name: "pv".into(),
            volume_id: "h".into(),
            mount_options: String::new(),
            fs_group: String::new(),
            identity: Identity::Driver,
        };
        let evictable =
            "--mountpoint-pod-annotations={\"cluster-autoscaler.kubernetes.io/safe-to-evict\":\"false\"}";
        for flags in [&[][..], &[evictable, "--mountpoint-pod-labels={\"team\":\"a\"}"]] {
            let blueprint = blueprint(flags);
            let claim = ("ns".to_owned(), "data".to_owned());
            let served = Served { volume: &volume(&[]), claim: Some(&claim) };
            let usual = json!(blueprint.build("mp-1", "s3pa-1", "uid-1", &key, served));
            let warm = json!(blueprint.build_warm("mp-1", "worker-1"));
            assert_eq!(warm["metadata"]["annotations"][SAFE_TO_EVICT], "true");
            assert_eq!(warm["spec"], usual["spec"]);
            let patch = blueprint.claim("s3pa-1", "uid-1", &key, Some(&claim), None);
            assert_eq!(merged(warm["metadata"].clone(), &patch), usual["metadata"]);
        }
    }

    #[test]
    fn volumes_that_need_another_spec_go_the_usual_way() {
        let blueprint = blueprint(&[]);
        assert!(blueprint.suits_warm(&volume(&[])));
        for attribute in [
            ("mountpointPodServiceAccountName", "mounts"),
            ("mountpointContainerResourcesRequestsCpu", "250m"),
            ("cache", "emptyDir"),
        ] {
            assert!(!blueprint.suits_warm(&volume(&[attribute])), "{attribute:?}");
        }
    }

    #[test]
    fn every_change_of_the_installation_has_another_shape() {
        let shape = blueprint(&[]).warm_shape();
        assert_eq!(shape, blueprint(&[]).warm_shape());
        assert_ne!(shape, blueprint_of("image:2", "9.8.7", &[]).warm_shape());
        assert_ne!(shape, blueprint_of("image:1", "9.8.8", &[]).warm_shape());
        for flag in [
            "--mountpoint-priority-class-name=critical",
            "--mountpoint-pod-labels={\"team\":\"a\"}",
            "--mountpoint-pod-annotations={\"team\":\"a\"}",
            "--mountpoint-resources={\"limits\": {\"memory\": \"1Gi\"}}",
        ] {
            assert_ne!(shape, blueprint(&[flag]).warm_shape(), "{flag}");
        }
    }
}
