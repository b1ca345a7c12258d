//! Updates the definition of attachments, because `helm upgrade` leaves it as an earlier version installed it.

use contract::attachment::MountpointS3PodAttachment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, CustomResourceExt as _};

use crate::api;

const FIELD_MANAGER: &str = "s3-csi-controller";

/// At the start, so that what this version writes into attachments is not pruned. The controller may change this one
/// definition but create none: a missing one is reported by the watch, which waits for it.
pub async fn update(client: &Client) {
    let name = MountpointS3PodAttachment::crd_name();
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let definition = Patch::Apply(MountpointS3PodAttachment::crd());
    match api::answer(definitions.patch(name, &params, &definition)).await {
        Ok(_) => tracing::info!(name, "definition of attachments is up to date"),
        Err(error) => tracing::warn!(%error, name, "cannot update the definition of attachments"),
    }
}
