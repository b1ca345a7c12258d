//! The pods of the installed driver.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use xtask::driver;

use crate::story::{LIMIT, Story};
use crate::{Seen, eventually};

pub fn driver_pods(story: &Story) -> Api<Pod> {
    Api::namespaced(story.here.client.clone(), driver::NAMESPACE)
}

async fn ready_pod(story: &Story, app: &str, other_than: &str) -> String {
    let params = ListParams::default().labels(&format!("app={app}"));
    eventually(&format!("a pod of {app} is ready"), LIMIT, || async {
        let pods = driver_pods(story).list(&params).await.unwrap();
        let ready = |pod: &&Pod| {
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let ready = conditions.clone().any(|it| it.type_ == "Ready" && it.status == "True");
            ready && pod.name_any() != other_than && pod.metadata.deletion_timestamp.is_none()
        };
        let found = pods.iter().find(ready).map(ResourceExt::name_any);
        Seen::some(found, format!("{} pods", pods.items.len()))
    })
    .await
}

/// Deletes a pod of the driver and waits for its replacement.
pub async fn replace(story: &Story, app: &str, delete: DeleteParams) -> String {
    let old = ready_pod(story, app, "").await;
    driver_pods(story).delete(&old, &delete).await.unwrap();
    ready_pod(story, app, &old).await
}
