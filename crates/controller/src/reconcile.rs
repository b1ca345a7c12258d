//! One key at a time: gather what is known, confirm by live reads where a cache is not enough, decide, write, report.

mod group;
mod headroom;
mod warm;

use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::sharing::SharingKey;
use contract::trace;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, ResourceExt as _};
use parking_lot::{Mutex, MutexGuard};
use service::events;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::apply::{Applied, StepError, Writer};
use crate::dispatch::Outcome;
use crate::events::{Notice, Reason, WorkloadEvents};
use crate::group::retire;
use crate::key::Key;
use crate::live_read::{ReadError, Reader, read};
use crate::metrics::{Metrics, ResultLabel, StepLabels};
use crate::mountpoint_pod::Served;
use crate::provision::claims::provisioner::Provisioner;
use crate::queues::{Sink, send};
use crate::step::Step;
use crate::world::World;

/// How long a cache may lag behind a live read before it is worth another look.
const CACHE_LAG: Duration = Duration::from_millis(500);
/// How long workloads that have lost their attachment may take to get it back before their pod is looked at again. Their
/// own key does the work and tries again by itself.
const ATTACHED_AGAIN: Duration = Duration::from_secs(5);
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

/// What has become of a decision.
struct Written {
    /// Those that were applied.
    steps: Vec<Step>,
    /// The step after them, and why it was not.
    failed: Option<(Step, StepError)>,
}

impl Written {
    fn error(&self) -> Option<&StepError> {
        self.failed.as_ref().map(|(_, error)| error)
    }

    fn complete(self) -> Result<(), StepError> {
        self.failed.map_or(Ok(()), |(_, error)| Err(error))
    }
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
    /// Cancelled when this controller is no longer the leader.
    pub tenure: Mutex<CancellationToken>,
    /// To Mountpoint Pods of this version.
    pub moves_on_upgrade: bool,
}

impl Reconciler {
    pub async fn handle(self: Arc<Self>, key: Key) -> Outcome {
        let began = Instant::now();
        let outcome = match &key {
            Key::Group(name) => self.group(name).await,
            Key::Pod(name) => self.unnamed_pod(name).await,
            Key::WarmPods(node) => self.warm_pods(node).await,
            Key::Headroom(uid) => self.headroom(uid).await,
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

    /// A Mountpoint Pod that no attachment names: unmount it, or remove what is left of it.
    async fn unnamed_pod(&self, name: &str) -> Result<Outcome, ReconcileError> {
        let (pod, node_known) = {
            let world = self.world();
            let Some(pod) = world.pods.get(name).filter(|pod| world.is_unnamed(pod)) else {
                return Ok(Outcome::Done);
            };
            if world.held.contains(name) {
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
            self.apply(vec![step], None, None).await.complete()?;
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
            Err(error) if error.is_forbidden() => (
                Reason::PodIdentityDisabled,
                "the volume asks for the workload's own identity (`authenticationSource: pod`), which is disabled: set \
                 `podIdentity.enabled` in the driver's Helm values"
                    .to_owned(),
            ),
            Err(error) => return Err(error.into()),
        };
        tracing::warn!(pod_uid = uid, trace_id = trace::id(uid), why = message, "workload has no identity");
        let about = events::pod(&workload.namespace, &workload.name, None);
        self.events.publish(&Notice { workloads: vec![workload], reason, about, message });
        Ok(Outcome::Failed(None))
    }

    /// Applies steps in order and updates the caches at once. The first failure ends it, because later steps rely on earlier
    /// ones.
    async fn apply(&self, steps: Vec<Step>, key: Option<&SharingKey>, served: Option<Served<'_>>) -> Written {
        // A watch may show a pod without its attachment before the step that retires the pod, or that makes an attachment name
        // it, is reached: the pod's own key waits meanwhile, and is handled if the step is never reached.
        let held: Vec<String> = steps.iter().filter_map(Step::holds).map(str::to_owned).collect();
        self.world().held.extend(held.iter().cloned());
        let mut written = Written { steps: Vec::new(), failed: None };
        for step in steps {
            // The next leader trusts its caches once every write of this one must have ended.
            if self.tenure.lock().is_cancelled() {
                let message = "this controller is no longer the leader".to_owned();
                let error = StepError::Conflict { step: step.name(), message };
                written.failed = Some((step, error));
                break;
            }
            match self.apply_step(&step, key, served).await {
                Ok(()) => written.steps.push(step),
                Err(error) => {
                    written.failed = Some((step, error));
                    break;
                }
            }
        }
        self.world().held.retain(|name| !held.contains(name));
        if written.failed.is_some() {
            send(&self.sink, held.into_iter().map(Key::Pod).collect());
        }
        written
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
                Applied::GatedWorkload(gated) => world.set_gated(&gated),
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
