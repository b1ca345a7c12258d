//! Reads the credentials that a volume is deleted with.

use jiff::Timestamp;

use super::plan::Observed;
use super::volume::{Contents, Need, need};
use crate::provision::context::Context;
use crate::provision::s3::credentials::{Account, Credentials};
use crate::provision::volume_id::{DeletionPolicy, VolumeId};
use crate::slim::SlimVolume;

pub(super) async fn observe(context: &Context, volume: &SlimVolume) -> Observed {
    let id = match need(volume) {
        Need::Delete => Contents::of(volume).and_then(|contents| VolumeId::parse(&contents.handle)),
        Need::Nothing | Need::AddFinalizer | Need::RemoveFinalizer => None,
    };
    contents(context, id.as_ref(), Some(volume), None).await
}

/// `given` credentials have precedence over those of the Secret that the volume names, and these over the driver's.
pub(super) async fn contents(
    context: &Context,
    id: Option<&VolumeId>,
    volume: Option<&SlimVolume>,
    given: Option<Credentials>,
) -> Observed {
    let contents = volume.and_then(Contents::of);
    let (secret, region) = contents.map(|contents| (contents.secret, contents.region)).unwrap_or_default();
    let account = match (id, given) {
        // Nothing is asked of S3: no credentials are needed, nor waited for.
        (None | Some(VolumeId::Prefix { deletion: DeletionPolicy::Retain, .. }), _) => None,
        (Some(_), Some(given)) => Some(Ok(given)),
        (Some(_), None) => Some(context.credentials(secret.as_ref()).await),
    };
    let account = account.map(|found| found.map(|found| Account::new(found, region.as_deref())));
    let region = account.iter().flatten().find_map(Account::region).or(region.as_deref());
    let endpoint = context.buckets.s3.endpoint.address(region).into_owned();
    Observed { account, endpoint, now: Timestamp::now() }
}
