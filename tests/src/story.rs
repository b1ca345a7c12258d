//! The volumes of one test and the workloads that use them, on one node or several, and the check that nothing is left of
//! them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use crate::account::MOUNTPOINT_NAMESPACE;
use crate::manifest;
use crate::processes::descriptors;
use crate::{Inside, Seen, eventually};
use contract::attachment::MountpointS3PodAttachment;
use contract::names::{annotation, comm_on_node, label, sources_on_node};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Event, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, LogParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};
use xtask::cluster::Node;
use xtask::driver;
use xtask::s3::{ALICE, Client, ENDPOINT};

/// The kubelet's backoff grows up to two minutes.
pub const LIMIT: Duration = Duration::from_mins(4);
const KUBELET: &str = "/var/lib/kubelet";

/// Installed once for all stories.
static INSTALLED: OnceCell<()> = OnceCell::const_new();
/// Tests that stop a shared component have the node to themselves.
static NODE: RwLock<()> = RwLock::const_new(());

#[expect(dead_code, reason = "held, not looked at")]
enum Turn {
    WithOthers(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

pub struct Story {
    pub here: Inside,
    pub name: &'static str,
    pub server: Client,
    /// How the names of its volumes begin.
    volumes: Mutex<Vec<String>>,
    /// Every Mountpoint Pod seen so far, with its UID.
    seen: Mutex<BTreeMap<String, String>>,
    _turn: Turn,
}

impl Story {
    /// Creates a bucket, a volume and a claim with the name of the story.
    pub async fn begin(name: &'static str) -> Self {
        Self::start(name, Turn::WithOthers(NODE.read().await)).await
    }

    /// The same, while no other story runs.
    pub async fn alone(name: &'static str) -> Self {
        Self::start(name, Turn::Alone(NODE.write().await)).await
    }

    async fn start(name: &'static str, turn: Turn) -> Self {
        let here = Inside::join(name).await;
        INSTALLED.get_or_init(|| async { driver::install(&here.cluster, &[]).unwrap() }).await;
        let server = Client::new(ENDPOINT, ALICE).unwrap();
        server.create_bucket(name).unwrap();
        let volumes = Mutex::new(vec![name.to_owned()]);
        let story = Self { here, name, server, volumes, seen: Mutex::default(), _turn: turn };
        story.volume(name, |_| {}).await;
        story
    }

    /// A volume for the story's bucket and a claim of the same name. The name must begin with the story's.
    pub async fn volume(&self, name: &str, change: impl FnOnce(&mut Value)) {
        assert!(name.starts_with(self.name), "its traces are looked for by name");
        let mut volume = manifest::volume(name, &self.here.namespace, self.name);
        change(&mut volume);
        let claim = manifest::claim(&volume);
        let post = PostParams::default();
        let volumes = Api::<PersistentVolume>::all(self.here.client.clone());
        volumes.create(&post, &serde_json::from_value(volume).unwrap()).await.unwrap();
        self.claims().create(&post, &serde_json::from_value(claim).unwrap()).await.unwrap();
    }

    /// A provisioned volume, whose name is not the story's: nothing may be left of it either.
    pub fn follow(&self, volume: &str) {
        self.volumes.lock().unwrap().push(volume.to_owned());
    }

    fn is_mine(&self, volume: &str) -> bool {
        self.volumes.lock().unwrap().iter().any(|name| volume.starts_with(name))
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.here.client.clone(), &self.here.namespace)
    }

    /// A pod with the story's volume at `/data` that runs a script.
    pub fn workload(&self, script: &str) -> Value {
        manifest::pod(&[self.name], script)
    }

    /// The same, on this node.
    pub fn workload_on(&self, node: Node, script: &str) -> Value {
        let mut spec = self.workload(script);
        spec["nodeSelector"] = json!({"kubernetes.io/hostname": node.name()});
        spec
    }

    /// Waits until the workload's log contains this.
    pub async fn says(&self, pod: &str, words: &str) {
        self.says_more_often(pod, words, 0).await;
    }

    /// Waits until the log contains it once more than now.
    pub async fn says_again(&self, pod: &str, words: &str) {
        let before = self.log(pod).await.matches(words).count();
        self.says_more_often(pod, words, before).await;
    }

    pub async fn says_more_often(&self, pod: &str, words: &str, times: usize) {
        eventually(&format!("{pod} logs `{words}` more than {times} times"), LIMIT, || async {
            let log = self.log(pod).await;
            Seen::some((log.matches(words).count() > times).then_some(()), xtask::command::tail(&log))
        })
        .await;
    }

    /// The log of a pod with one container, or of `pod/container`. There is none before the container exists, or while
    /// the kubelet is down.
    pub async fn log(&self, pod: &str) -> String {
        let (name, container) = pod.split_once('/').map_or((pod, None), |(pod, it)| (pod, Some(it)));
        let params = LogParams { container: container.map(str::to_owned), ..LogParams::default() };
        eventually(&format!("a log of {pod}"), LIMIT, || async {
            match self.here.pods().logs(name, &params).await {
                Ok(log) => Seen::Yes(log),
                Err(error) => Seen::NotYet(error.to_string()),
            }
        })
        .await
    }

    /// The status of the only container of a pod, or of `pod/container`.
    pub async fn container(&self, pod: &str) -> ContainerStatus {
        let (name, container) = pod.split_once('/').unwrap_or((pod, "main"));
        let status = self.here.pods().get(name).await.unwrap().status.unwrap_or_default();
        let mut all = status.container_statuses.into_iter().flatten();
        all.find(|status| status.name == container).unwrap_or_default()
    }

    /// Waits for an Event with this text in the story's namespace.
    pub async fn has_event(&self, words: &str) {
        let events = Api::<Event>::namespaced(self.here.client.clone(), &self.here.namespace);
        eventually(&format!("an Event contains `{words}`"), LIMIT, || async {
            let all = events.list(&ListParams::default()).await.unwrap();
            let messages: Vec<String> = all.iter().filter_map(|event| event.message.clone()).collect();
            let found = messages.iter().any(|message| message.contains(words));
            Seen::some(found.then_some(()), messages.join("\n"))
        })
        .await;
    }

    /// Waits for an Event on the pod with this text that is newer than `since`, because the kubelet repeats its Events.
    pub async fn has_event_after(&self, since: Timestamp, pod: &str, words: &str) {
        let events = Api::<Event>::namespaced(self.here.client.clone(), &self.here.namespace);
        eventually(&format!("an Event on {pod} after {since} contains `{words}`"), LIMIT, || async {
            let all = events.list(&ListParams::default()).await.unwrap();
            let on_it: Vec<&Event> =
                all.iter().filter(|event| event.involved_object.name.as_deref() == Some(pod)).collect();
            let is_it = |event: &&Event| {
                // The driver's own Events have only the latter.
                let last = event.last_timestamp.as_ref().map(|at| at.0);
                let young = last.or(event.event_time.as_ref().map(|at| at.0)).is_some_and(|at| at > since);
                young && event.message.as_ref().is_some_and(|message| message.contains(words))
            };
            Seen::some(on_it.iter().copied().find(is_it).map(drop), format!("{on_it:?}"))
        })
        .await;
    }

    /// The keys that the node service wrote for a Mountpoint Pod.
    pub fn credentials(&self, mountpoint_pod: &str) -> String {
        let uid = self.seen.lock().unwrap()[mountpoint_pod].clone();
        let comm = comm_on_node(Path::new(KUBELET), &uid);
        fs::read_to_string(comm.join("credentials").join(mountpoint_pod)).unwrap()
    }

    pub fn mountpoint_pods_api(&self) -> Api<Pod> {
        Api::namespaced(self.here.client.clone(), MOUNTPOINT_NAMESPACE)
    }

    /// The Mountpoint Pods of the story's volumes, by name.
    pub async fn mountpoint_pods(&self) -> Vec<String> {
        let pods = self.mountpoint_pods_api().list(&ListParams::default()).await.unwrap();
        let mine = |pod: &&Pod| volume_of(pod).is_some_and(|volume| self.is_mine(volume));
        let mine = pods.iter().filter(mine).map(|pod| (pod.name_any(), pod.uid().unwrap()));
        let mine: BTreeMap<String, String> = mine.collect();
        self.seen.lock().unwrap().extend(mine.clone());
        mine.into_keys().collect()
    }

    /// The attachments of the story's volumes.
    pub async fn attachments(&self) -> Vec<MountpointS3PodAttachment> {
        let attachments = Api::<MountpointS3PodAttachment>::all(self.here.client.clone());
        let all = attachments.list(&ListParams::default()).await.unwrap();
        let mine = |it: &MountpointS3PodAttachment| self.is_mine(&it.spec.persistent_volume_name);
        all.items.into_iter().filter(mine).collect()
    }

    /// Waits until no attachment, Mountpoint Pod, mount, folder or credentials of the story's volumes are left, and no
    /// descriptor is left open in a node service. Then deletes claims, volumes and bucket.
    pub async fn leaves_nothing(self) {
        eventually("nothing is left", LIMIT, || async {
            let left = self.left().await;
            Seen::some(left.is_empty().then_some(()), format!("{left:?}"))
        })
        .await;
        let delete = DeleteParams::default();
        for claim in self.claims().list(&ListParams::default()).await.unwrap() {
            let volumes = Api::<PersistentVolume>::all(self.here.client.clone());
            self.claims().delete(&claim.name_any(), &delete).await.unwrap();
            volumes.delete(&claim.name_any(), &delete).await.unwrap();
        }
        for key in self.server.objects(self.name, "").unwrap() {
            self.server.delete(self.name, &key).unwrap();
        }
        self.server.delete_bucket(self.name).unwrap();
    }

    /// Attachments and Mountpoint Pods of the story's volumes, and what is left of them on the nodes.
    pub async fn left(&self) -> Vec<String> {
        let attachments = self.attachments().await.into_iter().map(|attachment| attachment.name_any());
        let pods = self.mountpoint_pods().await;
        let on_nodes = self.left_on_nodes();
        attachments.chain(pods).chain(on_nodes).chain(self.spare_descriptors().await).collect()
    }

    /// Node services keep one descriptor for each mount. Those of other stories go on at the same time, so each Mountpoint
    /// Pod of a volume, whosever it is, accounts for one.
    async fn spare_descriptors(&self) -> Option<String> {
        let kept = descriptors("s3-csi-node").iter().filter(|held| held.contains("/dev/fuse")).count();
        let pods = self.mountpoint_pods_api().list(&ListParams::default()).await.unwrap();
        let serving = pods.iter().filter(|pod| volume_of(pod).is_some()).count();
        (kept > serving).then(|| format!("{kept} descriptors of /dev/fuse for {serving} Mountpoint Pods"))
    }

    /// What is left on every node that is on, and descriptors of the node services.
    fn left_on_nodes(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        let nodes = self.here.cluster.nodes().unwrap();
        let running = nodes.iter().filter_map(|node| self.here.cluster.init_of(*node));
        let paths = running.flat_map(|init| self.left_on_node(init, &seen));
        let held = descriptors("s3-csi-node")
            .into_iter()
            .filter(|held| seen.iter().any(|(name, uid)| held.contains(name) || held.contains(uid)));
        paths.chain(held).collect()
    }

    /// Target mounts, and source mounts and folders of Mountpoint Pods with their credentials, as PID 1 of the node sees them.
    /// It touches no mounted path: a dead mount looks as if it did not exist, and a hung one blocks forever.
    fn left_on_node(&self, init: u32, seen: &BTreeMap<String, String>) -> Vec<String> {
        let mounts = fs::read_to_string(format!("/proc/{init}/mountinfo")).unwrap();
        let kubelet = PathBuf::from(format!("/proc/{init}/root{KUBELET}"));
        let listed = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
        let there: Vec<String> = [sources_on_node(&kubelet), kubelet.join("pods")]
            .into_iter()
            .flat_map(listed)
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        let is_there = |name: &&String| there.contains(name) || mounts.contains(name.as_str());
        let paths = seen.iter().flat_map(|(name, uid)| [name, uid]).filter(is_there).cloned();
        let volumes = self.volumes.lock().unwrap();
        let of_workloads = |line: &&str| volumes.iter().any(|name| line.contains(&format!("~csi/{name}")));
        let mounted: Vec<String> = mounts.lines().filter(of_workloads).map(str::to_owned).collect();
        paths.chain(mounted).collect()
    }
}

/// The volume that a Mountpoint Pod serves; a warm one serves none.
fn volume_of(mountpoint_pod: &Pod) -> Option<&String> {
    // The reference driver writes only the label.
    let volume = mountpoint_pod.annotations().get(annotation::VOLUME_NAME);
    volume.or_else(|| mountpoint_pod.labels().get(label::VOLUME_NAME))
}
