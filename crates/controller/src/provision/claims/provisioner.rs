//! Handles one claim or one released volume of the queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::trace;
use parking_lot::Mutex;
use service::backoff::Backoff;

use super::apply::{ClaimSteps, apply};
use super::cache::ProvisionCache;
use super::claim::{Claim, Need};
use super::claim_context::ClaimContext;
use super::plan::{Next, plan};
use crate::dispatch::Outcome;
use crate::provision::bucket::DeleteOutcome;
use crate::provision::context::Context;
use crate::provision::error::ProvisionError;
use crate::provision::events::EventReason;
use crate::provision::reclaim;

/// The PV controller binds within milliseconds. Until then the claim looks as if it still needed a volume.
const BOUND_WITHIN: Duration = Duration::from_secs(20);
/// Connections are back soon. A missing Secret stays missing until a person creates it, who then waits for the retry.
const FIRST_RETRY: Duration = Duration::from_millis(250);
const LAST_RETRY: Duration = Duration::from_mins(1);
/// Between two turns at a volume with more objects than one turn deletes.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// What is retried, and so has a backoff of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Task {
    /// A claim by UID: one that is created again under its name does not wait for failures of the first.
    Provision(String),
    /// A claim by UID: its cleanup does not wait for failures to provision it.
    CleanUp(String),
    /// A volume by name.
    Reclaim(String),
}

impl Task {
    /// The claim's trace id; the name of a provisioned volume has its UID.
    fn trace_id(&self) -> Option<String> {
        match self {
            Self::Provision(uid) | Self::CleanUp(uid) => Some(trace::id(uid)),
            Self::Reclaim(volume) => volume.strip_prefix("pvc-").map(trace::id),
        }
    }
}

pub struct Provisioner {
    claims: ClaimContext,
    backoff: Mutex<Backoff<Task>>,
}

impl Provisioner {
    pub fn new(context: Arc<Context>, cache: ProvisionCache) -> Self {
        let backoff = Mutex::new(Backoff::new(FIRST_RETRY, LAST_RETRY));
        Self { claims: ClaimContext::new(context, cache), backoff }
    }

    pub async fn claim(&self, namespace: &str, name: &str) -> Outcome {
        let Some(claim) = self.claims.cache.claim(namespace, name) else { return Outcome::Done };
        let (task, reason) = match claim.need() {
            Need::CleanUp => (Task::CleanUp(claim.uid.clone()), EventReason::ProvisioningCleanupFailed),
            Need::Nothing | Need::Refuse(_) | Need::Provision => {
                (Task::Provision(claim.uid.clone()), EventReason::ProvisioningFailed)
            }
        };
        if let Some(wait) = self.backoff.lock().remaining(&task, Instant::now()) {
            return Outcome::Again(wait);
        }
        let reference = claim.reference();
        match self.handle(claim).await {
            Ok(Next::Done) => self.succeed(&task, Duration::ZERO),
            Ok(Next::AwaitBinding) => self.succeed(&task, BOUND_WITHIN),
            Ok(Next::Replan) => Outcome::Conflict,
            Err(error) => {
                self.fail(&task, &error, |note| self.claims.context.events.publish(reference, reason, note))
            }
        }
    }

    async fn handle(&self, claim: Claim) -> Result<Next, ProvisionError> {
        let observed = self.claims.observe(claim).await?;
        let mut steps = ClaimSteps { context: &self.claims, claim: observed.claim.clone() };
        apply(plan(observed)?, &mut steps).await
    }

    pub async fn volume(&self, name: &str) -> Outcome {
        let (task, started) = (Task::Reclaim(name.to_owned()), Instant::now());
        if let Some(wait) = self.backoff.lock().remaining(&task, started) {
            return Outcome::Again(wait);
        }
        // Live: the reclaim policy may just have been changed to Retain.
        let volume = match self.claims.context.kubernetes.volume(name).await {
            Ok(Some(volume)) => volume,
            Ok(None) => return self.succeed(&task, Duration::ZERO),
            Err(error) => return self.fail(&task, &error.into(), drop),
        };
        match reclaim::reclaim(&self.claims.context, &volume).await {
            Ok(outcome) => self.succeed(&task, pause(&outcome, started.elapsed())),
            Err(error) => self.fail(&task, &error, |note| {
                let reference = reclaim::volume::reference(&volume);
                self.claims.context.events.publish(reference, EventReason::VolumeFailedDelete, note);
            }),
        }
    }

    /// `pause`, if it has to be looked at again.
    fn succeed(&self, task: &Task, pause: Duration) -> Outcome {
        if pause.is_zero() {
            self.backoff.lock().record_success(task);
            return Outcome::Done;
        }
        self.backoff.lock().hold(task, Instant::now(), pause);
        Outcome::Again(pause)
    }

    fn fail(&self, task: &Task, error: &ProvisionError, publish: impl FnOnce(String)) -> Outcome {
        if error.is_conflict() {
            tracing::debug!(?task, trace_id = task.trace_id(), %error, "conflict, retrying");
            return Outcome::Conflict;
        }
        tracing::warn!(?task, trace_id = task.trace_id(), %error, "provisioning failed");
        publish(error.to_string());
        Outcome::Failed(Some(self.backoff.lock().record_failure(task, Instant::now())))
    }
}

/// A prefix that is filled as fast as it is emptied, or a server that lists keys without end, gets half of a worker at most.
fn pause(outcome: &DeleteOutcome, took: Duration) -> Duration {
    match outcome {
        DeleteOutcome::Incomplete => took.max(SHORTEST_PAUSE),
        DeleteOutcome::Deleted | DeleteOutcome::Kept(_) | DeleteOutcome::Retained => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_deletion_pauses_as_long_as_it_worked() {
        let long = Duration::from_secs(40);
        assert_eq!(pause(&DeleteOutcome::Incomplete, long), long);
        assert_eq!(pause(&DeleteOutcome::Incomplete, Duration::ZERO), SHORTEST_PAUSE);
        assert_eq!(pause(&DeleteOutcome::Deleted, long), Duration::ZERO);
    }
}
