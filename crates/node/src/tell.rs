//! What the owner of a workload is told: Events on the pod, where people look first.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use contract::names::DRIVER;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use crate::release::REACHES;
use crate::request::Publish;
use crate::silence::REPLACED_AFTER;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// The mount process runs and does not answer.
    Unresponsive,
    /// Nobody serves the mount any more.
    Lost,
    /// After the one.
    Responsive,
    /// After the other.
    Restored,
}

pub struct Teller {
    recorder: Recorder,
    /// Targets whose owner knows what is wrong with the mount: it is told once, whoever sees it first.
    wrong: Mutex<HashMap<PathBuf, News>>,
}

impl Teller {
    pub fn new(client: Client, node: &str) -> Self {
        let reporter = Reporter { controller: DRIVER.to_owned(), instance: Some(node.to_owned()) };
        Self { recorder: Recorder::new(client, reporter), wrong: Mutex::default() }
    }

    pub fn silent(&self, publish: &Publish) {
        if !self.told().contains_key(&publish.target) {
            self.tell_wrong(publish, News::Unresponsive);
        }
    }

    pub fn lost(&self, publish: &Publish) {
        self.tell_wrong(publish, News::Lost);
    }

    fn tell_wrong(&self, publish: &Publish, news: News) {
        if self.told().insert(publish.target.clone(), news) != Some(news) {
            self.tell(publish, news);
        }
    }

    /// After it was lost or unresponsive; else there is nothing to tell.
    pub fn restored(&self, publish: &Publish) {
        let told = self.told().remove(&publish.target);
        if let Some(wrong) = told {
            let news = if wrong == News::Unresponsive { News::Responsive } else { News::Restored };
            self.tell(publish, news);
        }
    }

    pub fn forget(&self, target: &Path) {
        self.told().remove(target);
    }

    fn told(&self) -> MutexGuard<'_, HashMap<PathBuf, News>> {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner)
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
        News::Unresponsive => (
            EventType::Warning,
            "BucketMountUnresponsive",
            format!(
                "the process that serves volume `{volume_id}` does not answer, and programs wait for it: it is replaced when it \
                 has not answered for {} s",
                REPLACED_AFTER.as_secs()
            ),
        ),
        News::Lost => (
            EventType::Warning,
            "BucketMountLost",
            format!(
                "the process that served volume `{volume_id}` is gone: programs get errors until it is mounted again"
            ),
        ),
        News::Responsive => (
            EventType::Normal,
            "BucketMountResponsive",
            format!("the process that serves volume `{volume_id}` answers again"),
        ),
        News::Restored => (
            EventType::Normal,
            "BucketMountRestored",
            format!("volume `{volume_id}` is mounted again; {REACHES}"),
        ),
    };
    Event { type_, reason: reason.to_owned(), note: Some(note), action: "Mount".to_owned(), secondary: None }
}
