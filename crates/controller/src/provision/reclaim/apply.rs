//! Applies the steps of a plan in order. Each may be the last one before a crash.

use kube::ResourceExt;

use super::plan::Step;
use super::volume::reference;
use crate::provision::bucket::{DeleteOutcome, Kept};
use crate::provision::context::Context;
use crate::provision::error::ProvisionError;
use crate::slim::SlimVolume;

/// Without a volume there is only a bucket to delete.
pub(super) async fn apply(
    context: &Context,
    volume: Option<&SlimVolume>,
    steps: Vec<Step>,
) -> Result<DeleteOutcome, ProvisionError> {
    let mut outcome = DeleteOutcome::Retained;
    let mut reported: Option<&'static str> = None;
    for step in steps {
        match (step, volume) {
            (Step::DeleteBucket { id, policy, account, endpoint }, _) => {
                outcome = context.buckets.delete(&id, policy, &account).await?;
                match &outcome {
                    DeleteOutcome::Incomplete => break,
                    DeleteOutcome::Deleted => tracing::info!(volume_id = %id, "deleted bucket or prefix"),
                    DeleteOutcome::Kept(kept) => {
                        report(context, volume, kept, kept.note(&id.place(), &endpoint));
                        reported = Some(kept.into());
                    }
                    DeleteOutcome::Retained => {}
                }
            }
            (Step::ReportKept { kept, note }, _) => {
                report(context, volume, &kept, note);
                reported = Some((&kept).into());
            }
            (Step::Fail(error), _) => return Err(error),
            (Step::AddFinalizer, Some(volume)) => context.kubernetes.add_volume_finalizer(volume).await?,
            (Step::RemoveFinalizer, Some(volume)) => {
                context.kubernetes.remove_volume_finalizer(volume).await?
            }
            (Step::RecordMissingSecret(since), Some(volume)) => {
                context.kubernetes.record_missing_secret(volume, since).await?;
            }
            (Step::DeleteVolume, Some(volume)) => {
                context.kubernetes.delete_volume(volume).await?;
                tracing::info!(volume = volume.name_any(), ?outcome, "deleted volume");
            }
            (
                Step::AddFinalizer
                | Step::RemoveFinalizer
                | Step::RecordMissingSecret(_)
                | Step::DeleteVolume,
                None,
            ) => {}
        }
    }
    // Until the volume is deleted, the next attempt finds the same bucket.
    if let Some(reason) = reported {
        context.buckets_kept.count(reason);
    }
    Ok(outcome)
}

/// Before the volume is deleted: if this process ends then, nothing else names the bucket. An Event is not repeated.
fn report(context: &Context, volume: Option<&SlimVolume>, kept: &Kept, note: String) {
    tracing::warn!(volume = volume.map(ResourceExt::name_any), note, "bucket outlives its volume");
    if let Some(volume) = volume {
        context.events.publish(reference(volume), kept.event_reason(), note);
    }
}
