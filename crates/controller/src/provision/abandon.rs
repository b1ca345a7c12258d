//! Volumes whose Secret is gone, as it goes first when a namespace is deleted: they wait for a while, then they go without
//! what is behind them, and that is told.

use std::sync::Arc;

use jiff::Timestamp;

use super::failure::ProvisionError;
use super::naming::VolumeId;
use super::reclaim::{Leftover, missing_since, waits_until};
use super::storage_class::SecretRef;
use super::tell::{self, Reason, Teller};
use super::volume::Volumes;
use super::write::Writer;
use crate::metrics::KeptReason;
use crate::slim::SlimVolume;

pub(super) struct Abandoning<'a> {
    pub(super) writer: &'a Writer,
    pub(super) teller: &'a Teller,
    pub(super) volumes: &'a Arc<Volumes>,
}

impl Abandoning<'_> {
    /// OK, once it has waited long enough. The wait is written on the volume, where tenants cannot write and a restart of
    /// the controller does not begin it anew.
    pub(super) async fn give_up_when_due(
        &self,
        volume: &SlimVolume,
        id: &VolumeId,
        secret: SecretRef,
    ) -> Result<(), ProvisionError> {
        let (since, now) = (missing_since(volume), Timestamp::now());
        let until = waits_until(since.unwrap_or(now));
        if now < until {
            if since.is_none() {
                self.writer.note_missing(volume, Some(now)).await?;
            }
            return Err(ProvisionError::SecretGone { secret, volume: id.to_string(), until });
        }
        let region = Leftover::of(volume).and_then(|leftover| leftover.region);
        let address = self.volumes.server.endpoint.address(region.as_deref());
        let message = tell::abandoned(id, &address, &secret);
        tracing::warn!(volume_id = %id, message, "volume given up");
        self.teller.tell(tell::volume(volume), Reason::BucketLeft, message);
        self.volumes.kept.count(KeptReason::SecretMissing);
        Ok(())
    }
}
