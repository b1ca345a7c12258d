//! What the owner of a workload is told: Events on the pod, where people look first.

use contract::names::DRIVER;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use service::csi::NodePublishVolumeRequest;

use crate::release::REACHES;
use crate::request::{POD_NAME, POD_NAMESPACE, POD_UID};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Nobody serves the mount any more.
    Lost,
    Restored,
}

#[derive(Clone)]
pub struct Teller(Recorder);

impl Teller {
    pub fn new(client: Client, node: &str) -> Self {
        let reporter = Reporter { controller: DRIVER.to_owned(), instance: Some(node.to_owned()) };
        Self(Recorder::new(client, reporter))
    }

    /// Tells the pod that made the request. That it cannot be told changes nothing else.
    pub async fn tell(&self, request: &NodePublishVolumeRequest, news: News) {
        let of_pod = |key: &str| request.volume_context.get(key).cloned();
        let pod = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: of_pod(POD_NAME),
            namespace: of_pod(POD_NAMESPACE),
            uid: of_pod(POD_UID),
            ..ObjectReference::default()
        };
        if let Err(error) = self.0.publish(&event(&request.volume_id, news), &pod).await {
            tracing::warn!(%error, volume_id = request.volume_id, ?news, "cannot write an Event");
        }
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
