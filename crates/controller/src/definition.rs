//! Updates the definition of attachments, because `helm upgrade` leaves it as an earlier version installed it.

use std::time::{Duration, Instant};

use contract::attachment::MountpointS3PodAttachment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, CustomResourceExt as _};
use service::backoff::Backoff;

use crate::api::{self, Cause};

const FIELD_MANAGER: &str = "s3-csi-controller";
/// An API server that has just started is back within seconds; a policy stays until a person changes it.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_mins(5);

/// At the start, so that what this version writes into attachments is not pruned, and by each new leader, because one of an
/// earlier version may have written its own meanwhile. Until it succeeds, or is forbidden. The controller may change this
/// one definition but create none: a missing one is reported by the watch, which waits for it.
pub async fn update(client: Client) {
    let name = MountpointS3PodAttachment::crd_name();
    let definitions = Api::<CustomResourceDefinition>::all(client);
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let definition = Patch::Apply(MountpointS3PodAttachment::crd());
    let mut backoff = Backoff::new(FIRST_RETRY, LAST_RETRY);
    loop {
        let Err(error) = api::answer(definitions.patch(name, &params, &definition)).await else {
            tracing::info!(name, "definition of attachments is up to date");
            return;
        };
        tracing::warn!(%error, name, "cannot update the definition of attachments");
        if error.cause == Cause::Forbidden {
            return;
        }
        tokio::time::sleep(backoff.record_failure(&name, Instant::now())).await;
    }
}
