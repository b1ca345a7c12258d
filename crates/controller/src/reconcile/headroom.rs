//! The headroom of one workload.

use std::collections::BTreeSet;

use service::events;

use super::{ReconcileError, Reconciler};
use crate::apply::StepError;
use crate::dispatch::Outcome;
use crate::events::{Notice, Reason};
use crate::headroom::{Headroom, HeadroomPod};
use crate::observed::Workload;
use crate::step::Step;

impl Reconciler {
    pub(super) async fn headroom(&self, uid: &str) -> Result<Outcome, ReconcileError> {
        let (mut headroom, unknown) = self.world().headroom_of(uid);
        if headroom.is_on && headroom.gated.is_none() {
            headroom.gated = match place(&headroom) {
                Some((namespace, name)) => self.reader.gated_workload(&namespace, &name, uid).await?,
                None => None,
            };
            // The watches are behind: they will show it, with its claims.
            if headroom.gated.as_ref().is_some_and(|gated| gated.has_gate) {
                return Ok(Outcome::Again(super::CACHE_LAG));
            }
        }
        for (namespace, claim) in &unknown {
            headroom.awaits_claims |= self.reader.awaits_volume(namespace, claim).await?;
        }
        loop {
            match self.apply(headroom.decide(), None, None).await.failed {
                None => break,
                Some((Step::CreateHeadroomPod { volume_name, .. }, StepError::Refused { message, .. })) => {
                    self.report_refused(&headroom, &volume_name, &message);
                    headroom.refused.insert(volume_name);
                    (headroom.pods, headroom.gated) = {
                        let now = self.world().headroom_of(uid).0;
                        (now.pods, now.gated)
                    };
                }
                Some((_, error)) => return Err(error.into()),
            }
        }
        Ok(headroom.look_again().map_or(Outcome::Done, Outcome::Again))
    }

    /// Those with headroom.
    pub(super) fn with_headroom(&self, workloads: &[Workload]) -> BTreeSet<String> {
        let is_on = self.world().headroom.is_on;
        let with_headroom = workloads.iter().filter(|workload| is_on && workload.has_headroom);
        with_headroom.map(|workload| workload.uid.clone()).collect()
    }

    fn report_refused(&self, headroom: &Headroom, volume: &str, message: &str) {
        let workloads = headroom.gated.iter().map(|gated| gated.workload.clone()).collect();
        let message = format!(
            "the API server refuses the headroom pod for PersistentVolume {volume}, so no room is reserved for its \
             Mountpoint Pod: {message}"
        );
        let (reason, about) = (Reason::HeadroomPodRejected, events::volume(volume));
        self.events.publish(&Notice { workloads, reason, about, message });
    }
}

/// Namespace and name of the workload, as its headroom pods have them.
fn place(headroom: &Headroom) -> Option<(String, String)> {
    headroom.pods.iter().find_map(|HeadroomPod { workload, .. }| workload.clone())
}
