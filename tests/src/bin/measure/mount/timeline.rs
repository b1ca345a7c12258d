//! When things happened on the node, according to the API server's watches, containerd's events and the logs of the
//! driver's programs.

mod containers;

use std::collections::HashMap;
use std::fs;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::annotation;
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::account::MOUNTPOINT_NAMESPACE;
use s3_csi_tests::{Inside, Seen, eventually};
use serde_json::Value;

/// Since 1970.
pub(super) type Seconds = f64;

const LIMIT: Duration = Duration::from_mins(3);

pub(super) fn now() -> Seconds {
    seconds(Timestamp::now())
}

fn seconds(at: Timestamp) -> Seconds {
    at.as_nanosecond() as f64 / 1e9
}

/// Up to a second and a half, derived from the clock's last digits.
pub(super) fn random_pause() -> Duration {
    Duration::from_millis(u64::try_from(Timestamp::now().subsec_nanosecond() % 1_499).unwrap_or_default())
}

/// Observations by kind and subject.
type Moments = Arc<Mutex<HashMap<(What, String), Seconds>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    Scheduled,
    Created,
    Deleted,
    /// By container id, sandboxes included: made but not running, running, at its end.
    TaskCreated,
    Started,
    Ended,
    Attached,
    Unattached,
}

/// The steps of a cold mount, in their order.
pub(super) struct ColdMount {
    scheduled: Seconds,
    attached: Seconds,
    pod_created: Seconds,
    pub(super) container_started: Seconds,
    listening: Seconds,
    handed_over: Seconds,
    serving: Seconds,
    pub(super) published: Seconds,
}

impl ColdMount {
    pub(super) fn named(&self) -> [(&'static str, Seconds); 8] {
        [
            ("split_00_scheduled_ms", self.scheduled),
            ("split_01_attachment_ms", self.attached),
            ("split_02_pod_created_ms", self.pod_created),
            ("split_03_mounter_started_ms", self.container_started),
            ("split_04_listening_ms", self.listening),
            ("split_05_handed_over_ms", self.handed_over),
            ("split_06_serving_ms", self.serving),
            ("split_07_published_ms", self.published),
        ]
    }
}

pub(super) struct Timeline {
    moments: Moments,
    containers: Child,
    pods: Mutex<HashMap<String, Pod>>,
    client: kube::Client,
}

impl Drop for Timeline {
    fn drop(&mut self) {
        let _ = self.containers.kill();
        let _ = self.containers.wait();
    }
}

impl Timeline {
    /// Starts to record.
    pub(super) async fn follow(here: &Inside) -> Self {
        let moments = Moments::default();
        follow_pods(Api::all(here.client.clone()), Arc::clone(&moments));
        follow_attachments(Api::all(here.client.clone()), Arc::clone(&moments));
        let containers = containers::follow(&moments);
        tokio::time::sleep(Duration::from_secs(1)).await;
        Self { moments, containers, pods: Mutex::default(), client: here.client.clone() }
    }

    async fn when(&self, what: What, subject: &str) -> Seconds {
        eventually(&format!("{subject}: {what:?}"), LIMIT, || async {
            let at = self.moments.lock().unwrap().get(&(what, subject.to_owned())).copied();
            Seen::some(at, "not yet")
        })
        .await
    }

    /// When the container of this pod was started.
    pub(super) async fn started(&self, pod: &str) -> Seconds {
        let container = self.container(pod).await;
        self.when(What::Started, &container).await
    }

    /// What follows the publish until the container of this pod has started. The sandbox comes first, after the kubelet's next
    /// look at the pod's volumes.
    pub(super) async fn start_of_workload(&self, pod: &str) -> [(&'static str, Seconds); 3] {
        let container = self.container(pod).await;
        let sandbox = containers::sandbox_of(&container);
        [
            ("split_08_sandbox_ms", self.when(What::Started, &sandbox).await),
            ("split_09_container_created_ms", self.when(What::TaskCreated, &container).await),
            ("split_10_container_started_ms", self.when(What::Started, &container).await),
        ]
    }

    pub(super) async fn exited(&self, pod: &str) -> Seconds {
        let container = self.container(pod).await;
        self.when(What::Ended, &container).await
    }

    pub(super) async fn gone(&self, pod: &str) -> Seconds {
        self.when(What::Deleted, pod).await
    }

    pub(super) async fn unattached(&self, volume: &str) -> Seconds {
        self.when(What::Unattached, volume).await
    }

    /// The pod of this name in any namespace, once its container has an id. Cached, because the pod may be gone later.
    async fn container(&self, pod: &str) -> String {
        let container = |pod: &Pod| {
            let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?.container_id.clone()?;
            Some(status.rsplit('/').next()?.to_owned())
        };
        let known = self.pods.lock().unwrap().get(pod).and_then(container);
        if let Some(known) = known {
            return known;
        }
        let found = eventually(&format!("a container of {pod}"), LIMIT, || async {
            let params = kube::api::ListParams::default().fields(&format!("metadata.name={pod}"));
            let found = Api::<Pod>::all(self.client.clone()).list(&params).await.unwrap().items.pop();
            Seen::some(found.filter(|found| container(found).is_some()), "none")
        })
        .await;
        let id = container(&found).unwrap_or_default();
        self.pods.lock().unwrap().insert(pod.to_owned(), found);
        id
    }

    /// The Mountpoint Pod that serves the volume now.
    pub(super) async fn mountpoint_pod(&self, volume: &str) -> String {
        let pods = Api::<Pod>::namespaced(self.client.clone(), MOUNTPOINT_NAMESPACE);
        let all = pods.list(&kube::api::ListParams::default()).await.unwrap();
        let serves = |pod: &&Pod| {
            let annotations = pod.annotations();
            annotations.get(annotation::VOLUME_NAME).is_some_and(|name| name == volume)
                && !annotations.contains_key(annotation::NEEDS_UNMOUNT)
        };
        let name =
            all.iter().find(serves).map(kube::ResourceExt::name_any).expect("a Mountpoint Pod serves it");
        self.container(&name).await;
        name
    }

    pub(super) async fn cold_mount(
        &self,
        here: &Inside,
        pod: &str,
        mountpoint: &str,
        volume: &str,
    ) -> ColdMount {
        let uid = here.pods().get(pod).await.unwrap().uid().unwrap();
        let node = lines("kube-system_s3-csi-node");
        let said = |lines: &[(Seconds, Value)], message: &str, field: &str, value: &str| {
            let found = lines.iter().find(|(_, line)| line["message"] == message && line[field] == value);
            found.map_or_else(|| panic!("no log contains `{message}`"), |(at, _)| *at)
        };
        let mounter = lines(&format!("mount-s3_{mountpoint}"));
        ColdMount {
            scheduled: self.when(What::Scheduled, pod).await,
            attached: self.when(What::Attached, volume).await,
            pod_created: self.when(What::Created, mountpoint).await,
            container_started: self.started(mountpoint).await,
            listening: mounter.iter().find(|(_, line)| line["message"] == "waiting for a mount").unwrap().0,
            handed_over: said(&mounter, "mount handed over", "volume_id", volume),
            serving: said(&node, "serving", "mountpoint_pod", mountpoint),
            published: said(&node, "published", "pod_uid", &uid),
        }
    }

    /// When the node service had unpublished the volume of this pod, which may be gone.
    pub(super) async fn unpublished(&self, uid: &str) -> Seconds {
        eventually(&format!("{uid} is unpublished"), LIMIT, || async {
            let lines = lines("kube-system_s3-csi-node");
            let line =
                lines.iter().find(|(_, line)| line["message"] == "unpublished" && line["pod_uid"] == uid);
            Seen::some(line.map(|(at, _)| *at), "not yet")
        })
        .await
    }

    pub(super) async fn scheduled(&self, pod: &str) -> Seconds {
        self.when(What::Scheduled, pod).await
    }

    /// When the node service had published the volume of this pod.
    pub(super) async fn published(&self, here: &Inside, pod: &str) -> Seconds {
        let uid = here.pods().get(pod).await.unwrap().uid().unwrap();
        let lines = lines("kube-system_s3-csi-node");
        let line =
            lines.iter().find(|(_, line)| line["message"] == "published" && line["pod_uid"] == uid.as_str());
        line.expect("it was published").0
    }

    /// How long the publish of this pod's volume took, according to the node service.
    pub(super) async fn publish_took(&self, here: &Inside, pod: &str) -> Seconds {
        let uid = here.pods().get(pod).await.unwrap().uid().unwrap();
        let lines = lines("kube-system_s3-csi-node");
        let line =
            lines.iter().find(|(_, line)| line["message"] == "published" && line["pod_uid"] == uid.as_str());
        line.expect("it was published").1["milliseconds"].as_f64().unwrap() / 1000.0
    }
}

/// What the containers of pods whose folder begins so have written, with the time at which containerd read it.
fn lines(pod: &str) -> Vec<(Seconds, Value)> {
    let folders = fs::read_dir("/var/log/pods").unwrap().flatten();
    let folders = folders.filter(|entry| entry.file_name().to_string_lossy().starts_with(pod));
    let files = folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten().flatten());
    let files = files.flat_map(|container| fs::read_dir(container.path()).into_iter().flatten().flatten());
    let texts = files.map(|file| fs::read_to_string(file.path()).unwrap_or_default());
    let parse = |line: &str| {
        let mut words = line.splitn(4, ' ');
        let at = words.next()?.parse().ok()?;
        Some((seconds(at), serde_json::from_str(words.nth(2)?).ok()?))
    };
    texts.flat_map(|text| text.lines().filter_map(parse).collect::<Vec<_>>()).collect()
}

fn note(moments: &Moments, what: What, subject: String) {
    moments.lock().unwrap().entry((what, subject)).or_insert_with(now);
}

fn follow_pods(api: Api<Pod>, moments: Moments) {
    tokio::spawn(async move {
        let mut stream = std::pin::pin!(watcher(api, watcher::Config::default()));
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Apply(pod)) => {
                    note(&moments, What::Created, pod.name_any());
                    if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) {
                        note(&moments, What::Scheduled, pod.name_any());
                    }
                }
                Ok(Event::Delete(pod)) => note(&moments, What::Deleted, pod.name_any()),
                _ => {}
            }
        }
    });
}

fn follow_attachments(api: Api<MountpointS3PodAttachment>, moments: Moments) {
    tokio::spawn(async move {
        let mut stream = std::pin::pin!(watcher(api, watcher::Config::default()));
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Apply(one)) => {
                    let volume = one.spec.persistent_volume_name;
                    // The latest time at which there was none.
                    moments.lock().unwrap().remove(&(What::Unattached, volume.clone()));
                    note(&moments, What::Attached, volume);
                }
                Ok(Event::Delete(one)) => note(&moments, What::Unattached, one.spec.persistent_volume_name),
                _ => {}
            }
        }
    });
}
