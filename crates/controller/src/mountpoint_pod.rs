//! What a Mountpoint Pod looks like. Built of typed structs: a misspelt field does not compile.

pub mod headroom;
mod shape;
mod warm;

use std::collections::BTreeMap;

use contract::names::{
    AUTHORITY_IN_POD, CACHE_IN_POD, CACHE_VOLUME, COMM_IN_POD, COMM_VOLUME, annotation, label,
};
use contract::quantity::Quantity;
use contract::sharing::SharingKey;
use contract::volume::{Cache, Volume};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, ConfigMapVolumeSource, Container, EmptyDirVolumeSource, EphemeralVolumeSource,
    KeyToPath, LocalObjectReference, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    PersistentVolumeClaimSpec, PersistentVolumeClaimTemplate, Pod, PodSecurityContext, PodSpec,
    SeccompProfile, SecurityContext, Toleration, Volume as PodVolume, VolumeMount,
    VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource as k8s_quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::flags::Flags;
use shape::Shape;

/// The user of a Mountpoint Pod, and the group that node and pod share its folders through.
const USER: i64 = 1000;
/// In memory, because there are credentials in it. Beside them, what a mount needs to survive its process: up to 64 MiB of
/// files that are being written, and a line for each file that the kernel knows, of which a million take another 64 MiB.
const COMM_SIZE: &str = "128Mi";
/// A pod that is deleted by hand or with its node keeps serving as long as its workloads need it, up to this long.
const GRACE_SECONDS: i64 = 600;

/// The key of the installation's `ConfigMap`, and the file that it becomes.
const CA_BUNDLE: &str = "ca-bundle.crt";

/// What is the same for every Mountpoint Pod of this installation.
#[derive(Clone, Debug)]
pub struct Blueprint {
    flags: Flags,
    pub driver_version: String,
    /// `OpenShift` assigns users and groups itself and refuses pods that choose.
    assigns_users: bool,
}

/// What a Mountpoint Pod is for.
#[derive(Clone, Copy, Debug)]
pub struct Served<'a> {
    pub volume: &'a Volume,
    pub claim: Option<&'a ClaimName>,
}

/// Namespace and name.
pub type ClaimName = (String, String);

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
        served: Served<'_>,
    ) -> Pod {
        let labels = self.labels(workload_uid, &key.volume_name);
        let metadata = self.metadata(name, labels, self.annotations(attachment, key, served));
        Pod { metadata, spec: Some(self.spec(&key.node, &Shape::of(served.volume))), status: None }
    }

    fn metadata(
        &self,
        name: &str,
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
    ) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.flags.mountpoint_namespace.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        }
    }

    fn spec(&self, node: &str, shape: &Shape) -> PodSpec {
        let cache = self.limited(&shape.cache);
        let (volumes, mounts) = self.volumes(&cache);
        let container = Container {
            name: "mountpoint".to_owned(),
            image: Some(self.flags.mountpoint_image.clone()),
            image_pull_policy: Some(self.flags.mountpoint_image_pull_policy.clone()),
            command: Some(vec![self.flags.mountpoint_container_command.clone()]),
            resources: Some(self.flags.mountpoint_resources.of(&shape.resources, &cache).to_requirements()),
            security_context: Some(self.container_security()),
            volume_mounts: Some(mounts),
            ..Container::default()
        };
        let pull_secrets = self.flags.mountpoint_image_pull_secrets.iter().filter(|name| !name.is_empty());
        PodSpec {
            affinity: Some(on_node(node)),
            automount_service_account_token: Some(false),
            containers: vec![container],
            image_pull_secrets: Some(
                pull_secrets.map(|name| LocalObjectReference { name: name.clone() }).collect(),
            ),
            node_selector: Some([("kubernetes.io/os".to_owned(), "linux".to_owned())].into()),
            priority_class_name: Some(self.flags.mountpoint_priority_class_name.clone()),
            restart_policy: Some("OnFailure".to_owned()),
            security_context: Some(self.pod_security()),
            service_account_name: shape.service_account.clone(),
            termination_grace_period_seconds: Some(GRACE_SECONDS),
            // Wherever a workload may run, its volume must follow.
            tolerations: Some(vec![Toleration {
                operator: Some("Exists".to_owned()),
                ..Toleration::default()
            }]),
            volumes: Some(volumes),
            ..PodSpec::default()
        }
    }

    fn volumes(&self, cache: &Cache) -> (Vec<PodVolume>, Vec<VolumeMount>) {
        let mount = |name: &str, path: &str, read_only: Option<bool>| VolumeMount {
            name: name.to_owned(),
            mount_path: path.to_owned(),
            read_only,
            ..VolumeMount::default()
        };
        let comm = empty_dir(Some("Memory"), Some(k8s_quantity::Quantity(COMM_SIZE.to_owned())));
        let comm = PodVolume { name: COMM_VOLUME.to_owned(), empty_dir: Some(comm), ..PodVolume::default() };
        let mut all = vec![(comm, mount(COMM_VOLUME, COMM_IN_POD, None))];
        if let Some(volume) = cache_volume(cache) {
            all.push((volume, mount(CACHE_VOLUME, CACHE_IN_POD, None)));
        }
        if !self.flags.tls_ca_cert_configmap.is_empty() {
            let item = KeyToPath { key: CA_BUNDLE.to_owned(), path: CA_BUNDLE.to_owned(), mode: None };
            let source = ConfigMapVolumeSource {
                name: self.flags.tls_ca_cert_configmap.clone(),
                items: Some(vec![item]),
                ..ConfigMapVolumeSource::default()
            };
            let name = "custom-ca-cert".to_owned();
            let volume = PodVolume { name, config_map: Some(source), ..PodVolume::default() };
            all.push((volume, mount("custom-ca-cert", AUTHORITY_IN_POD, Some(true))));
        }
        all.into_iter().unzip()
    }

    fn pod_security(&self) -> PodSecurityContext {
        PodSecurityContext {
            fs_group: (!self.assigns_users).then_some(USER),
            ..PodSecurityContext::default()
        }
    }

    fn container_security(&self) -> SecurityContext {
        SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                ..Capabilities::default()
            }),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            run_as_user: (!self.assigns_users).then_some(USER),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                ..SeccompProfile::default()
            }),
            ..SecurityContext::default()
        }
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

    fn labels(&self, workload_uid: &str, volume_name: &str) -> BTreeMap<String, String> {
        let mut labels = self.installation_labels();
        labels.insert(label::WORKLOAD_UID.to_owned(), workload_uid.to_owned());
        if volume_name.len() <= label::LONGEST_VALUE {
            labels.insert(label::VOLUME_NAME.to_owned(), volume_name.to_owned());
        }
        labels
    }

    fn installation_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.flags.mountpoint_pod_labels.0.clone();
        labels.insert(label::DRIVER_VERSION.to_owned(), self.driver_version.clone());
        labels.insert(label::MOUNTPOINT_VERSION.to_owned(), self.flags.mountpoint_version.clone());
        labels
    }

    fn installation_annotations(&self) -> BTreeMap<String, String> {
        let mut annotations = self.flags.mountpoint_pod_annotations.0.clone();
        // Else the autoscaler would keep a node only for this pod.
        let own = "cluster-autoscaler.kubernetes.io/daemonset-pod";
        for own in [own, annotation::MOVABLE] {
            annotations.insert(own.to_owned(), "true".to_owned());
        }
        annotations
    }

    /// What the installation adds cannot replace what node and controller read.
    fn annotations(
        &self,
        attachment: &str,
        key: &SharingKey,
        served: Served<'_>,
    ) -> BTreeMap<String, String> {
        let own = [
            (annotation::ATTACHMENT, attachment),
            (annotation::VOLUME_NAME, &key.volume_name),
            (annotation::VOLUME_ID, &key.volume_id),
            // Of the volume: the reference's attachments say `driver` for a volume that only names a Secret.
            (annotation::AUTHENTICATION_SOURCE, served.volume.authentication.as_str()),
        ];
        let mut annotations = self.installation_annotations();
        annotations.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let claim = served.claim.map(|(namespace, name)| format!("{namespace}/{name}"));
        annotations.extend(claim.map(|claim| (annotation::CLAIM.to_owned(), claim)));
        annotations
    }
}

/// The scheduler puts it there, so that quotas and taints count; a node name in the spec would bypass them.
fn on_node(node: &str) -> Affinity {
    let requirement = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![requirement]), ..NodeSelectorTerm::default() };
    let required = Some(NodeSelector { node_selector_terms: vec![term] });
    let node_affinity = NodeAffinity {
        required_during_scheduling_ignored_during_execution: required,
        ..NodeAffinity::default()
    };
    Affinity { node_affinity: Some(node_affinity), ..Affinity::default() }
}

fn empty_dir(medium: Option<&str>, size_limit: Option<k8s_quantity::Quantity>) -> EmptyDirVolumeSource {
    EmptyDirVolumeSource { medium: medium.map(str::to_owned), size_limit }
}

fn cache_volume(cache: &Cache) -> Option<PodVolume> {
    let volume = PodVolume { name: CACHE_VOLUME.to_owned(), ..PodVolume::default() };
    match cache {
        Cache::None => None,
        Cache::EmptyDir { size_limit, in_memory } => {
            let source =
                empty_dir(in_memory.then_some("Memory"), size_limit.as_ref().map(Quantity::to_written));
            Some(PodVolume { empty_dir: Some(source), ..volume })
        }
        Cache::Ephemeral { storage_class, request } => {
            let label = ("s3.csi.scality.com/type".to_owned(), "local-ephemeral-cache".to_owned());
            let template = PersistentVolumeClaimTemplate {
                metadata: Some(ObjectMeta { labels: Some([label].into()), ..ObjectMeta::default() }),
                spec: PersistentVolumeClaimSpec {
                    access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
                    volume_mode: Some("Filesystem".to_owned()),
                    storage_class_name: Some(storage_class.clone()),
                    resources: Some(VolumeResourceRequirements {
                        requests: Some([("storage".to_owned(), request.to_written())].into()),
                        ..VolumeResourceRequirements::default()
                    }),
                    ..PersistentVolumeClaimSpec::default()
                },
            };
            let source = EphemeralVolumeSource { volume_claim_template: Some(template) };
            Some(PodVolume { ephemeral: Some(source), ..volume })
        }
    }
}

#[cfg(test)]
mod tests;
