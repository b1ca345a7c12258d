//! One key at a time: gather what is known, confirm by live reads where a cache is not enough, decide, write, report.

mod reserved_room;
mod warm;

use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::sharing::{Identity, SharingKey};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, ResourceExt as _};
use parking_lot::{Mutex, MutexGuard};
use service::events;
use thiserror::Error;

use crate::apply::{Applied, StepError, Writer};
use crate::conditions;
use crate::dispatch::Outcome;
use crate::events::{Notice, Reason, WorkloadEvents};
use crate::group::{Group, is_outdated, retire};
use crate::key::Key;
use crate::live_read::{ReadError, Reader, read};
use crate::metrics::{Metrics, ResultLabel, StepLabels};
use crate::mountpoint_pod::Served;
use crate::notices;
use crate::observed::S3Volume;
use crate::provision::claims::provisioner::Provisioner;
use crate::queues::{Sink, send};
use crate::step::Step;
use crate::world::{View, World};

/// How long a cache may lag behind a live read before it is worth another look.
const CACHE_LAG: Duration = Duration::from_millis(500);
/// How long workloads that have lost their attachment may take to get it back before their pod is looked at again. Their
/// own key does the work and tries again by itself.
const ATTACHED_AGAIN: Duration = Duration::from_secs(5);
/// Between looks whether another mount of the node has moved to this version.
const UPGRADE_TURN: Duration = Duration::from_secs(2);
const ROLE_ANNOTATION: &str = "eks.amazonaws.com/role-arn";

#[derive(Debug, Error)]
enum ReconcileError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Step(#[from] StepError),
}

impl ReconcileError {
    /// Whether the API server did not answer: then the caches may be outdated, too.
    fn is_lost_contact(&self) -> bool {
        !matches!(self, Self::Step(StepError::Refused { .. } | StepError::NoVolume { .. }))
    }
}

/// What has become of a decision: the steps that were applied, and the failure of the next one.
struct Written {
    steps: Vec<Step>,
    applied: Result<(), StepError>,
}

pub struct Reconciler {
    pub reader: Reader,
    pub world: Arc<Mutex<World>>,
    pub sink: Sink,
    pub writer: Writer,
    pub events: WorkloadEvents,
    /// `None` where another program provisions.
    pub provisioner: Option<Provisioner>,
    pub metrics: Metrics,
    /// To Mountpoint Pods of this version.
    pub moves_on_upgrade: bool,
}

impl Reconciler {
    pub async fn handle(self: Arc<Self>, key: Key) -> Outcome {
        let began = Instant::now();
        let outcome = match &key {
            Key::Group(name) => self.group(name).await,
            Key::Pod(name) => self.unnamed_pod(name).await,
            Key::Headroom(node) => self.headroom(node).await,
            Key::ReservedRoom(uid) => self.reserved_room(uid).await,
            Key::Role(uid) => self.role(uid).await,
            Key::Claim(namespace, name) => match &self.provisioner {
                Some(provisioner) => Ok(provisioner.claim(namespace, name).await),
                None => Ok(Outcome::Done),
            },
            Key::Volume(name) => match &self.provisioner {
                Some(provisioner) => Ok(provisioner.volume(name).await),
                None => Ok(Outcome::Done),
            },
        };
        self.metrics.reconcile_seconds.observe(began.elapsed().as_secs_f64());
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(ReconcileError::Step(error @ StepError::Conflict { .. })) => {
                tracing::debug!(?key, %error, "conflict, retrying");
                Outcome::Conflict
            }
            Err(error) => {
                if error.is_lost_contact() {
                    self.world().mark_stale();
                }
                tracing::warn!(?key, %error, "reconcile failed");
                Outcome::Failed(None)
            }
        };
        self.metrics.reconciles.get_or_create(&ResultLabel { result: outcome.as_str() }).inc();
        outcome
    }

    async fn group(&self, name: &str) -> Result<Outcome, ReconcileError> {
        let Some(view) = self.world().view(name) else { return Ok(Outcome::Done) };
        let gone = self.reader.gone(&view).await?;
        let cache_lags = gone.len() < view.suspects.len();
        let node_gone = !view.node_known && self.reader.node_gone(&view.key.node).await?;
        let plan = view.volume.as_ref().map(S3Volume::plan);
        let usable = plan.as_ref().and_then(|plan| plan.as_ref().ok());
        let detached = self.reader.detached(&view).await?;
        let is_sole_writer = self.world().is_sole_writer();
        let mut waiting = match usable {
            None => Vec::new(),
            Some(_) if view.waiting.is_empty() || is_sole_writer => view.waiting.clone(),
            Some(_) => self.reader.waiting(&view).await?,
        };
        waiting.retain(|workload| !detached.iter().any(|(uid, _)| *uid == workload.uid));
        let volume = usable.map(|plan| &plan.volume);
        let suits_warm = volume.is_some_and(|volume| self.writer.suits_warm(volume));
        let warm = Some(&view.key.node).filter(|_| suits_warm && !waiting.is_empty());
        let warm = warm.and_then(|node| self.world().reserve_warm(node));
        let is_drivers = view.key.identity == Identity::Driver;
        let ending = view.workloads.iter().filter(|workload| workload.terminating);
        let outdated = volume.is_some() && self.has_outdated(&view);
        let version = self.writer.driver_version();
        let upgrade = outdated.then(|| self.world().begin_upgrade(&view.key.node, version)).flatten();
        let mut group = Group {
            key: view.key.clone(),
            now: Time(Timestamp::now()),
            driver_version: version.to_owned(),
            attachments: view.attachments.clone(),
            waiting: waiting.iter().map(|workload| workload.uid.clone()).collect(),
            with_reserved_room: self.with_reserved_room(&waiting),
            detached,
            gone,
            ending: ending.map(|workload| workload.uid.clone()).collect(),
            pods: view.pods.clone(),
            warm,
            early_mount: view.volume.as_ref().and_then(S3Volume::early_mount).filter(|_| is_drivers),
            node_gone,
            upgrades: upgrade.is_some(),
        };
        let claim = view.volume.as_ref().and_then(|volume| volume.claim.as_ref());
        let served = volume.map(|volume| Served { volume, claim });
        let Written { steps, applied } = self.write(&mut group, served).await;
        if let Some(node) = &upgrade {
            self.world().upgrading.remove(node);
        }
        self.count_warm(&group, &steps, suits_warm);

        let invalid = plan.as_ref().and_then(|plan| plan.as_ref().err());
        let failure = notices::failure(&view.key, invalid, &applied);
        if let Some((reason, message)) = &failure {
            // Workloads that are served keep their mounts, whatever became of the volume since.
            let workloads = if applied.is_err() { &view.workloads } else { &view.waiting };
            self.events.publish(&Notice {
                workloads: workloads.clone(),
                reason: *reason,
                about: events::volume(&view.key.volume_name),
                message: message.clone(),
            });
        }
        let ignored = usable.map_or(&[][..], |plan| &plan.ignored);
        let cache_limit = volume.and_then(|volume| self.writer.cache_limit(volume));
        let warnings = notices::volume_warnings(&view, ignored, cache_limit, &waiting);
        let namespace = &self.reader.mountpoint_namespace;
        let replacements = notices::replacements(namespace, &view, &group, &steps);
        for notice in warnings.iter().chain(&replacements) {
            self.events.publish(notice);
        }
        let is_claimed = steps.iter().any(Step::claims);
        self.report_pods(name, failure.filter(|_| applied.is_err()).as_ref(), is_claimed).await;
        applied?;
        let turn = (outdated && upgrade.is_none()).then_some(UPGRADE_TURN);
        let again = group.look_again().into_iter().chain(cache_lags.then_some(CACHE_LAG)).chain(turn).min();
        Ok(again.map_or(Outcome::Done, Outcome::Again))
    }

    fn has_outdated(&self, view: &View) -> bool {
        let version = self.writer.driver_version();
        self.moves_on_upgrade && view.pods.values().any(|pod| is_outdated(pod, version))
    }

    /// Reports why Mountpoint Pods do not run, as the world is after the steps; `failure` is why there are none at all, and
    /// `is_claimed` whether a warm one was.
    async fn report_pods(&self, group: &str, failure: Option<&(Reason, String)>, is_claimed: bool) {
        let Some(view) = self.world().view(group) else { return };
        let namespace = &self.reader.mountpoint_namespace;
        for notice in notices::start_failures(namespace, &view) {
            self.events.publish(&notice);
        }
        for step in conditions::changes(namespace, &view, failure, is_claimed, &Time(Timestamp::now())) {
            if let Err(error) = self.apply_step(&step, Some(&view.key), None).await {
                tracing::warn!(%error, "condition not written");
            }
        }
    }

    /// A Mountpoint Pod that no attachment names: unmount it, or remove what is left of it.
    async fn unnamed_pod(&self, name: &str) -> Result<Outcome, ReconcileError> {
        let (pod, node_known) = {
            let world = self.world();
            let Some(pod) = world.pods.get(name).filter(|pod| world.is_unnamed(pod)) else {
                return Ok(Outcome::Done);
            };
            if world.retiring.contains(name) {
                return Ok(Outcome::Again(CACHE_LAG));
            }
            // Marked for unmount, it would leave workloads behind that could never be served again.
            let detached = pod.attachment.iter().flat_map(|group| world.detached(group));
            if detached.into_iter().any(|it| it.pod.name == name) {
                return Ok(Outcome::Again(ATTACHED_AGAIN));
            }
            (pod.clone(), pod.node.as_ref().is_none_or(|node| world.nodes.contains(node)))
        };
        if self.reader.is_named(&pod).await? {
            return Ok(Outcome::Again(CACHE_LAG));
        }
        let step = match &pod.node {
            Some(node) if !node_known && self.reader.node_gone(node).await? => {
                Some(Step::DeletePod { name: pod.name.clone(), uid: pod.uid.clone(), by_force: true })
            }
            _ => retire(&pod),
        };
        if let Some(step) = step {
            self.apply(&[step], None, None).await.1?;
        }
        Ok(Outcome::Done)
    }

    async fn role(&self, uid: &str) -> Result<Outcome, ReconcileError> {
        let Some(workload) = self.world().workloads.get(uid).cloned() else { return Ok(Outcome::Done) };
        let accounts = Api::<ServiceAccount>::namespaced(self.reader.client.clone(), &workload.namespace);
        let account = &workload.service_account;
        let (reason, message) = match read("the service account", accounts.get_metadata_opt(account)).await {
            Ok(Some(found)) => {
                let role = found.annotations().get(ROLE_ANNOTATION).cloned().unwrap_or_default();
                let keys = self.world().set_role(uid, role);
                send(&self.sink, keys);
                return Ok(Outcome::Done);
            }
            Ok(None) => (
                Reason::ServiceAccountMissing,
                format!(
                    "service account `{account}` in namespace `{}`, whose identity the volume asks for, does not \
                     exist: create it",
                    workload.namespace
                ),
            ),
            Err(ReadError { is_forbidden: true, .. }) => (
                Reason::PodIdentityDisabled,
                "the volume asks for the workload's own identity (`authenticationSource: pod`), which is disabled: set \
                 `podIdentity.enabled` in the driver's Helm values"
                    .to_owned(),
            ),
            Err(error) => return Err(error.into()),
        };
        tracing::warn!(pod_uid = uid, why = message, "workload has no identity");
        let about = events::pod(&workload.namespace, &workload.name, None);
        self.events.publish(&Notice { workloads: vec![workload], reason, about, message });
        Ok(Outcome::Failed(None))
    }

    /// Applies steps in order and updates the caches at once. The first failure ends it, because later steps rely on earlier
    /// ones. Returns how many were applied.
    async fn apply(
        &self,
        steps: &[Step],
        key: Option<&SharingKey>,
        served: Option<Served<'_>>,
    ) -> (usize, Result<(), StepError>) {
        // A watch may show a pod without its attachment before the step that retires the pod is reached: the pod's own key
        // waits meanwhile, and is handled if the step is never reached.
        let retired: Vec<String> = steps.iter().filter_map(Step::retires).map(str::to_owned).collect();
        self.world().retiring.extend(retired.iter().cloned());
        let (mut done, mut outcome) = (0, Ok(()));
        for step in steps {
            outcome = self.apply_step(step, key, served).await;
            if outcome.is_err() {
                break;
            }
            done += 1;
        }
        self.world().retiring.retain(|name| !retired.contains(name));
        if outcome.is_err() {
            send(&self.sink, retired.into_iter().map(Key::Pod).collect());
        }
        (done, outcome)
    }

    async fn apply_step(
        &self,
        step: &Step,
        key: Option<&SharingKey>,
        served: Option<Served<'_>>,
    ) -> Result<(), StepError> {
        let outcome = self.writer.apply(step, key.zip(served)).await;
        self.metrics.steps.get_or_create(&StepLabels { step: step.name(), result: result(&outcome) }).inc();
        let applied = outcome?;
        step.log(key);
        let keys = {
            let mut world = self.world();
            match applied {
                Applied::Attachment(attachment) => world.set_attachment(*attachment),
                Applied::AttachmentDeleted(name) => world.remove_attachment(&name),
                Applied::Pod(pod) => world.set_pod(*pod),
                Applied::Seeker(seeker) => world.set_seeker(*seeker),
                Applied::HeadroomPod(pod) => world.set_headroom_pod(*pod),
                Applied::PodDeleted { name, uid } => world.mark_deleted(&name, &uid),
                Applied::Nothing => Vec::new(),
            }
        };
        send(&self.sink, keys);
        Ok(())
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock()
    }
}

fn result(outcome: &Result<Applied, StepError>) -> &'static str {
    match outcome {
        Ok(_) => "applied",
        Err(StepError::Conflict { .. }) => "outdated",
        Err(StepError::Refused { .. } | StepError::NoVolume { .. }) => "refused",
        Err(StepError::Unavailable { .. }) => "failed",
    }
}
