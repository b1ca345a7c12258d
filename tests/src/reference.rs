//! The reference driver as its chart 2.2.0 installs it and its programs write: names, labels, selectors, attachments and
//! Mountpoint Pods. Its pods run our programs, because they have to mount; the mounts are in the same places.

use std::fs;
use std::path::Path;

use anyhow::Result;
use contract::attachment::MountpointS3PodAttachment;
use contract::authentication::AuthenticationSource;
use contract::names::{DRIVER, annotation, comm_on_node, label};
use contract::volume::attribute;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, CustomResourceExt as _, ResourceExt as _};
use serde_json::{Value, json};
use tempfile::TempDir;
use xtask::cluster::Cluster;
use xtask::command::run;
use xtask::driver;
use xtask::s3::ALICE;

use crate::changed::Changed;
use crate::chart;
use crate::story::Story;

/// Of its Helm release.
pub const RELEASE: &str = "scality";
pub const VERSION: &str = "2.2.0";
const CHART: &str = "scality-mountpoint-s3-csi-driver";
/// Its chart has no others.
const KINDS: &[&str] = &[
    "ClusterRole",
    "ClusterRoleBinding",
    "CSIDriver",
    "DaemonSet",
    "Deployment",
    "Namespace",
    "PriorityClass",
    "Role",
    "RoleBinding",
    "ServiceAccount",
];
/// (our name, its name) of roles and bindings; the second of a pair can be that of a binding only.
const NAMES: &[(&str, &str, &str)] = &[
    ("ClusterRole", "s3-csi-controller", "s3-csi-driver-controller-cluster-role"),
    ("ClusterRole", "s3-csi-node", "s3-csi-driver-cluster-role"),
    ("ClusterRoleBinding", "s3-csi-controller", "s3-csi-driver-controller-cluster-role-binding"),
    ("ClusterRoleBinding", "s3-csi-node", "mountpoint-s3-csi-node-binding"),
    ("Role", "s3-csi-node-mountpoint-namespace", "s3-csi-driver-node-mountpoint-pod-namespace-role"),
    (
        "RoleBinding",
        "s3-csi-node-mountpoint-namespace",
        "s3-csi-driver-node-mountpoint-pod-namespace-rolebinding",
    ),
];
/// The first of the selectable fields of our definition; its definition has no others, and no status.
const SELECTABLE: usize = 5;

/// The reference instead of our driver, until that is undone.
pub fn installed(cluster: &Cluster) -> Changed {
    let own = cluster.clone();
    let back = move || {
        run(driver::helm(&own)?.args(["uninstall", RELEASE, "--wait", "--timeout=300s"]))?;
        driver::install(&own, &[])
    };
    Changed::make("the driver", || replace(cluster), back)
}

fn replace(cluster: &Cluster) -> Result<()> {
    driver::uninstall(cluster)?;
    let folder = chart_of(cluster)?;
    run(driver::helm(cluster)?
        .args(["install", RELEASE])
        .arg(folder.path())
        .args(["--wait", "--timeout=300s"]))
}

fn chart_of(cluster: &Cluster) -> Result<TempDir> {
    let values = driver::usual_values();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let ours = chart::rendered(cluster, &values).into_iter();
    let ours = ours.filter(|object| KINDS.iter().any(|kind| object["kind"] == *kind));
    let mut objects: Vec<Value> = ours.map(as_reference).collect();
    for (name, value, policy) in
        [("mount-s3-preempting", 999_999_999, "PreemptLowerPriority"), ("mount-s3-headroom", -10, "Never")]
    {
        objects.push(json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name, "labels": labels()}, "value": value, "preemptionPolicy": policy,
        }));
    }
    let folder = tempfile::tempdir_in(cluster.dir())?;
    let about = json!({"apiVersion": "v2", "name": CHART, "version": VERSION, "appVersion": VERSION});
    fs::write(folder.path().join("Chart.yaml"), about.to_string())?;
    fs::create_dir(folder.path().join("templates"))?;
    let text: Vec<String> = objects.iter().map(Value::to_string).collect();
    fs::write(folder.path().join("templates/objects.yaml"), text.join("\n---\n"))?;
    Ok(folder)
}

fn labels() -> Value {
    json!({
        "app.kubernetes.io/name": CHART, "app.kubernetes.io/instance": RELEASE,
        "app.kubernetes.io/version": VERSION, "app.kubernetes.io/component": "csi-driver",
        "app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": format!("{CHART}-{VERSION}"),
    })
}

/// Its selectors have the labels of the release, and cannot be changed.
fn as_reference(mut object: Value) -> Value {
    let mut own = labels();
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    if kind == "DaemonSet" || kind == "Deployment" {
        own["app"] = object["metadata"]["name"].clone();
        let selector = ["app", "app.kubernetes.io/name", "app.kubernetes.io/instance"];
        let selector = selector.map(|name| (name.to_owned(), own[name].clone()));
        object["spec"]["selector"]["matchLabels"] = Value::Object(selector.into_iter().collect());
        object["spec"]["template"]["metadata"]["labels"] = own.clone();
    }
    let security = object["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    for (name, value) in security.into_iter().filter(|(name, _)| name.starts_with("pod-security")) {
        own[name] = value;
    }
    object["metadata"]["labels"] = own;
    let renamed = |kind: &Value, name: &Value| {
        let found = NAMES.iter().find(|(of, ours, _)| kind == of && name == ours);
        found.map_or_else(|| name.clone(), |(_, _, theirs)| json!(theirs))
    };
    let name = renamed(&object["kind"], &object["metadata"]["name"]);
    object["metadata"]["name"] = name;
    if object["roleRef"].is_object() {
        object["roleRef"]["name"] = renamed(&object["roleRef"]["kind"], &object["roleRef"]["name"]);
    }
    object
}

/// A claim with a class of the reference, and the volume and bucket that csi-provisioner made for it.
pub struct Provisioned {
    pub class: &'static str,
    pub claim: &'static str,
    pub volume: String,
    pub bucket: String,
}

/// As csi-provisioner v5.3 of the reference leaves them, without Secrets. No controller may run, which would provision the
/// claim itself.
pub async fn provisioned(story: &Story) -> Provisioned {
    // The reference makes them of random UUIDs.
    const BUCKET: &str = "csi-s3-3f1c2a9e-7b64-4d0f-8a35-c9e07d51b284";
    const CLAIM: &str = "provisioned";
    let (client, namespace, class) = (story.here.client.clone(), &story.here.namespace, story.name);
    let post = PostParams::default();
    story.server.create_bucket(BUCKET).unwrap();
    let object = json!({
        "metadata": {"name": class}, "provisioner": DRIVER, "reclaimPolicy": "Delete", "mountOptions": ["allow-delete"],
    });
    let classes = Api::<StorageClass>::all(client.clone());
    classes.create(&post, &serde_json::from_value(object).unwrap()).await.unwrap();
    let object = json!({"metadata": {"name": CLAIM}, "spec": {
        "accessModes": ["ReadWriteMany"], "storageClassName": class, "resources": {"requests": {"storage": "1Gi"}},
    }});
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
    let claim = claims.create(&post, &serde_json::from_value(object).unwrap()).await.unwrap();
    let volume = format!("pvc-{}", claim.uid().unwrap());
    let object = json!({
        "metadata": {
            "name": volume, "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
            "annotations": {
                "pv.kubernetes.io/provisioned-by": DRIVER,
                "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
            },
        },
        "spec": {
            "accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}, "mountOptions": ["allow-delete"],
            "persistentVolumeReclaimPolicy": "Delete", "storageClassName": class, "volumeMode": "Filesystem",
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": CLAIM,
                "uid": claim.uid(), "resourceVersion": claim.resource_version(),
            },
            "csi": {
                "driver": DRIVER, "volumeHandle": BUCKET,
                "volumeAttributes": {
                    "authenticationSource": "driver", "bucketName": BUCKET, "dynamicProvisioning": "true",
                    "storage.kubernetes.io/csiProvisionerIdentity": "1752000000000-4711-s3.csi.scality.com",
                },
            },
        },
    });
    let volumes = Api::<PersistentVolume>::all(client);
    volumes.create(&post, &serde_json::from_value(object).unwrap()).await.unwrap();
    story.follow(&volume);
    Provisioned { class, claim: CLAIM, volume, bucket: BUCKET.to_owned() }
}

/// Makes of a volume and its class what the reference has of a class with only a Secret for making buckets: the volume asks for
/// keys of a Secret that it does not name, and the reference mounts it with the driver's. Our programs, which run as its own,
/// refuse it, so this happens to a volume that is mounted. No controller may run, which would delete the bucket.
pub async fn with_only_a_provisioner_secret(story: &Story, made: &Provisioned, secret: &str) {
    let (client, namespace) = (story.here.client.clone(), &story.here.namespace);
    let (post, delete) = (PostParams::default(), DeleteParams::default());
    let volumes = Api::<PersistentVolume>::all(client.clone());
    let mut object = volumes.get(&made.volume).await.unwrap();
    volumes.delete(&made.volume, &delete).await.unwrap();
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    volumes.patch(&made.volume, &PatchParams::default(), &patch).await.unwrap();
    object.metadata.resource_version = None;
    object.metadata.managed_fields = None;
    for (field, value) in [("name", secret), ("namespace", namespace)] {
        let key = format!("volume.kubernetes.io/provisioner-deletion-secret-{field}");
        object.annotations_mut().insert(key, value.to_owned());
    }
    let csi = object.spec.as_mut().unwrap().csi.as_mut().unwrap();
    let source = (attribute::AUTHENTICATION_SOURCE.to_owned(), "secret".to_owned());
    csi.volume_attributes.as_mut().unwrap().extend([source]);
    volumes.create(&post, &object).await.unwrap();
    let classes = Api::<StorageClass>::all(client);
    let mut class = classes.get(made.class).await.unwrap();
    classes.delete(made.class, &delete).await.unwrap();
    class.metadata.resource_version = None;
    class.metadata.managed_fields = None;
    let parameters = [("name", secret), ("namespace", namespace)];
    let parameters = parameters
        .map(|(field, value)| (format!("csi.storage.k8s.io/provisioner-secret-{field}"), value.to_owned()));
    class.parameters = Some(parameters.into());
    classes.create(&post, &class).await.unwrap();
}

/// The driver's keys as the reference writes them for a Mountpoint Pod: in a profile that is named by the workload for which the
/// pod was created.
fn write_keys(mountpoint_pod: &Pod, volume_id: &str) {
    let prefix = format!("{}-{volume_id}-s3-csi", mountpoint_pod.labels()[label::WORKLOAD_UID]);
    let comm = comm_on_node(Path::new("/var/lib/kubelet"), &mountpoint_pod.uid().unwrap());
    let keys = format!(
        "[{prefix}]\naws_access_key_id={}\naws_secret_access_key={}\n",
        ALICE.access_key, ALICE.secret_key
    );
    for (kind, content) in [("config", format!("[profile {prefix}]\n")), ("credentials", keys)] {
        fs::write(comm.join("credentials").join(format!("{prefix}-{kind}")), content).unwrap();
    }
}

/// Rewrites what our programs wrote for the story's workloads to what the reference's programs write, and ends its
/// controller, which would rewrite it. The label `pod-uid` is the same for both.
pub async fn rewrite(story: &Story) {
    let kubectl = |arguments: &[&str]| {
        run(story.here.cluster.kubectl().unwrap().args(["--namespace", driver::NAMESPACE]).args(arguments))
            .unwrap();
    };
    kubectl(&["scale", "deployment/s3-csi-controller", "--replicas=0"]);
    kubectl(&["wait", "--for=delete", "pod", "--selector=app=s3-csi-controller", "--timeout=240s"]);
    let pods = story.mountpoint_pods_api();
    for name in story.mountpoint_pods().await {
        let pod = pods.get(&name).await.unwrap();
        // It writes no keys of Secrets.
        if pod.annotations()[annotation::AUTHENTICATION_SOURCE] == AuthenticationSource::Driver.as_str() {
            write_keys(&pod, &pod.annotations()[annotation::VOLUME_ID]);
        }
        let annotations = [
            annotation::ATTACHMENT,
            annotation::AUTHENTICATION_SOURCE,
            annotation::CLAIM,
            annotation::MOVABLE,
            annotation::VOLUME_ID,
            annotation::VOLUME_NAME,
        ];
        let annotations = annotations.map(|name| (name.to_owned(), Value::Null));
        let patch = json!({"metadata": {
            "annotations": serde_json::Map::from_iter(annotations),
            "labels": {label::DRIVER_VERSION: VERSION, label::MOUNTPOINT_VERSION: ""},
        }});
        pods.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
    let attachments = Api::<MountpointS3PodAttachment>::all(story.here.client.clone());
    for attachment in story.attachments().await {
        attachments.delete(&attachment.name_any(), &DeleteParams::default()).await.unwrap();
        let mut spec = json!(attachment.spec);
        spec.as_object_mut().unwrap().remove("authenticationSource");
        let object = json!({
            "apiVersion": "s3.csi.scality.com/v2", "kind": "MountpointS3PodAttachment",
            "metadata": {"generateName": "s3pa-", "labels": {label::DRIVER_VERSION: VERSION}}, "spec": spec,
        });
        let object = serde_json::from_value(object).unwrap();
        attachments.create(&PostParams::default(), &object).await.unwrap();
    }
    let definitions = Api::<CustomResourceDefinition>::all(story.here.client.clone());
    let name = MountpointS3PodAttachment::crd_name();
    let definition = definitions.get(name).await.unwrap();
    let fields = definition.spec.versions[0].selectable_fields.clone().unwrap();
    let patch = json!([
        {"op": "replace", "path": "/spec/versions/0/selectableFields", "value": fields[..SELECTABLE]},
        {"op": "remove", "path": "/spec/versions/0/subresources"},
    ]);
    let patch = Patch::<()>::Json(serde_json::from_value(patch).unwrap());
    definitions.patch(name, &PatchParams::default(), &patch).await.unwrap();
}
