//! Warm Mountpoint Pods: claims of them, and those of a node.

use contract::names::warm_mountpoint_pod;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{ReconcileError, Reconciler, Written};
use crate::apply::StepError;
use crate::dispatch::Outcome;
use crate::group::Group;
use crate::mountpoint_pod::Served;
use crate::step::Step;
use crate::warm::{WarmNode, Warmth};

impl Reconciler {
    /// Decides and writes. If the warm pod can no longer be claimed, decides again without it, at once.
    pub(super) async fn write(
        &self,
        group: &mut Group,
        served: Option<Served<'_>>,
        suits_warm: bool,
    ) -> Written {
        let node = &group.key.node;
        let asks = !group.waiting.is_empty() && !self.world().warm.is_off();
        // Before the attachment, which makes the node one that uses buckets.
        let miss = match group.warm {
            _ if !suits_warm => Some(Warmth::OtherShape),
            None if asks => Some(self.world().warm_node(node, &group.now).why_none()),
            _ => None,
        };
        let steps = group.decide();
        if steps.iter().any(Step::claims) {
            // Before the claim, whose place would else be filled at once.
            self.world().warm.hit(node, &group.now);
        }
        let written = self.apply(steps, Some(&group.key), served).await;
        match &written.failed {
            // It stays reserved until a watch shows what became of it, or the reservation lapses.
            Some((Step::ClaimPod { .. }, StepError::Conflict { .. })) => {
                self.metrics.warm(Warmth::Lost);
                group.warm = None;
                self.apply(group.decide(), Some(&group.key), served).await
            }
            // There was no answer, and perhaps it is claimed. The next try, which goes the usual way, has to look again first.
            Some((Step::ClaimPod { .. }, _)) => written,
            _ => {
                self.count_warm(group, &written.steps, miss);
                if let Some(warm) = &group.warm {
                    self.world().warm.release(&warm.name);
                }
                written
            }
        }
    }

    /// Whether new pods could have been warm ones. Those that take the place of others are never.
    fn count_warm(&self, group: &Group, steps: &[Step], miss: Option<Warmth>) {
        let mut world = self.world();
        if world.warm.is_off() || group.waiting.is_empty() {
            return;
        }
        for step in steps {
            match (step, miss) {
                (Step::ClaimPod { .. }, _) => self.metrics.warm(Warmth::Hit),
                (Step::CreatePod { .. }, Some(miss)) => {
                    self.metrics.warm(miss);
                    if miss != Warmth::OtherShape {
                        world.warm.miss(&group.key.node, &group.now);
                    }
                }
                _ => {}
            }
        }
    }

    /// The warm pods of a node.
    pub(super) async fn warm_pods(&self, node: &str) -> Result<Outcome, ReconcileError> {
        let is_known = self.world().nodes.contains(node);
        let node_gone = !is_known && self.reader.node_gone(node).await?;
        let (warm_node, steps, created) = {
            let mut world = self.world();
            let warm_node = WarmNode { node_gone, ..world.warm_node(node, &Time(Timestamp::now())) };
            let steps = warm_node.decide(|| warm_mountpoint_pod(node, &unique()));
            let created = steps.iter().filter(|step| matches!(step, Step::CreateWarmPod { .. })).count();
            world.warm.expect(created);
            if created > 0 {
                world.warm.replaced(node);
            }
            (warm_node, steps, created)
        };
        let written = self.apply(steps, None, None).await;
        self.world().warm.arrived(created);
        written.complete()?;
        Ok(warm_node.look_again().map_or(Outcome::Done, Outcome::Again))
    }
}

/// The kernel's random numbers do not run out.
fn unique() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default()
}
