//! A test's objects on an API server without controllers. The test plays scheduler, binder and kubelet. Long, because it creates
//! and reads every kind of object that the controller knows.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::{DRIVER, annotation, label};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::account::{MOUNTPOINT_NAMESPACE, install};
use crate::{Inside, Seen, eventually};

/// The controller acts within milliseconds; the rest is for a busy machine.
const REACTS_WITHIN: Duration = Duration::from_mins(1);
/// Gives each barrier its own name.
static BARRIERS: AtomicU32 = AtomicU32::new(0);

pub struct Stage {
    pub here: Inside,
    pub node: String,
}

impl Stage {
    pub async fn set(test: &str) -> Self {
        let here = Inside::join(test).await;
        install(&here.client).await;
        let node = format!("node-{}", here.namespace);
        let stage = Self { here, node };
        stage.add_node(&stage.node).await;
        let account = json!({"metadata": {"name": "default"}});
        let accounts = Api::<ServiceAccount>::namespaced(stage.here.client.clone(), &stage.here.namespace);
        accounts.create(&PostParams::default(), &from(account)).await.unwrap();
        stage
    }

    pub async fn add_node(&self, name: &str) {
        self.all::<Node>()
            .create(&PostParams::default(), &from(json!({"metadata": {"name": name}})))
            .await
            .unwrap();
    }

    pub fn all<K: kube::Resource<Scope = k8s_openapi::ClusterResourceScope>>(&self) -> Api<K>
    where
        K::DynamicType: Default,
    {
        Api::all(self.here.client.clone())
    }

    pub fn attachments(&self) -> Api<MountpointS3PodAttachment> {
        Api::all(self.here.client.clone())
    }

    pub fn mountpoint_pods(&self) -> Api<Pod> {
        Api::namespaced(self.here.client.clone(), MOUNTPOINT_NAMESPACE)
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.here.client.clone(), &self.here.namespace)
    }

    /// The name of a volume, unique in the cluster.
    pub fn volume_name(&self, name: &str) -> String {
        format!("{}-{name}", self.here.namespace)
    }

    /// A claim and a volume, bound to each other.
    pub async fn volume(&self, name: &str, attributes: &[(&str, &str)], options: &[&str]) {
        self.unbound_volume(name, DRIVER, attributes, options).await;
        self.bind(name).await;
    }

    /// The same for a volume that names a Secret.
    pub async fn volume_with_secret(&self, name: &str, attributes: &[(&str, &str)], options: &[&str]) {
        let mut volume = self.volume_manifest(name, DRIVER, attributes, options);
        volume["spec"]["csi"]["nodePublishSecretRef"] =
            json!({"namespace": self.here.namespace, "name": "keys"});
        self.create_volume(name, volume).await;
        self.bind(name).await;
    }

    pub async fn unbound_volume(
        &self,
        name: &str,
        driver: &str,
        attributes: &[(&str, &str)],
        options: &[&str],
    ) {
        self.create_volume(name, self.volume_manifest(name, driver, attributes, options)).await;
    }

    async fn create_volume(&self, name: &str, volume: Value) {
        self.all::<PersistentVolume>().create(&PostParams::default(), &from(volume)).await.unwrap();
        self.claim(name).await;
    }

    fn volume_manifest(
        &self,
        name: &str,
        driver: &str,
        attributes: &[(&str, &str)],
        options: &[&str],
    ) -> Value {
        let attributes: serde_json::Map<String, Value> = [("bucketName", "bucket")]
            .iter()
            .chain(attributes)
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect();
        json!({
            "metadata": {"name": self.volume_name(name)},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "mountOptions": options,
                "csi": {"driver": driver, "volumeHandle": self.volume_name(name), "volumeAttributes": attributes},
            },
        })
    }

    pub async fn claim(&self, name: &str) {
        let claim = json!({
            "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}},
        });
        self.claims().create(&PostParams::default(), &from(claim)).await.unwrap();
    }

    /// Acts as the binder.
    pub async fn bind(&self, name: &str) {
        let claim = self.claims().get(name).await.unwrap();
        let reference = json!({"namespace": self.here.namespace, "name": name, "uid": claim.uid(), "kind": "PersistentVolumeClaim"});
        let volume = self.volume_name(name);
        let params = PatchParams::default();
        let volumes = self.all::<PersistentVolume>();
        volumes
            .patch(&volume, &params, &Patch::Merge(json!({"spec": {"claimRef": reference}})))
            .await
            .unwrap();
        self.claims()
            .patch(name, &params, &Patch::Merge(json!({"spec": {"volumeName": volume}})))
            .await
            .unwrap();
        let bound = Patch::Merge(json!({"status": {"phase": "Bound"}}));
        self.claims().patch_status(name, &params, &bound).await.unwrap();
        volumes.patch_status(&volume, &params, &bound).await.unwrap();
    }

    /// A pod on this stage's node with these claims.
    pub async fn workload(&self, name: &str, claims: &[&str]) -> Pod {
        self.workload_with(name, claims, json!({})).await
    }

    /// The same with other fields of its spec.
    pub async fn workload_with(&self, name: &str, claims: &[&str], more: Value) -> Pod {
        let volumes: Vec<Value> = claims
            .iter()
            .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
            .collect();
        let mut spec = json!({
            "nodeName": self.node, "volumes": volumes, "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "none"}],
        });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        self.here.run(name, spec).await
    }

    /// Acts as the scheduler.
    pub async fn schedule(&self, name: &str) {
        self.bind_to_node(&self.here.pods(), name).await;
    }

    pub async fn schedule_mountpoint(&self, name: &str) {
        self.bind_to_node(&self.mountpoint_pods(), name).await;
    }

    async fn bind_to_node(&self, pods: &Api<Pod>, name: &str) {
        let target = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": self.node}});
        let _: Value =
            pods.create_subresource("binding", name, &PostParams::default(), &target).await.unwrap();
    }

    /// Reports a status as the kubelet does.
    pub async fn report(&self, name: &str, phase: &str) {
        set_phase(&self.here.pods(), name, phase).await;
    }

    pub async fn report_mountpoint(&self, name: &str, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        self.mountpoint_pods().patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// A Mountpoint Pod that no attachment references.
    pub async fn stray_mountpoint(&self, name: &str) {
        let pod = json!({
            "metadata": {
                "name": name, "labels": {label::DRIVER_VERSION: "0.1.0"}, "annotations": {annotation::ATTACHMENT: "s3pa-none"},
            },
            "spec": {"nodeName": self.node, "automountServiceAccountToken": false, "containers": [{"name": "mountpoint", "image": "i"}]},
        });
        self.mountpoint_pods().create(&PostParams::default(), &from(pod)).await.unwrap();
    }

    /// A Mountpoint Pod whose container is running.
    pub async fn run_mountpoint(&self, name: &str) {
        self.run_mountpoint_since(name, Timestamp::now()).await;
    }

    pub async fn run_mountpoint_since(&self, name: &str, since: Timestamp) {
        let container = json!({"name": "mountpoint", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "started": true,
            "state": {"running": {"startedAt": Time(since)}}});
        self.report_mountpoint(name, json!({"phase": "Running", "containerStatuses": [container]})).await;
    }

    /// Deletes the pod at once, as a forced deletion does, or the kubelet at the end.
    pub async fn remove(&self, name: &str) {
        self.here.pods().delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
    }

    pub async fn remove_mountpoint(&self, name: &str) {
        self.mountpoint_pods().delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
    }

    /// All attachments on this stage's node.
    pub async fn attachments_here(&self) -> Vec<MountpointS3PodAttachment> {
        self.attachments_on(&self.node).await
    }

    pub async fn attachments_on(&self, node: &str) -> Vec<MountpointS3PodAttachment> {
        let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
        self.attachments().list(&params).await.unwrap().items
    }

    /// Waits until the workload is attached and its Mountpoint Pod exists; returns both.
    pub async fn attached(&self, workload: &Pod) -> (MountpointS3PodAttachment, Pod) {
        self.attached_volume(workload, None).await
    }

    pub async fn attached_volume(
        &self,
        workload: &Pod,
        volume: Option<&str>,
    ) -> (MountpointS3PodAttachment, Pod) {
        let uid = workload.uid().unwrap();
        let node = workload
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.clone())
            .unwrap_or_else(|| self.node.clone());
        eventually(&format!("{} is attached", workload.name_any()), REACTS_WITHIN, || async {
            let all = self.attachments_on(&node).await;
            let found = all.iter().find_map(|attachment| {
                let right = volume.is_none_or(|volume| attachment.spec.persistent_volume_name == volume);
                let pod = attachment.spec.mountpoint_pod_of(&uid).filter(|_| right)?;
                Some((attachment.clone(), pod.to_owned()))
            });
            let Some((attachment, name)) = found else {
                return Seen::NotYet(format!("{} attachments", all.len()));
            };
            let pod = self.mountpoint_pods().get_opt(&name).await.unwrap();
            Seen::some(pod.map(|pod| (attachment, pod)), format!("{name} is not there"))
        })
        .await
    }

    /// Waits until nothing is left on this stage's node except Mountpoint Pods that the node must still unmount.
    pub async fn nothing_attached(&self) {
        eventually("no attachment is left", REACTS_WITHIN, || async {
            let left = self.attachments_here().await;
            let names: Vec<String> = left.iter().map(MountpointS3PodAttachment::name_any).collect();
            if left.is_empty() { Seen::Yes(()) } else { Seen::NotYet(names.join(", ")) }
        })
        .await;
    }

    pub async fn marked_for_unmount(&self, mountpoint: &str) {
        eventually(&format!("{mountpoint} is marked for unmounting"), REACTS_WITHIN, || async {
            let pod = self.mountpoint_pods().get(mountpoint).await.unwrap();
            let marked =
                pod.annotations().get(annotation::NEEDS_UNMOUNT).is_some_and(|value| value == "true");
            Seen::some(marked.then_some(()), format!("{:?}", pod.annotations()))
        })
        .await;
    }

    pub async fn mountpoint_gone(&self, name: &str) {
        eventually(&format!("{name} is gone"), REACTS_WITHIN, || async {
            match self.mountpoint_pods().get_opt(name).await.unwrap() {
                None => Seen::Yes(()),
                Some(pod) => Seen::NotYet(format!("{:?}", pod.status.and_then(|status| status.phase))),
            }
        })
        .await;
    }

    /// Waits until the controller has handled all earlier writes of workloads and volumes: another workload on another node,
    /// which follows them in the same watches, is attached.
    pub async fn acted(&self) {
        let name = format!("barrier-{}", BARRIERS.fetch_add(1, Ordering::Relaxed));
        let node = self.volume_name(&name);
        self.add_node(&node).await;
        self.volume(&name, &[], &[]).await;
        let barrier = self.workload_with(&name, &[&name], json!({"nodeName": node})).await;
        self.attached(&barrier).await;
    }

    /// Checks that no earlier write leads to an attachment.
    pub async fn stays_unattached(&self) {
        self.acted().await;
        let left = self.attachments_here().await;
        assert!(left.is_empty(), "{left:?}");
    }

    /// The reasons of all Events on a pod of this stage.
    pub async fn reasons(&self, pod: &str) -> Vec<String> {
        let events = Api::<Event>::namespaced(self.here.client.clone(), &self.here.namespace);
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let about =
            |event: &Event| event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(pod);
        all.into_iter().filter(about).filter_map(|event| event.reason).collect()
    }

    /// Waits for an Event with this reason on a pod of this stage, and returns its message.
    pub async fn event(&self, pod: &str, reason: &str) -> String {
        let events = Api::<Event>::namespaced(self.here.client.clone(), &self.here.namespace);
        eventually(&format!("event {reason} on {pod}"), REACTS_WITHIN, || async {
            let all = events.list(&ListParams::default()).await.unwrap().items;
            let about = |event: &&Event| {
                event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(pod)
            };
            let found = all.iter().filter(about).find(|event| event.reason.as_deref() == Some(reason));
            let reasons: Vec<_> = all.iter().filter_map(|event| event.reason.clone()).collect();
            Seen::some(found.map(|event| event.note.clone().unwrap_or_default()), format!("{reasons:?}"))
        })
        .await
    }
}

pub async fn set_phase(pods: &Api<Pod>, name: &str, phase: &str) {
    let patch = Patch::Merge(json!({"status": {"phase": phase}}));
    pods.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}
