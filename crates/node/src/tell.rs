//! What the owner of a workload is told: Events on the pod, where people look first.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use contract::names::DRIVER;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use crate::release::REACHES;
use crate::request::Publish;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// Nobody serves the mount any more.
    Lost,
    Restored,
}

pub struct Teller {
    recorder: Recorder,
    /// Targets whose owner knows that the mount is dead: each death is told once, whoever sees it first.
    lost: Mutex<HashSet<PathBuf>>,
}

impl Teller {
    pub fn new(client: Client, node: &str) -> Self {
        let reporter = Reporter { controller: DRIVER.to_owned(), instance: Some(node.to_owned()) };
        Self { recorder: Recorder::new(client, reporter), lost: Mutex::default() }
    }

    pub fn lost(&self, publish: &Publish) {
        if self.told().insert(publish.target.clone()) {
            self.tell(publish, News::Lost);
        }
    }

    /// After a loss; else there is nothing to tell.
    pub fn restored(&self, publish: &Publish) {
        if self.told().remove(&publish.target) {
            self.tell(publish, News::Restored);
        }
    }

    pub fn forget(&self, target: &Path) {
        self.told().remove(target);
    }

    fn told(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Without waiting: a mount must not be late because the API server is.
    fn tell(&self, publish: &Publish, news: News) {
        let Publish { volume_id, pod_uid, pod_name, pod_namespace, .. } = publish;
        tracing::info!(volume_id, pod_uid, ?news, "mount");
        let pod = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod_name.clone()),
            namespace: Some(pod_namespace.clone()),
            uid: Some(pod_uid.clone()),
            ..ObjectReference::default()
        };
        let (recorder, event) = (self.recorder.clone(), event(volume_id, news));
        tokio::spawn(async move {
            if let Err(error) = recorder.publish(&event, &pod).await {
                tracing::warn!(%error, pod_uid = pod.uid, "cannot write an Event");
            }
        });
    }
}

fn event(volume_id: &str, news: News) -> Event {
    let (type_, reason, note) = match news {
        News::Lost => (
            EventType::Warning,
            "BucketMountLost",
            format!(
                "the process that served volume `{volume_id}` is gone: programs get errors until it is mounted again"
            ),
        ),
        News::Restored => (
            EventType::Normal,
            "BucketMountRestored",
            format!("volume `{volume_id}` is mounted again; {REACHES}"),
        ),
    };
    Event { type_, reason: reason.to_owned(), note: Some(note), action: "Mount".to_owned(), secondary: None }
}
