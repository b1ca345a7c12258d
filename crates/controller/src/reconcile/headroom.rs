//! The headroom of one workload.

use std::collections::BTreeSet;

use jiff::Timestamp;
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
        // One is enough to wait. A pod may have hundreds.
        for (namespace, claim) in &unknown {
            if self.reader.awaits_volume(namespace, claim).await? {
                headroom.awaits_claims = true;
                break;
            }
        }
        loop {
            match self.apply(headroom.decide(), None, None).await.failed {
                None => break,
                Some((Step::CreateHeadroomPod { volume_name, .. }, StepError::Refused { message, .. })) => {
                    self.report_refused(&headroom, "the headroom pod", &volume_name, &message);
                    headroom.refused.insert(volume_name);
                }
                // No headroom pod can follow the workload.
                Some((Step::LabelWorkload(_), StepError::Refused { message, .. })) => {
                    let volumes: Vec<String> = headroom.volumes.keys().cloned().collect();
                    for volume in volumes {
                        self.report_refused(&headroom, "the label of the workload", &volume, &message);
                        headroom.refused.insert(volume);
                    }
                }
                Some((_, error)) => return Err(error.into()),
            }
            (headroom.pods, headroom.gated) = {
                let now = self.world().headroom_of(uid).0;
                (now.pods, now.gated)
            };
        }
        Ok(headroom.look_again(Timestamp::now()).map_or(Outcome::Done, Outcome::Again))
    }

    /// Those with headroom.
    pub(super) fn with_headroom(&self, workloads: &[Workload]) -> BTreeSet<String> {
        let is_on = self.world().headroom.is_on;
        let with_headroom = workloads.iter().filter(|workload| is_on && workload.has_headroom);
        with_headroom.map(|workload| workload.uid.clone()).collect()
    }

    fn report_refused(&self, headroom: &Headroom, what: &str, volume: &str, message: &str) {
        tracing::warn!(volume, refused = what, reason = message, "cannot reserve headroom");
        let workloads = headroom.gated.iter().map(|gated| gated.workload.clone()).collect();
        let message = format!(
            "the API server refuses {what} for PersistentVolume {volume}, so no room is reserved for its Mountpoint Pod: \
             {message}"
        );
        let (reason, about) = (Reason::HeadroomPodRejected, events::volume(volume));
        self.events.publish(&Notice { workloads, reason, about, message });
    }
}

/// Namespace and name of the workload, as its headroom pods have them.
fn place(headroom: &Headroom) -> Option<(String, String)> {
    headroom.pods.iter().find_map(|HeadroomPod { workload, .. }| workload.clone())
}
