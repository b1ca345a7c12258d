//! One sharing key: its attachments and Mountpoint Pods.

use std::time::Duration;

use contract::sharing::Identity;
use contract::volume::{Volume, VolumeError};
use contract::volume_plan::VolumePlan;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use service::events;

use super::{CACHE_LAG, ReconcileError, Reconciler, Written};
use crate::apply::StepError;
use crate::conditions;
use crate::dispatch::Outcome;
use crate::events::Notice;
use crate::group::{Group, is_outdated};
use crate::mountpoint_pod::Served;
use crate::notices;
use crate::observed::{S3Volume, Workload};
use crate::world::View;

/// Between looks whether another mount of the node has moved to this version.
const UPGRADE_TURN: Duration = Duration::from_secs(2);

impl Reconciler {
    pub(super) async fn group(&self, name: &str) -> Result<Outcome, ReconcileError> {
        let Some(view) = self.world().view(name) else { return Ok(Outcome::Done) };
        let plan = view.volume.as_ref().map(S3Volume::plan);
        let volume = plan.as_ref().and_then(|plan| plan.as_ref().ok()).map(|plan| &plan.volume);
        let suits_warm = volume.is_some_and(|volume| self.writer.suits_warm(volume));
        let (mut group, waiting) = self.gather(&view, volume, suits_warm).await?;
        let claim = view.volume.as_ref().and_then(|volume| volume.claim.as_ref());
        let served = volume.map(|volume| Served { volume, claim });
        let written = self.write(&mut group, served, suits_warm).await;
        if group.upgrades {
            self.world().upgrading.remove(&view.key.node);
        }
        let reported = self.report(name, &view, plan.as_ref(), &group, &waiting, &written).await;
        written.complete()?;
        reported?;
        let cache_lags = (group.gone.len() < view.suspects.len()).then_some(CACHE_LAG);
        let waits_for_turn = volume.is_some() && !group.upgrades && self.has_outdated(&view);
        let turn = waits_for_turn.then_some(UPGRADE_TURN);
        let again = group.look_again().into_iter().chain(cache_lags).chain(turn).min();
        Ok(again.map_or(Outcome::Done, Outcome::Again))
    }

    /// What to decide on, confirmed by live reads, and the workloads that wait for it. A warm pod and the node's turn to upgrade
    /// are reserved for the decision.
    async fn gather(
        &self,
        view: &View,
        volume: Option<&Volume>,
        suits_warm: bool,
    ) -> Result<(Group, Vec<Workload>), ReconcileError> {
        let gone = self.reader.gone(view).await?;
        let node_gone = !view.node_known && self.reader.node_gone(&view.key.node).await?;
        let detached = self.reader.detached(view).await?;
        let is_sole_writer = self.world().is_sole_writer();
        let mut waiting = match volume {
            None => Vec::new(),
            Some(_) if view.waiting.is_empty() || is_sole_writer => view.waiting.clone(),
            Some(_) => self.reader.waiting(view).await?,
        };
        waiting.retain(|workload| !detached.iter().any(|(uid, _)| *uid == workload.uid));
        let warm = Some(&view.key.node).filter(|_| suits_warm && !waiting.is_empty());
        let now = Time(Timestamp::now());
        let warm = warm.and_then(|node| self.world().reserve_warm(node, &now));
        let is_drivers = view.key.identity == Identity::Driver;
        let ending = view.workloads.iter().filter(|workload| workload.terminating);
        let version = self.writer.driver_version();
        let is_outdated = volume.is_some() && self.has_outdated(view);
        let upgrades = is_outdated && self.world().begin_upgrade(&view.key.node, version, &now);
        let group = Group {
            key: view.key.clone(),
            now,
            driver_version: version.to_owned(),
            attachments: view.attachments.clone(),
            waiting: waiting.iter().map(|workload| workload.uid.clone()).collect(),
            with_headroom: self.with_headroom(&waiting),
            detached,
            gone,
            ending: ending.map(|workload| workload.uid.clone()).collect(),
            pods: view.pods.clone(),
            warm,
            early_mount: view.volume.as_ref().and_then(S3Volume::early_mount).filter(|_| is_drivers),
            authentication: volume.map(|volume| volume.authentication).filter(|_| is_same_volume(view)),
            node_gone,
            upgrades,
        };
        Ok((group, waiting))
    }

    /// Events about the volume, its workloads and their pods, and the conditions of the attachments.
    async fn report(
        &self,
        name: &str,
        view: &View,
        plan: Option<&Result<VolumePlan, VolumeError>>,
        group: &Group,
        waiting: &[Workload],
        written: &Written,
    ) -> Result<(), StepError> {
        let (plan, invalid) =
            (plan.and_then(|plan| plan.as_ref().ok()), plan.and_then(|plan| plan.as_ref().err()));
        let failure = notices::failure(&view.key, invalid, written.error());
        if let Some((reason, message)) = &failure {
            // Workloads that are served keep their mounts, whatever became of the volume since.
            let workloads = if written.failed.is_some() { &view.workloads } else { &view.waiting };
            self.events.publish(&Notice {
                workloads: workloads.clone(),
                reason: *reason,
                about: events::volume(&view.key.volume_name),
                message: message.clone(),
            });
        }
        let ignored = plan.map_or(&[][..], |plan| &plan.ignored);
        let cache_limit = plan.and_then(|plan| self.writer.cache_limit(&plan.volume));
        let warnings = notices::volume_warnings(view, ignored, cache_limit, waiting);
        let namespace = &self.reader.mountpoint_namespace;
        let replacements = notices::replacements(namespace, view, group, &written.steps);
        for notice in warnings.iter().chain(&replacements) {
            self.events.publish(notice);
        }
        // After applying the steps.
        let Some(view) = self.world().view(name) else { return Ok(()) };
        for notice in notices::start_failures(namespace, &view) {
            self.events.publish(&notice);
        }
        let failure = failure.filter(|_| written.failed.is_some());
        let (attachments, pods, now) = (&view.attachments, &view.pods, Time(Timestamp::now()));
        let changes = conditions::changes(namespace, attachments, pods, failure.as_ref(), &now);
        self.apply(changes, Some(&view.key), None).await.complete()
    }

    fn has_outdated(&self, view: &View) -> bool {
        let version = self.writer.driver_version();
        self.moves_on_upgrade && view.pods.values().any(|pod| is_outdated(pod, version))
    }
}

/// Not another one that was created under its name.
fn is_same_volume(view: &View) -> bool {
    view.volume.as_ref().is_some_and(|volume| volume.handle == view.key.volume_id)
}
