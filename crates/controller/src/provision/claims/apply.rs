//! Applies the steps of a plan in order. Each may be the last one before a crash.

use contract::trace;

use super::claim::Claim;
use super::claim_context::ClaimContext;
use super::plan::{Next, Plan, Recovery, Step, recover};
use crate::provision::bucket::DeleteOutcome;
use crate::provision::error::ProvisionError;
use crate::provision::volume_id::DeletionPolicy;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    Done,
    /// The claim has a volume with another bucket, of an earlier attempt: the one just created has to be deleted.
    OtherVolume,
}

/// The API server and S3, or a simulation of both.
pub(crate) trait Execute {
    fn execute(&mut self, step: &Step) -> impl Future<Output = Result<Applied, ProvisionError>> + Send;
}

pub(crate) async fn apply(plan: Plan, steps: &mut impl Execute) -> Result<Next, ProvisionError> {
    for step in &plan.steps {
        match steps.execute(step).await {
            Ok(Applied::Done) => {}
            Ok(Applied::OtherVolume) => return Ok(Next::Replan),
            Err(error) => match recover(step, &error) {
                Recovery::Fail => return Err(error),
                Recovery::Undo(step) => {
                    steps.execute(&step).await?;
                    return Err(error);
                }
                Recovery::Replace(other) => {
                    tracing::warn!(%error, ?step, "step replaced");
                    steps.execute(&other).await?;
                }
            },
        }
    }
    Ok(plan.then)
}

pub(super) struct ClaimSteps<'a> {
    pub(super) context: &'a ClaimContext,
    /// The claim as of the last write.
    pub(super) claim: Claim,
}

impl Execute for ClaimSteps<'_> {
    async fn execute(&mut self, step: &Step) -> Result<Applied, ProvisionError> {
        let Self { context: ClaimContext { context, cache, accounts, identity }, claim } = self;
        let (namespace, name) = (claim.namespace.clone(), claim.name.clone());
        let trace_id = trace::id(&claim.uid);
        match step {
            Step::Publish(reason, note) => context.events.publish(claim.reference(), *reason, note.clone()),
            Step::AddFinalizer { id, owner } => {
                *claim = context.kubernetes.add_claim_finalizer(claim, id).await?;
                cache.update_claim(claim.clone());
                accounts.insert(&claim.uid, owner.clone());
            }
            Step::CreateBucket { id, account, .. } => context.buckets.create(id, account).await?,
            Step::CreateVolume { new, class } => {
                let volume = new.persistent_volume(claim, class, identity);
                let handle = context.kubernetes.create_volume(&volume, claim).await?;
                if handle != new.id.to_string() && claim.has_finalizer() {
                    return Ok(Applied::OtherVolume);
                }
                let volume = claim.volume_name();
                tracing::info!(
                    namespace,
                    claim = name,
                    volume,
                    volume_id = handle,
                    trace_id,
                    "claim provisioned"
                );
            }
            Step::DeleteBucket { id, account, endpoint, .. } => {
                let outcome = context.buckets.delete(id, DeletionPolicy::Retain, account).await?;
                tracing::info!(
                    namespace,
                    claim = name,
                    volume_id = %id,
                    ?outcome,
                    trace_id,
                    "cleaned up bucket of claim"
                );
                if let DeleteOutcome::Kept(kept) = outcome {
                    let note = kept.note(&id.place(), endpoint);
                    context.events.publish(claim.reference(), kept.event_reason(), note);
                }
            }
            Step::RemoveFinalizer => {
                let removed = context.kubernetes.remove_claim_finalizer(claim).await?;
                accounts.remove(&claim.uid);
                if let Some(removed) = removed {
                    cache.update_claim(removed.clone());
                    *claim = removed;
                }
            }
        }
        Ok(Applied::Done)
    }
}
