//! A released volume's journey: [`observe`] its credentials, [`plan`], [`apply`].

mod apply;
mod observe;
pub mod plan;
pub mod volume;

use super::bucket::DeleteOutcome;
use super::context::Context;
use super::error::ProvisionError;
use super::s3::credentials::Credentials;
use super::volume_id::VolumeId;
use crate::slim::SlimVolume;

/// Whatever the volume needs: its finalizer, or its deletion.
pub async fn reclaim(context: &Context, volume: &SlimVolume) -> Result<DeleteOutcome, ProvisionError> {
    let plan = plan::plan(volume, observe::observe(context, volume).await);
    apply::apply(context, Some(volume), plan).await
}

/// What is behind a volume, for a csi-provisioner, which deletes the object itself. It may send the credentials.
pub async fn delete_contents(
    context: &Context,
    id: Option<&VolumeId>,
    volume: Option<&SlimVolume>,
    credentials: Option<Credentials>,
) -> Result<DeleteOutcome, ProvisionError> {
    let observed = observe::contents(context, id, volume, credentials).await;
    apply::apply(context, volume, plan::delete_contents(id, volume, observed)).await
}
