//! Volumes that nobody claims any more, or whose policy was changed, one at a time.

use std::time::{Duration, Instant};

use kube::ResourceExt as _;

use super::abandon::Abandoning;
use super::failure::ProvisionError;
use super::keyring::KeyringError;
use super::naming::{Deletion, VolumeId};
use super::patience::Task;
use super::provisioner::Provisioner;
use super::reclaim::{self, Leftover, Need};
use super::server::Account;
use super::tell::{self, Reason};
use super::volume::Gone;
use crate::dispatch::Outcome;
use crate::metrics::KeptReason;
use crate::slim::SlimVolume;

/// Between two turns at a volume with more objects than one turn deletes.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

impl Provisioner {
    pub async fn volume(&self, name: &str) -> Outcome {
        let (task, began) = (Task::Reclaim(name.to_owned()), Instant::now());
        if let Some(left) = self.patience.left(&task, began) {
            return Outcome::Again(left);
        }
        // Live: what is deleted by what a cache says may have been changed to Retain a moment ago.
        let volume = match self.writer.volume(name).await {
            Ok(Some(volume)) => volume,
            Ok(None) => return self.finish(&task, Ok(Duration::ZERO), drop),
            Err(error) => return self.finish(&task, Err(error.into()), drop),
        };
        let done = match reclaim::need(&volume) {
            Need::Nothing => Ok(Duration::ZERO),
            Need::AddFinalizer => {
                self.writer.add_finalizer(&volume).await.map_err(Into::into).map(|()| Duration::ZERO)
            }
            Need::DropFinalizer => {
                self.writer.drop_finalizer(&volume).await.map_err(Into::into).map(|()| Duration::ZERO)
            }
            Need::Delete => self.delete(&volume).await.map(|gone| rest(gone, began.elapsed())),
        };
        self.finish(&task, done, |message| {
            self.teller.tell(tell::volume(&volume), Reason::VolumeFailedDelete, message);
        })
    }

    async fn delete(&self, volume: &SlimVolume) -> Result<Gone, ProvisionError> {
        let Some(leftover) = Leftover::of(volume) else { return Ok(Gone::Deleted) };
        let gone = match VolumeId::parse(&leftover.handle) {
            Some(id) => self.delete_behind(volume, &id, &leftover).await?,
            None => {
                let message = format!("`{}` was not made by this driver and is kept", leftover.handle);
                self.teller.tell(tell::volume(volume), Reason::BucketKept, message);
                self.volumes.kept.count(KeptReason::NotOurs);
                Gone::Retained
            }
        };
        if gone != Gone::Partly {
            self.writer.delete_volume(volume).await?;
            tracing::info!(volume = volume.name_any(), volume_id = leftover.handle, ?gone, "volume deleted");
        }
        Ok(gone)
    }

    async fn delete_behind(
        &self,
        volume: &SlimVolume,
        id: &VolumeId,
        leftover: &Leftover,
    ) -> Result<Gone, ProvisionError> {
        // Nothing is asked of S3: no keys are needed, nor waited for.
        if matches!(id, VolumeId::Prefix { deletion: Deletion::Retain, .. }) {
            return Ok(Gone::Retained);
        }
        let credentials = match self.keyring.find(leftover.secret.as_ref(), &self.volumes).await {
            Ok(credentials) => credentials,
            Err(KeyringError::SecretMissing(secret)) => {
                let Self { writer, teller, volumes, .. } = self;
                Abandoning { writer, teller, volumes }.give_up_when_due(volume, id, secret).await?;
                return Ok(Gone::Retained);
            }
            Err(error) => return Err(error.into()),
        };
        if reclaim::missing_since(volume).is_some() {
            self.writer.note_missing(volume, None).await?;
        }
        let account = Account { credentials: &credentials, region: leftover.region.as_deref() };
        let gone = self.volumes.delete(id, leftover.deletion, account).await?;
        if let Gone::Kept(why) = gone {
            let address = self.volumes.server.endpoint.address(account.region());
            let message = tell::kept(id.bucket_name(), &address, why);
            self.teller.tell(tell::volume(volume), Reason::BucketKept, message);
            self.volumes.kept.count(why.into());
        }
        Ok(gone)
    }
}

/// A prefix that is filled as fast as it is emptied, or a server that lists keys without end, gets half of a worker at most.
fn rest(gone: Gone, took: Duration) -> Duration {
    match gone {
        Gone::Partly => took.max(SHORTEST_PAUSE),
        Gone::Deleted | Gone::Kept(_) | Gone::Retained => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_done_pauses_as_long_as_it_worked() {
        let long = Duration::from_secs(40);
        assert_eq!(rest(Gone::Partly, long), long);
        assert_eq!(rest(Gone::Partly, Duration::ZERO), SHORTEST_PAUSE);
        assert_eq!(rest(Gone::Deleted, long), Duration::ZERO);
    }
}
