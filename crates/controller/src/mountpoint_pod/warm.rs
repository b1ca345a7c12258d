//! Mountpoint Pods without a volume, and what makes them those of one.
//!
//! Nothing of a pod's spec can be changed later, its priority class included. So a warm pod is, from the start, what it will
//! be when it serves, and only volumes that need no other spec can claim it.

use std::collections::{BTreeMap, BTreeSet};

use contract::mountpoint_pod::EarlyMount;
use contract::names::annotation;
use contract::sharing::SharingKey;
use contract::volume::Volume;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha224};

use super::shape::Shape;
use super::{Blueprint, Served};
use crate::room::PODS;

/// As long as it is warm, a cluster autoscaler may remove its node without asking.
pub(super) const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

impl Blueprint {
    /// Owned by its node, as a static pod is: `kubectl drain` does not evict what no controller owns, unless forced, and the
    /// cluster collects what a node leaves behind.
    pub fn build_warm(&self, name: &str, node: &str, node_uid: &str) -> Pod {
        let mut pod = self.unmarked(name, node);
        pod.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: node.to_owned(),
            uid: node_uid.to_owned(),
            controller: Some(true),
            block_owner_deletion: None,
        }]);
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

    /// What a warm pod takes of its node. A limit without a request is one.
    pub fn warm_resources(&self) -> BTreeSet<String> {
        let resources = self.spec("", &Shape::default()).containers.into_iter().filter_map(|it| it.resources);
        let amounts = resources.flat_map(|bounds| [bounds.requests, bounds.limits]).flatten();
        amounts.flat_map(BTreeMap::into_keys).chain([PODS.to_owned()]).collect()
    }

    /// Whether a warm pod can serve the volume.
    pub fn suits_warm(&self, volume: &Volume) -> bool {
        self.spec("", &Shape::of(volume)) == self.spec("", &Shape::default())
    }

    /// The metadata that a pod created for the attachment would have, as a merge patch of a warm pod's, and what the node may
    /// mount at once. Without an owner: the workloads of a node whose object is deleted may still run.
    pub fn claim(
        &self,
        attachment: &str,
        workload_uid: &str,
        key: &SharingKey,
        served: Served<'_>,
        early_mount: Option<&EarlyMount>,
    ) -> Value {
        let mut annotations: BTreeMap<String, Option<String>> =
            [SAFE_TO_EVICT, annotation::WARM_ON, annotation::WARM_SHAPE]
                .map(|mark| (mark.to_owned(), None))
                .into();
        let usual = self.annotations(attachment, key, served);
        annotations.extend(usual.into_iter().map(|(name, value)| (name, Some(value))));
        annotations.insert(annotation::EARLY_MOUNT.to_owned(), Some(json!(early_mount).to_string()));
        json!({
            "labels": self.labels(workload_uid, &key.volume_name),
            "annotations": annotations,
            "ownerReferences": null,
        })
    }

    fn unmarked(&self, name: &str, node: &str) -> Pod {
        let mut annotations = self.installation_annotations();
        annotations.insert(SAFE_TO_EVICT.to_owned(), "true".to_owned());
        let metadata = self.metadata(name, self.installation_labels(), annotations);
        Pod { metadata, spec: Some(self.spec(node, &Shape::default())), status: None }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use contract::authentication::SecretPresence;
    use contract::sharing::Identity;
    use contract::volume_plan::VolumePlan;

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
        VolumePlan::parse(&attributes, SecretPresence::Absent, [""]).unwrap().volume
    }

    /// RFC 7386.
    fn merge(target: &mut Value, patch: &Value) {
        let Some(changes) = patch.as_object() else { return target.clone_from(patch) };
        for (name, change) in changes {
            match change {
                Value::Null => drop(target.as_object_mut().unwrap().remove(name)),
                change => merge(&mut target[name], change),
            }
        }
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
            let mut warm = json!(blueprint.build_warm("mp-1", "worker-1", "node-uid"));
            let owner = json!([{
                "apiVersion": "v1", "kind": "Node", "name": "worker-1", "uid": "node-uid", "controller": true,
            }]);
            assert_eq!(warm["metadata"]["ownerReferences"], owner);
            assert_eq!(warm["metadata"]["annotations"][SAFE_TO_EVICT], "true");
            assert_eq!(warm["spec"], usual["spec"]);
            let patch = blueprint.claim("s3pa-1", "uid-1", &key, served, None);
            merge(&mut warm["metadata"], &patch);
            let annotations = warm["metadata"]["annotations"].as_object_mut().unwrap();
            assert_eq!(annotations.remove(annotation::EARLY_MOUNT), Some(json!("null")));
            assert_eq!(warm["metadata"], usual["metadata"]);
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

    #[test]
    fn it_takes_what_it_requests_and_one_pod_of_its_node() {
        let resources = |given: &str| -> Vec<String> {
            let flag = format!("--mountpoint-resources={given}");
            blueprint(&[&flag]).warm_resources().into_iter().collect()
        };
        let usual =
            r#"{"requests": {"memory": "64Mi", "ephemeral-storage": "16Mi"}, "limits": {"memory": "512Mi"}}"#;
        assert_eq!(resources(usual), ["ephemeral-storage", "memory", "pods"]);
        assert_eq!(resources(r#"{"limits": {"cpu": "1"}}"#), ["cpu", "pods"]);
    }
}
