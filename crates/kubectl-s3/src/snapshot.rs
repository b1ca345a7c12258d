//! What the API server has, at one moment, as far as this user may read it.

use std::collections::{BTreeMap, BTreeSet};

use contract::attachment::MountpointS3PodAttachment;
use contract::mountpoint_pod::MountpointPod;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt as _;

use crate::installation::Installation;
use crate::readable::Readable;
use crate::secret::{SecretName, SecretState};
use crate::volume::VolumeFacts;

#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub now: Timestamp,
    pub mountpoint_namespace: String,
    /// Pods that may be workloads.
    pub pods: Vec<Pod>,
    pub claims: Vec<PersistentVolumeClaim>,
    /// This driver's volumes.
    pub volumes: Vec<VolumeFacts>,
    /// Names of other drivers' volumes.
    pub foreign_volumes: BTreeSet<String>,
    pub classes: Vec<StorageClass>,
    pub attachments: Vec<MountpointS3PodAttachment>,
    /// Attachments that do not parse, with the parser's words.
    pub malformed_attachments: Vec<(String, String)>,
    pub mountpoint_pods: Vec<MountpointPod>,
    pub controllers: Vec<Pod>,
    pub node_services: Vec<Pod>,
    pub deployments: Vec<Deployment>,
    pub daemon_sets: Vec<DaemonSet>,
    pub nodes: Vec<Node>,
    pub csi_nodes: Vec<CSINode>,
    pub csi_drivers: Vec<CSIDriver>,
    pub definition: Option<CustomResourceDefinition>,
    pub events: Vec<Event>,
    /// Those that volumes, classes and the installation name.
    pub secrets: BTreeMap<SecretName, SecretState>,
    /// What could not be read, and why.
    pub unreadable: BTreeMap<Readable, String>,
}

impl Snapshot {
    /// Nothing, if there is none or it may not be read.
    pub fn installation(&self) -> Option<Installation> {
        Installation::of(&self.deployments, &self.daemon_sets)
    }

    pub fn volume(&self, name: &str) -> Option<&VolumeFacts> {
        self.volumes.iter().find(|volume| volume.name == name)
    }

    pub fn claim(&self, namespace: &str, name: &str) -> Option<&PersistentVolumeClaim> {
        let is_it = |claim: &&PersistentVolumeClaim| {
            claim.name_any() == name && claim.namespace().as_deref() == Some(namespace)
        };
        self.claims.iter().find(is_it)
    }

    pub fn class(&self, name: &str) -> Option<&StorageClass> {
        self.classes.iter().find(|class| class.name_any() == name)
    }

    pub fn mountpoint_pod(&self, name: &str) -> Option<&MountpointPod> {
        self.mountpoint_pods.iter().find(|pod| pod.name == name)
    }

    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name_any() == name)
    }

    /// The attachment that lists this workload for this volume.
    pub fn attachment(&self, uid: &str, volume: &str) -> Option<&MountpointS3PodAttachment> {
        self.attachments.iter().find(|attachment| {
            attachment.spec.persistent_volume_name == volume
                && attachment.spec.mountpoint_pod_of(uid).is_some()
        })
    }

    pub fn is_readable(&self, what: Readable) -> bool {
        !self.unreadable.contains_key(&what)
    }
}
