//! What a support engineer asks for, in one archive, without secrets.

mod redact;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use contract::attachment::MountpointS3PodAttachment;
use contract::names::DRIVER;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass};
use kube::api::{ListParams, LogParams};
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};

pub use redact::Scrubber;

use crate::doctor::{Examined, Report};
use crate::error::PluginError;
use crate::installation::Installation;
use crate::mounts::Mount;
use crate::observe::answer;
use crate::snapshot::Snapshot;
use crate::workload::claims;

/// What is kept of each container's log, from the end.
const LOG_LINES: i64 = 5000;
const LOG_BYTES: i64 = 4 << 20;

/// Path in the archive, and content.
pub type Files = BTreeMap<String, Vec<u8>>;

/// What is packed beside what is read anew.
pub struct Found<'a> {
    pub snapshot: &'a Snapshot,
    pub examined: &'a Examined,
    pub report: &'a Report,
    pub mounts: &'a [Mount],
}

/// Reads objects and logs, and scrubs all of it.
pub async fn collect(client: &Client, scrubber: &Scrubber, found: &Found<'_>) -> Files {
    let mut packed = Packed { scrubber, files: Files::new() };
    let Found { snapshot, examined, report, mounts } = found;
    packed.json("doctor.json", report);
    packed.json("mounts.json", mounts);
    let version = answer(client.apiserver_version()).await;
    let version = version.map_or_else(|error| error, |info| info.git_version);
    packed.json(
        "versions.json",
        &json!({"plugin": env!("CARGO_PKG_VERSION"), "kubernetes": version, "collected": snapshot.now}),
    );
    let unreadable: BTreeMap<&str, &String> =
        snapshot.unreadable.iter().map(|(what, error)| (what.into_str(), error)).collect();
    packed.json("unreadable.json", &unreadable);
    for inside in examined.inside.iter().flatten() {
        let report =
            inside.report.as_ref().map_or_else(|error| json!({"error": error}), |report| json!(report));
        packed.json(&format!("inside/{}.json", inside.object.replace(' ', "-")), &report);
    }
    for (kind, objects) in objects(client, snapshot).await {
        packed.json(&format!("objects/{kind}.json"), &objects);
    }
    for (namespace, pods) in pods_with_logs(client, snapshot).await {
        let api = Api::<Pod>::namespaced(client.clone(), &namespace);
        for pod in pods {
            logs(&api, &namespace, &pod, &mut packed).await;
        }
    }
    packed.files
}

struct Packed<'a> {
    scrubber: &'a Scrubber,
    files: Files,
}

impl Packed<'_> {
    fn json(&mut self, path: &str, value: &(impl Serialize + ?Sized)) {
        let value = self.scrubber.object(serde_json::to_value(value).unwrap_or_default());
        self.files.insert(path.to_owned(), serde_json::to_vec_pretty(&value).unwrap_or_default());
    }
}

async fn objects(client: &Client, snapshot: &Snapshot) -> BTreeMap<&'static str, Vec<Value>> {
    async fn all<K>(api: Api<K>, keep: impl Fn(&K) -> bool) -> Vec<Value>
    where
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + Serialize,
    {
        let listed =
            answer(api.list(&ListParams::default())).await.map(|list| list.items).unwrap_or_default();
        listed
            .iter()
            .filter(|object| keep(object))
            .filter_map(|object| serde_json::to_value(object).ok())
            .collect()
    }
    let installation = Installation::of(&snapshot.deployments, &snapshot.daemon_sets);
    let release = installation.map(|installation| installation.namespace).unwrap_or_default();
    let volumes: BTreeSet<&str> = snapshot.volumes.iter().map(|volume| volume.name.as_str()).collect();
    let classes: BTreeSet<String> = snapshot
        .classes
        .iter()
        .filter(|class| class.provisioner == DRIVER)
        .map(ResourceExt::name_any)
        .collect();
    let is_our_claim = |claim: &PersistentVolumeClaim| {
        let spec = claim.spec.as_ref();
        spec.and_then(|spec| spec.volume_name.as_deref()).is_some_and(|name| volumes.contains(name))
            || spec
                .and_then(|spec| spec.storage_class_name.as_ref())
                .is_some_and(|name| classes.contains(name))
    };
    let ours: BTreeSet<(String, String)> = snapshot
        .claims
        .iter()
        .filter(|claim| is_our_claim(claim))
        .map(|claim| (claim.namespace().unwrap_or_default(), claim.name_any()))
        .collect();
    let is_workload = |pod: &Pod| {
        let namespace = pod.namespace().unwrap_or_default();
        claims(pod).into_iter().any(|claim| ours.contains(&(namespace.clone(), claim)))
    };
    let workloads: BTreeSet<(String, String)> = snapshot
        .pods
        .iter()
        .filter(|pod| is_workload(pod))
        .map(|pod| (pod.namespace().unwrap_or_default(), pod.name_any()))
        .collect();
    let is_our_event = |event: &Event| {
        let object = &event.involved_object;
        let name = object.name.clone().unwrap_or_default();
        let whole = (object.namespace.clone().unwrap_or_default(), name.clone());
        whole.0 == snapshot.mountpoint_namespace
            || (!release.is_empty() && whole.0 == release && name.starts_with("s3-csi-"))
            || workloads.contains(&whole)
            || ours.contains(&whole)
            || volumes.contains(name.as_str())
    };
    let events = snapshot.events.iter().filter(|event| is_our_event(event));
    let workloads =
        snapshot.pods.iter().filter(|pod| is_workload(pod)).filter_map(|pod| serde_json::to_value(pod).ok());
    let driver = snapshot.controllers.iter().chain(&snapshot.node_services);
    let named: fn(&str) -> bool = |name| name.starts_with("s3-csi-");
    BTreeMap::from([
        ("events", events.filter_map(|event| serde_json::to_value(event).ok()).collect()),
        ("workloads", workloads.map(without_content).collect()),
        ("driver-pods", driver.filter_map(|pod| serde_json::to_value(pod).ok()).collect()),
        (
            "mountpoint-pods",
            all(Api::<Pod>::namespaced(client.clone(), &snapshot.mountpoint_namespace), |_| true).await,
        ),
        ("attachments", all(Api::<MountpointS3PodAttachment>::all(client.clone()), |_| true).await),
        (
            "volumes",
            all(Api::<PersistentVolume>::all(client.clone()), |volume| {
                volumes.contains(volume.name_any().as_str())
            })
            .await,
        ),
        ("claims", all(Api::<PersistentVolumeClaim>::all(client.clone()), is_our_claim).await),
        ("classes", all(Api::<StorageClass>::all(client.clone()), |class| class.provisioner == DRIVER).await),
        ("deployments", all(Api::<Deployment>::all(client.clone()), |it| named(&it.name_any())).await),
        ("daemon-sets", all(Api::<DaemonSet>::all(client.clone()), |it| named(&it.name_any())).await),
        ("nodes", all(Api::<Node>::all(client.clone()), |_| true).await),
        ("csi-nodes", all(Api::<CSINode>::all(client.clone()), |_| true).await),
        ("csi-drivers", all(Api::<CSIDriver>::all(client.clone()), |_| true).await),
        ("definition", snapshot.definition.iter().filter_map(|it| serde_json::to_value(it).ok()).collect()),
        (
            "secrets",
            snapshot
                .secrets
                .iter()
                .map(|(name, state)| json!({"name": name, "state": format!("{state:?}")}))
                .collect(),
        ),
    ])
}

/// What a user's containers run, and with which variables, is not ours to pass on.
fn without_content(mut pod: Value) -> Value {
    for kind in ["containers", "initContainers", "ephemeralContainers"] {
        for container in
            pod["spec"][kind].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut)
        {
            for field in [
                "command",
                "args",
                "env",
                "envFrom",
                "lifecycle",
                "livenessProbe",
                "readinessProbe",
                "startupProbe",
            ] {
                container.remove(field);
            }
        }
    }
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        metadata.remove("annotations");
    }
    pod
}

/// The driver's and the Mountpoint Pods, by namespace. Never those of workloads.
async fn pods_with_logs(client: &Client, snapshot: &Snapshot) -> BTreeMap<String, Vec<Pod>> {
    let mut found: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
    for pod in snapshot.controllers.iter().chain(&snapshot.node_services) {
        found.entry(pod.namespace().unwrap_or_default()).or_default().push(pod.clone());
    }
    let mounts = Api::<Pod>::namespaced(client.clone(), &snapshot.mountpoint_namespace);
    let mounts = answer(mounts.list(&ListParams::default())).await.map(|list| list.items).unwrap_or_default();
    found.entry(snapshot.mountpoint_namespace.clone()).or_default().extend(mounts);
    found
}

async fn logs(api: &Api<Pod>, namespace: &str, pod: &Pod, packed: &mut Packed<'_>) {
    let containers =
        pod.spec.iter().flat_map(|spec| &spec.containers).map(|container| container.name.clone());
    for container in containers {
        for previous in [false, true] {
            let params = LogParams {
                container: Some(container.clone()),
                previous,
                tail_lines: Some(LOG_LINES),
                limit_bytes: Some(LOG_BYTES),
                timestamps: true,
                ..LogParams::default()
            };
            // Most containers have no previous life.
            if let Ok(log) = answer(api.logs(&pod.name_any(), &params)).await {
                let suffix = if previous { ".previous" } else { "" };
                let path = format!("logs/{namespace}/{}/{container}{suffix}.log", pod.name_any());
                packed.files.insert(path, packed.scrubber.text(&log).into_bytes());
            }
        }
    }
}

/// Readable by its owner alone: it says much about a cluster.
pub fn write(path: &Path, files: &Files, time: i64) -> Result<(), PluginError> {
    let failed = |error: io::Error| PluginError::Write { path: PathBuf::from(path), error };
    let file = File::options().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    pack(file, files, time).map_err(failed)
}

fn pack(file: impl io::Write, files: &Files, time: i64) -> io::Result<()> {
    let mut archive = tar::Builder::new(file);
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(time.unsigned_abs());
        archive.append_data(&mut header, Path::new("s3-csi-support").join(path), content.as_slice())?;
    }
    archive.into_inner()?.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn an_archive_holds_what_was_packed() {
        let files = Files::from([
            ("logs/a/b.log".to_owned(), b"said".to_vec()),
            ("x.json".to_owned(), b"{}".to_vec()),
        ]);
        let mut bytes = Vec::new();
        pack(&mut bytes, &files, 1).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut found = Files::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path =
                entry.path().unwrap().strip_prefix("s3-csi-support").unwrap().to_string_lossy().into_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            found.insert(path, content);
        }
        assert_eq!(found, files);
    }

    #[test]
    fn what_a_users_container_runs_is_not_passed_on() {
        let pod = json!({
            "metadata": {"name": "web", "annotations": {"a": "secret"}},
            "spec": {"containers": [{"name": "main", "image": "i", "env": [{"name": "X", "value": "secret"}], "args": ["secret"]}]},
        });
        let text = without_content(pod).to_string();
        assert!(text.contains("\"image\":\"i\"") && !text.contains("secret"), "{text}");
    }
}
