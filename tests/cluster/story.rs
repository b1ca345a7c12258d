//! One test's volumes and the workloads that use them, on a node with the driver; and what must be left of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::{annotation, comm_on_node, sources_on_node};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Event, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, LogParams, PostParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::account::MOUNTPOINT_NAMESPACE;
use s3_csi_tests::manifest;
use s3_csi_tests::processes::descriptors;
use s3_csi_tests::{Inside, Seen, eventually};
use serde_json::Value;
use tokio::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};
use xtask::driver;
use xtask::s3::{ALICE, Client, ENDPOINT};

/// kubelet waits longer and longer before it tries something again, up to two minutes.
pub(crate) const LIMIT: Duration = Duration::from_mins(4);
const KUBELET: &str = "/var/lib/kubelet";

/// Once for all stories.
static INSTALLED: OnceCell<()> = OnceCell::const_new();
/// Tests that stop what all the others stand on have the node for themselves.
static NODE: RwLock<()> = RwLock::const_new(());

#[expect(dead_code, reason = "held, not looked at")]
enum Turn {
    WithOthers(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

pub(crate) struct Story {
    pub(crate) here: Inside,
    pub(crate) name: &'static str,
    pub(crate) server: Client,
    /// Every Mountpoint Pod that was seen, with its UID.
    seen: Mutex<BTreeMap<String, String>>,
    _turn: Turn,
}

impl Story {
    /// A story of this name has a bucket, a volume and a claim of the same name.
    pub(crate) async fn begin(name: &'static str) -> Self {
        Self::told(name, Turn::WithOthers(NODE.read().await)).await
    }

    /// The same, while no other story goes on.
    pub(crate) async fn alone(name: &'static str) -> Self {
        Self::told(name, Turn::Alone(NODE.write().await)).await
    }

    async fn told(name: &'static str, turn: Turn) -> Self {
        let here = Inside::join(name).await;
        INSTALLED.get_or_init(|| async { driver::install(&here.cluster, &[]).unwrap() }).await;
        let server = Client::new(ENDPOINT, ALICE).unwrap();
        server.create_bucket(name).unwrap();
        let story = Self { here, name, server, seen: Mutex::default(), _turn: turn };
        story.volume(name, |_| {}).await;
        story
    }

    /// A volume for the story's bucket and a claim of the same name for it. The name begins with the story's.
    pub(crate) async fn volume(&self, name: &str, change: impl FnOnce(&mut Value)) {
        assert!(name.starts_with(self.name), "its traces are looked for by name");
        let mut volume = manifest::volume(name, &self.here.namespace, self.name);
        change(&mut volume);
        let claim = manifest::claim(&volume);
        let post = PostParams::default();
        let volumes = Api::<PersistentVolume>::all(self.here.client.clone());
        volumes.create(&post, &serde_json::from_value(volume).unwrap()).await.unwrap();
        self.claims().create(&post, &serde_json::from_value(claim).unwrap()).await.unwrap();
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.here.client.clone(), &self.here.namespace)
    }

    /// A pod that has the story's volume at `/data` and runs a script.
    pub(crate) fn workload(&self, script: &str) -> Value {
        manifest::pod(&[self.name], script)
    }

    /// Waits until the workload's log contains this.
    pub(crate) async fn says(&self, pod: &str, words: &str) {
        self.says_more_often(pod, words, 0).await;
    }

    /// Waits until the log says it once more than it does now.
    pub(crate) async fn says_again(&self, pod: &str, words: &str) {
        let before = self.log(pod).await.matches(words).count();
        self.says_more_often(pod, words, before).await;
    }

    pub(crate) async fn says_more_often(&self, pod: &str, words: &str, times: usize) {
        eventually(&format!("{pod} says `{words}` more than {times} times"), LIMIT, || async {
            let log = self.log(pod).await;
            Seen::some((log.matches(words).count() > times).then_some(()), xtask::command::tail(&log))
        })
        .await;
    }

    /// Of a pod with one container, or of `pod/container`. There is none before there is a container, or while kubelet is
    /// away.
    pub(crate) async fn log(&self, pod: &str) -> String {
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

    /// Of a pod with one container, or of `pod/container`.
    pub(crate) async fn container(&self, pod: &str) -> ContainerStatus {
        let (name, container) = pod.split_once('/').unwrap_or((pod, "main"));
        let status = self.here.pods().get(name).await.unwrap().status.unwrap_or_default();
        let mut all = status.container_statuses.into_iter().flatten();
        all.find(|status| status.name == container).unwrap_or_default()
    }

    /// Waits until an Event in the story's namespace says this.
    pub(crate) async fn is_told(&self, words: &str) {
        let events = Api::<Event>::namespaced(self.here.client.clone(), &self.here.namespace);
        eventually(&format!("an Event says `{words}`"), LIMIT, || async {
            let all = events.list(&ListParams::default()).await.unwrap();
            let told: Vec<String> = all.iter().filter_map(|event| event.message.clone()).collect();
            let said = told.iter().any(|message| message.contains(words));
            Seen::some(said.then_some(()), told.join("\n"))
        })
        .await;
    }

    /// Waits until an Event on the pod says this that is younger than `since`: kubelet writes the same one again and again.
    pub(crate) async fn is_told_after(&self, since: Timestamp, pod: &str, words: &str) {
        let events = Api::<Event>::namespaced(self.here.client.clone(), &self.here.namespace);
        eventually(&format!("an Event on {pod} after {since} says `{words}`"), LIMIT, || async {
            let all = events.list(&ListParams::default()).await.unwrap();
            let on_it: Vec<&Event> =
                all.iter().filter(|event| event.involved_object.name.as_deref() == Some(pod)).collect();
            let is_it = |event: &&Event| {
                let young = event.last_timestamp.as_ref().is_some_and(|at| at.0 > since);
                young && event.message.as_ref().is_some_and(|message| message.contains(words))
            };
            Seen::some(on_it.iter().copied().find(is_it).map(drop), format!("{on_it:?}"))
        })
        .await;
    }

    /// The keys that the node has given to a Mountpoint Pod.
    pub(crate) fn credentials(&self, mountpoint_pod: &str) -> String {
        let uid = self.seen.lock().unwrap()[mountpoint_pod].clone();
        let comm = comm_on_node(Path::new(KUBELET), &uid);
        fs::read_to_string(comm.join("credentials").join(mountpoint_pod)).unwrap()
    }

    pub(crate) fn mountpoint_pods_api(&self) -> Api<Pod> {
        Api::namespaced(self.here.client.clone(), MOUNTPOINT_NAMESPACE)
    }

    /// The Mountpoint Pods of the story's volumes, by name.
    pub(crate) async fn mountpoint_pods(&self) -> Vec<String> {
        let pods = self.mountpoint_pods_api().list(&ListParams::default()).await.unwrap();
        let mine = |pod: &&Pod| {
            let volume = pod.annotations().get(annotation::VOLUME_NAME);
            volume.is_some_and(|volume| volume.starts_with(self.name))
        };
        let mine = pods.iter().filter(mine).map(|pod| (pod.name_any(), pod.uid().unwrap()));
        let mine: BTreeMap<String, String> = mine.collect();
        self.seen.lock().unwrap().extend(mine.clone());
        mine.into_keys().collect()
    }

    /// Of the story's volumes: no attachment, Mountpoint Pod, mount, folder or credentials, and no descriptor that the
    /// node's program still holds. Then claims, volumes and bucket go, too.
    pub(crate) async fn leaves_nothing(self) {
        let attachments = Api::<MountpointS3PodAttachment>::all(self.here.client.clone());
        eventually("nothing is left", LIMIT, || async {
            let attached = attachments.list(&ListParams::default()).await.unwrap();
            let mine =
                |it: &&MountpointS3PodAttachment| it.spec.persistent_volume_name.starts_with(self.name);
            let attached = attached.iter().filter(mine).count();
            let pods = self.mountpoint_pods().await;
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
            let mounted = mounts.matches(&format!("~csi/{}", self.name)).count();
            let left = self.left_on_the_node(&mounts);
            let told = format!("{attached} attachments, {pods:?}, {mounted} mounts, {left:?}");
            Seen::some((attached + pods.len() + mounted + left.len() == 0).then_some(()), told)
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

    /// Sources and folders of Mountpoint Pods, credentials included, and descriptors of the node's program. Nothing that may
    /// be served is touched: a dead one looks as if it were not there, and a hung one never answers.
    fn left_on_the_node(&self, mounts: &str) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        let listed = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
        let there: Vec<String> = [sources_on_node(Path::new(KUBELET)), Path::new(KUBELET).join("pods")]
            .into_iter()
            .flat_map(listed)
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        let is_there = |name: &&String| there.contains(name) || mounts.contains(name.as_str());
        let paths = seen.iter().flat_map(|(name, uid)| [name, uid]).filter(is_there).cloned();
        let held = descriptors("s3-csi-node").into_iter().filter(|held| {
            held.contains("/dev/fuse")
                || seen.iter().any(|(name, uid)| held.contains(name) || held.contains(uid))
        });
        paths.chain(held).collect()
    }
}
