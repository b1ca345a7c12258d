//! Room that is reserved for the Mountpoint Pods of one workload.

use std::collections::BTreeSet;

use service::events;

use super::{ReconcileError, Reconciler};
use crate::apply::StepError;
use crate::dispatch::Outcome;
use crate::events::{Notice, Reason};
use crate::observed::Workload;
use crate::reserved_room::{HeadroomPod, ReservedRoom};
use crate::step::Step;

impl Reconciler {
    pub(super) async fn reserved_room(&self, uid: &str) -> Result<Outcome, ReconcileError> {
        let (mut room, unknown) = self.world().reserved_room(uid);
        if room.is_on && room.seeker.is_none() {
            room.seeker = match place(&room) {
                Some((namespace, name)) => self.reader.seeker(&namespace, &name, uid).await?,
                None => None,
            };
            // The watches are behind: they will show it, with its claims.
            if room.seeker.as_ref().is_some_and(|seeker| seeker.is_gated) {
                return Ok(Outcome::Again(super::CACHE_LAG));
            }
        }
        for (namespace, claim) in &unknown {
            room.awaits_claims |= self.reader.awaits_volume(namespace, claim).await?;
        }
        loop {
            let steps = room.decide();
            let (done, applied) = self.apply(&steps, None, None).await;
            match (applied, steps.get(done)) {
                (Ok(()), _) => break,
                (
                    Err(StepError::Refused { message, .. }),
                    Some(Step::CreateHeadroomPod { volume_name, .. }),
                ) => {
                    self.report_refused(&room, volume_name, &message);
                    room.refused.insert(volume_name.clone());
                    (room.pods, room.seeker) = {
                        let now = self.world().reserved_room(uid).0;
                        (now.pods, now.seeker)
                    };
                }
                (Err(error), _) => return Err(error.into()),
            }
        }
        Ok(room.look_again().map_or(Outcome::Done, Outcome::Again))
    }

    /// Those for whose Mountpoint Pods room was reserved.
    pub(super) fn with_reserved_room(&self, workloads: &[Workload]) -> BTreeSet<String> {
        let is_on = self.world().room.is_on;
        let with_room = workloads.iter().filter(|workload| is_on && workload.has_reserved_room);
        with_room.map(|workload| workload.uid.clone()).collect()
    }

    fn report_refused(&self, room: &ReservedRoom, volume: &str, message: &str) {
        let workloads = room.seeker.iter().map(|seeker| seeker.workload.clone()).collect();
        let message = format!(
            "the API server refuses the headroom pod for PersistentVolume {volume}, so no room is reserved for its \
             Mountpoint Pod: {message}"
        );
        let (reason, about) = (Reason::HeadroomPodRejected, events::volume(volume));
        self.events.publish(&Notice { workloads, reason, about, message });
    }
}

/// Namespace and name of the workload, as its headroom pods have them.
fn place(room: &ReservedRoom) -> Option<(String, String)> {
    room.pods.iter().find_map(|HeadroomPod { workload, .. }| workload.clone())
}
