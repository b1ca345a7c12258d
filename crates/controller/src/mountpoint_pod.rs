//! What a Mountpoint Pod looks like.

use std::collections::BTreeMap;

use contract::names::{
    AUTHORITY_IN_POD, CACHE_IN_POD, CACHE_VOLUME, COMM_IN_POD, COMM_VOLUME, annotation, label,
};
use contract::quantity::Quantity;
use contract::sharing::SharingKey;
use contract::volume::{Cache, Volume};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::flags::Flags;

/// The user of a Mountpoint Pod, and the group that node and pod share its folders through.
const USER: i64 = 1000;
/// Sockets, options, credentials and an error: kilobytes. In memory, because there are secrets among them.
const COMM_SIZE: &str = "10Mi";
/// A pod that is deleted by hand or with its node goes on serving as long as its workloads need it, up to this long.
const GRACE_SECONDS: i64 = 600;

/// What is the same for every Mountpoint Pod of this installation.
#[derive(Clone, Debug)]
pub struct Blueprint {
    flags: Flags,
    pub driver_version: String,
    /// `OpenShift` assigns users and groups itself and refuses pods that choose.
    assigns_users: bool,
}

impl Blueprint {
    pub fn new(flags: Flags, driver_version: &str, assigns_users: bool) -> Self {
        Self { flags, driver_version: driver_version.to_owned(), assigns_users }
    }

    pub fn build(
        &self,
        name: &str,
        attachment: &str,
        workload_uid: &str,
        key: &SharingKey,
        volume: &Volume,
    ) -> Pod {
        let mut mounts = vec![json!({"name": COMM_VOLUME, "mountPath": COMM_IN_POD})];
        let mut volumes =
            vec![json!({"name": COMM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": COMM_SIZE}})];
        let cache = self.limited(&volume.cache);
        if let Some(source) = cache_source(&cache) {
            let mut cache = source;
            cache["name"] = json!(CACHE_VOLUME);
            volumes.push(cache);
            mounts.push(json!({"name": CACHE_VOLUME, "mountPath": CACHE_IN_POD}));
        }
        if !self.flags.tls_ca_cert_configmap.is_empty() {
            let item = json!({"key": "ca-bundle.crt", "path": "ca-bundle.crt"});
            let source = json!({"name": self.flags.tls_ca_cert_configmap, "items": [item]});
            volumes.push(json!({"name": "custom-ca-cert", "configMap": source}));
            mounts.push(json!({"name": "custom-ca-cert", "mountPath": AUTHORITY_IN_POD, "readOnly": true}));
        }
        let mut security = json!({
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "seccompProfile": {"type": "RuntimeDefault"},
        });
        let mut pod_security = json!({});
        if !self.assigns_users {
            security["runAsUser"] = json!(USER);
            pod_security["fsGroup"] = json!(USER);
        }
        let pull_secrets = self.flags.mountpoint_image_pull_secrets.iter().filter(|name| !name.is_empty());
        let pod = json!({
            "metadata": {
                "name": name,
                "namespace": self.flags.mountpoint_namespace,
                "labels": self.labels(workload_uid),
                "annotations": {
                    annotation::ATTACHMENT: attachment,
                    annotation::VOLUME_NAME: key.volume_name,
                    annotation::VOLUME_ID: key.volume_id,
                    annotation::AUTHENTICATION_SOURCE: key.identity.source().as_str(),
                    // Else the autoscaler would keep a node only for this pod.
                    "cluster-autoscaler.kubernetes.io/daemonset-pod": "true",
                },
            },
            "spec": {
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [key.node]}]}
                ]}}},
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "mountpoint",
                    "image": self.flags.mountpoint_image,
                    "imagePullPolicy": self.flags.mountpoint_image_pull_policy,
                    "command": [self.flags.mountpoint_container_command],
                    "resources": self.flags.mountpoint_resources.of(&volume.resources, &cache).to_json(),
                    "securityContext": security,
                    "volumeMounts": mounts,
                }],
                "imagePullSecrets": pull_secrets.map(|name| json!({"name": name})).collect::<Vec<_>>(),
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "priorityClassName": self.flags.mountpoint_priority_class_name,
                "restartPolicy": "OnFailure",
                "securityContext": pod_security,
                "serviceAccountName": volume.service_account.clone().unwrap_or_default(),
                "terminationGracePeriodSeconds": GRACE_SECONDS,
                // Wherever a workload may run, its volume must follow.
                "tolerations": [{"operator": "Exists"}],
                "volumes": volumes,
            },
        });
        serde_json::from_value(pod).expect("the text above is a pod")
    }

    /// The limit of this installation, if it is what bounds the volume's cache.
    pub fn limit_for(&self, cache: &Cache) -> Option<&Quantity> {
        let unbounded = matches!(cache, Cache::EmptyDir { size_limit: None, .. });
        self.flags.mountpoint_cache_size_limit.0.as_ref().filter(|_| unbounded)
    }

    fn limited(&self, cache: &Cache) -> Cache {
        match (self.limit_for(cache), cache) {
            (Some(limit), Cache::EmptyDir { in_memory, .. }) => {
                Cache::EmptyDir { size_limit: Some(limit.clone()), in_memory: *in_memory }
            }
            _ => cache.clone(),
        }
    }

    fn labels(&self, workload_uid: &str) -> BTreeMap<String, String> {
        let mut labels = self.flags.mountpoint_pod_labels.0.clone();
        labels.insert(label::DRIVER_VERSION.to_owned(), self.driver_version.clone());
        labels.insert(label::MOUNTPOINT_VERSION.to_owned(), self.flags.mountpoint_version.clone());
        labels.insert(label::WORKLOAD_UID.to_owned(), workload_uid.to_owned());
        labels
    }
}

fn cache_source(cache: &Cache) -> Option<Value> {
    match cache {
        Cache::None => None,
        Cache::EmptyDir { size_limit, in_memory } => Some(json!({"emptyDir": {
            "sizeLimit": size_limit.as_ref().map(Quantity::to_written),
            "medium": in_memory.then_some("Memory"),
        }})),
        Cache::Ephemeral { storage_class, request } => Some(json!({"ephemeral": {"volumeClaimTemplate": {
            "metadata": {"labels": {"s3.csi.scality.com/type": "local-ephemeral-cache"}},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "volumeMode": "Filesystem",
                "storageClassName": storage_class,
                "resources": {"requests": {"storage": request.to_written()}},
            },
        }}})),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use contract::arguments::Arguments;
    use contract::authentication::SecretRef;
    use contract::sharing::Identity;

    fn build(flags: &[&str], attributes: &[(&str, &str)], assigns_users: bool) -> Value {
        let flags = ["s3-csi-controller", "--mountpoint-image=image:1"].iter().chain(flags);
        let blueprint = Blueprint::new(Flags::parse_from(flags), "9.8.7", assigns_users);
        let attributes = [("bucketName", "bucket")].iter().chain(attributes);
        let attributes = attributes.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let volume = Volume::parse(&attributes, SecretRef::Absent, &Arguments::default()).unwrap();
        let key = SharingKey {
            node: "worker-1".into(),
            volume_name: "v".repeat(253),
            volume_id: "h".into(),
            mount_options: String::new(),
            fs_group: String::new(),
            identity: Identity::Driver,
        };
        serde_json::to_value(blueprint.build("mp-1", "s3pa-1", "uid-1", &key, &volume)).unwrap()
    }

    #[test]
    fn it_is_pinned_to_the_node_and_has_no_privileges() {
        let pod = build(&["--mountpoint-priority-class-name=critical"], &[], false);
        let spec = &pod["spec"];
        let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        let term =
            json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["worker-1"]}]}]);
        assert_eq!(terms, &term);
        assert_eq!(spec["tolerations"], json!([{"operator": "Exists"}]));
        assert_eq!(spec["restartPolicy"], "OnFailure");
        assert_eq!(spec["terminationGracePeriodSeconds"], 600);
        assert_eq!(spec["priorityClassName"], "critical");
        assert_eq!(spec["securityContext"]["fsGroup"], 1000);
        let container = &spec["containers"][0];
        assert_eq!(
            (&container["image"], &container["command"]),
            (&json!("image:1"), &json!(["/bin/s3-csi-mounter"]))
        );
        let security = &container["securityContext"];
        assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
        assert_eq!(security["readOnlyRootFilesystem"], json!(true));
        assert_eq!((&security["runAsNonRoot"], &security["runAsUser"]), (&json!(true), &json!(1000)));
        assert_eq!(
            spec["volumes"],
            json!([{"name": "comm", "emptyDir": {"medium": "Memory", "sizeLimit": "10Mi"}}])
        );
    }

    #[test]
    fn labels_and_annotations_tell_what_it_is_for() {
        let pod =
            build(&["--mountpoint-version=1.2", "--mountpoint-pod-labels={\"team\":\"a\"}"], &[], false);
        let labels = &pod["metadata"]["labels"];
        assert_eq!(labels["s3.csi.scality.com/mounted-by-csi-driver-version"], "9.8.7");
        assert_eq!(labels["s3.csi.scality.com/mountpoint-version"], "1.2");
        assert_eq!(labels["s3.csi.scality.com/pod-uid"], "uid-1");
        assert_eq!(labels["team"], "a");
        let annotations = &pod["metadata"]["annotations"];
        assert_eq!(annotations["s3.csi.scality.com/volume-name"], "v".repeat(253));
        assert_eq!(annotations["s3.csi.scality.com/attachment"], "s3pa-1");
        assert_eq!(annotations["s3.csi.scality.com/authentication-source"], "driver");
    }

    #[test]
    fn openshift_chooses_users_itself() {
        let pod = build(&[], &[], true);
        assert_eq!(pod["spec"]["securityContext"].get("fsGroup"), None);
        assert_eq!(pod["spec"]["containers"][0]["securityContext"].get("runAsUser"), None);
    }

    #[test]
    fn attributes_shape_it() {
        let pod = build(
            &["--tls-ca-cert-configmap=authority", "--mountpoint-image-pull-secrets=one,two"],
            &[
                ("mountpointPodServiceAccountName", "mounts"),
                ("mountpointContainerResourcesRequestsCpu", "250m"),
                ("mountpointContainerResourcesLimitsMemory", "1Gi"),
                ("cache", "emptyDir"),
                ("cacheEmptyDirSizeLimit", "2Gi"),
            ],
            false,
        );
        let spec = &pod["spec"];
        assert_eq!(spec["serviceAccountName"], "mounts");
        assert_eq!(spec["imagePullSecrets"], json!([{"name": "one"}, {"name": "two"}]));
        assert_eq!(
            spec["containers"][0]["resources"],
            json!({"requests": {"cpu": "250m"}, "limits": {"memory": "1Gi"}})
        );
        assert_eq!(spec["volumes"][1], json!({"name": "local-cache", "emptyDir": {"sizeLimit": "2Gi"}}));
        assert_eq!(spec["volumes"][2]["configMap"]["name"], "authority");
        let mounts = spec["containers"][0]["volumeMounts"].as_array().unwrap();
        let paths: Vec<&str> = mounts.iter().filter_map(|mount| mount["mountPath"].as_str()).collect();
        assert_eq!(paths, ["/comm", "/local-cache", "/etc/s3-csi/authority"]);
    }

    #[test]
    fn what_the_volume_does_not_bound_the_installation_does() {
        let bounds =
            "--mountpoint-resources={\"limits\": {\"memory\": \"512Mi\", \"ephemeral-storage\": \"100Mi\"}}";
        let flags = [bounds, "--mountpoint-cache-size-limit=1Gi"];
        let limits = |pod: &Value| pod["spec"]["containers"][0]["resources"]["limits"].clone();
        let pod = build(&flags, &[], false);
        assert_eq!(limits(&pod), json!({"memory": "512Mi", "ephemeral-storage": "100Mi"}));
        let pod = build(&flags, &[("cache", "emptyDir")], false);
        assert_eq!(pod["spec"]["volumes"][1]["emptyDir"]["sizeLimit"], "1Gi");
        assert_eq!(limits(&pod)["ephemeral-storage"], (1124_u64 << 20).to_string());
        let own = [("cache", "emptyDir"), ("cacheEmptyDirSizeLimit", "2Gi")];
        assert_eq!(build(&flags, &own, false)["spec"]["volumes"][1]["emptyDir"]["sizeLimit"], "2Gi");
    }

    #[test]
    fn a_cache_can_be_a_volume_of_its_own() {
        let pod = build(
            &[],
            &[
                ("cache", "ephemeral"),
                ("cacheEphemeralStorageClassName", "fast"),
                ("cacheEphemeralStorageResourceRequest", "10Gi"),
            ],
            false,
        );
        let claim = &pod["spec"]["volumes"][1]["ephemeral"]["volumeClaimTemplate"]["spec"];
        assert_eq!(
            (&claim["storageClassName"], &claim["resources"]["requests"]["storage"]),
            (&json!("fast"), &json!("10Gi"))
        );
    }
}
