//! One key at a time: gather what is known, confirm by live reads what must not be guessed, decide, write, explain.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use contract::arguments::Arguments;
use contract::sharing::SharingKey;
use contract::volume::Volume;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, ResourceExt as _};
use thiserror::Error;

use crate::apply::{Applied, StepError, Writer};
use crate::confirm::{ReadError, Reader, read};
use crate::dispatch::Outcome;
use crate::explain::{self, Explainer, Reason};
use crate::group::{Group, retire};
use crate::metrics::{Metrics, ResultLabel, StepLabels};
use crate::observed::Workload;
use crate::provision::provisioner::Provisioner;
use crate::report::explain_failure;
use crate::step::Step;
use crate::watch::{Sink, send};
use crate::world::{Key, View, World};

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

pub struct Reconciler {
    pub reader: Reader,
    pub mountpoint_namespace: String,
    pub world: Arc<Mutex<World>>,
    pub sink: Sink,
    pub writer: Writer,
    pub explainer: Explainer,
    /// Nothing, where another program provisions.
    pub provisioner: Option<Provisioner>,
    pub metrics: Metrics,
}

impl Reconciler {
    pub async fn handle(self: Arc<Self>, key: Key) -> Outcome {
        let began = Instant::now();
        let outcome = match &key {
            Key::Group(name) => self.group(name).await,
            Key::Pod(name) => self.orphan(name).await,
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
            Err(ReconcileError::Step(error @ StepError::Outdated { .. })) => {
                tracing::debug!(?key, %error, "decided on old knowledge");
                Outcome::Outdated
            }
            Err(error) => {
                if !matches!(
                    error,
                    ReconcileError::Step(StepError::Refused { .. } | StepError::NoVolume { .. })
                ) {
                    self.world().doubt();
                }
                tracing::warn!(?key, %error, "not done");
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
        let mut arguments = Arguments::parse(view.volume.iter().flat_map(|volume| &volume.mount_options));
        let ignored = arguments.strip();
        let volume =
            view.volume.as_ref().map(|volume| Volume::parse(&volume.attributes, volume.secret, &arguments));
        let returning = self.confirm_returning(&view).await?;
        let mut wanting = match &volume {
            Some(Ok(_)) => self.confirm_wanting(&view).await?,
            _ => Vec::new(),
        };
        wanting.retain(|workload| !returning.iter().any(|(uid, _)| *uid == workload.uid));
        let group = Group {
            key: view.key.clone(),
            now: Time(Timestamp::now()),
            driver_version: self.writer.driver_version().to_owned(),
            attachments: view.attachments.clone(),
            wanting: wanting.iter().map(|workload| workload.uid.clone()).collect(),
            returning,
            gone,
            pods: view.pods.clone(),
            node_gone,
        };
        let steps = group.decide();
        let usable = volume.as_ref().and_then(|volume| volume.as_ref().ok());
        let (done, applied) = self.apply(&steps, Some(&view.key), usable).await;

        let workloads = self.workloads_of(&view);
        let wrong =
            explain_failure(&view, volume.as_ref().and_then(|volume| volume.as_ref().err()), &applied);
        if let Some((reason, message)) = &wrong {
            // Those who are served already have nothing to worry about, whatever became of the volume since.
            let hindered = if applied.is_err() { &workloads } else { &view.wanting };
            self.explainer.tell(hindered, *reason, &explain::volume(&view.key.volume_name), message).await;
        }
        self.warn_about_volume(&view, usable, &ignored, &wanting).await;
        self.explain_replacements(&view, &group, &steps[..done], &workloads).await;
        self.explain_pods(name, wrong.filter(|_| applied.is_err())).await;
        applied?;
        let again = group.look_again().into_iter().chain(cache_lags.then_some(CACHE_LAG)).min();
        Ok(again.map_or(Outcome::Done, Outcome::Again))
    }

    /// A Mountpoint Pod that no attachment names: unmount it, or remove what is left of it.
    async fn orphan(&self, name: &str) -> Result<Outcome, ReconcileError> {
        let (pod, node_known) = {
            let world = self.world();
            let Some(pod) = world.pods.get(name).filter(|_| !world.names(name)) else {
                return Ok(Outcome::Done);
            };
            if world.retiring.contains(name) {
                return Ok(Outcome::Again(CACHE_LAG));
            }
            // Marked, it would leave workloads behind that could never be served again.
            let returning = pod.attachment.iter().flat_map(|group| world.returning(group));
            if returning.into_iter().any(|it| it.pod.name == name) {
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
                format!("service account {account}, whose identity the volume asks for, does not exist"),
            ),
            Err(ReadError { is_forbidden: true, .. }) => (
                Reason::PodIdentityDisabled,
                "the volume asks for the workload's own identity (`authenticationSource: pod`), which is off: set \
                 `podIdentity.enabled` in the driver's Helm values"
                    .to_owned(),
            ),
            Err(error) => return Err(error.into()),
        };
        tracing::warn!(pod_uid = uid, why = message, "workload has no identity");
        let about = explain::pod(&workload.namespace, &workload.name);
        self.explainer.tell(&[workload], reason, &about, &message).await;
        Ok(Outcome::Failed(None))
    }

    /// Applies in order and lets the caches know at once. The first failure ends it: what follows relies on it. Says how
    /// many were applied.
    async fn apply(
        &self,
        steps: &[Step],
        key: Option<&SharingKey>,
        volume: Option<&Volume>,
    ) -> (usize, Result<(), StepError>) {
        // A watch may show a pod without its attachment before the step that retires the pod is reached: its own key
        // waits meanwhile, and comes to its turn if the step is never reached.
        let retired: Vec<String> = steps.iter().filter_map(Step::retires).map(str::to_owned).collect();
        self.world().retiring.extend(retired.iter().cloned());
        let (mut done, mut outcome) = (0, Ok(()));
        for step in steps {
            outcome = self.apply_step(step, key, volume).await;
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
        volume: Option<&Volume>,
    ) -> Result<(), StepError> {
        let outcome = self.writer.apply(step, key.zip(volume)).await;
        self.metrics.steps.get_or_create(&StepLabels { step: step.name(), result: result(&outcome) }).inc();
        let applied = outcome?;
        log(step, key);
        let keys = {
            let mut world = self.world();
            match applied {
                Applied::Attachment(attachment) => world.set_attachment(*attachment),
                Applied::AttachmentGone(name) => world.remove_attachment(&name),
                Applied::Pod(pod) => world.set_pod(*pod),
                Applied::PodGoing { name, uid } => world.expect_end_of_pod(&name, &uid),
                Applied::Nothing => Vec::new(),
            }
        };
        send(&self.sink, keys);
        Ok(())
    }

    /// While another controller may be at work, our cache is not enough: that controller may have attached a workload
    /// under another key (it has not seen the volume edited), and keys of different names do not collide at the API
    /// server; or the workload may have come and gone, and its pod be about to be unmounted.
    async fn confirm_wanting(&self, view: &View) -> Result<Vec<Workload>, ReconcileError> {
        if view.wanting.is_empty() || self.world().is_alone() {
            return Ok(view.wanting.clone());
        }
        let (node, volume) = (&view.key.node, &view.key.volume_name);
        let attachments = self.reader.attachments_of(Some(node), Some(volume)).await?;
        let listed: BTreeSet<&str> =
            attachments.iter().flat_map(|found| found.spec.workload_uids()).collect();
        let mut confirmed = Vec::new();
        for workload in view.wanting.iter().filter(|workload| !listed.contains(workload.uid.as_str())) {
            if self.reader.awaits_volumes(workload).await? {
                confirmed.push(workload.clone());
            }
        }
        Ok(confirmed)
    }

    /// Never from the cache alone: a pod that another controller has told to unmount must not be named again, and a workload
    /// must not be listed twice.
    async fn confirm_returning(&self, view: &View) -> Result<Vec<(String, String)>, ReconcileError> {
        let mut confirmed = Vec::new();
        if view.returning.is_empty() {
            return Ok(confirmed);
        }
        let (node, volume) = (&view.key.node, &view.key.volume_name);
        let attachments = self.reader.attachments_of(Some(node), Some(volume)).await?;
        for returning in &view.returning {
            let uid = &returning.workload.uid;
            let listed = attachments.iter().any(|found| found.spec.mountpoint_pod_of(uid).is_some());
            if !listed && self.reader.returns(returning, &self.mountpoint_namespace).await? {
                confirmed.push((uid.clone(), returning.pod.name.clone()));
            }
        }
        Ok(confirmed)
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("nobody panics while changing the world")
    }
}

fn result(outcome: &Result<Applied, StepError>) -> &'static str {
    match outcome {
        Ok(_) => "applied",
        Err(StepError::Outdated { .. }) => "outdated",
        Err(StepError::Refused { .. } | StepError::NoVolume { .. }) => "refused",
        Err(StepError::Unavailable { .. }) => "failed",
    }
}

/// One line per change of state.
fn log(step: &Step, key: Option<&SharingKey>) {
    let (node, volume_id) = (key.map(|key| &key.node), key.map(|key| &key.volume_id));
    match step {
        Step::CreateAttachment { name, .. } => {
            tracing::info!(attachment = name, node, volume_id, "attachment created")
        }
        Step::UpdateAttachment { name, .. } => {
            tracing::info!(attachment = name, node, volume_id, "attachment updated")
        }
        Step::DeleteAttachment { name, .. } => {
            tracing::info!(attachment = name, node, volume_id, "attachment deleted")
        }
        Step::CreatePod { name, attachment, workload_uid } => {
            tracing::info!(
                mountpoint_pod = name,
                attachment,
                pod_uid = workload_uid,
                node,
                volume_id,
                "pod created"
            );
        }
        Step::MarkUnmount { name, .. } => {
            tracing::info!(mountpoint_pod = name, node, volume_id, "pod told to unmount")
        }
        Step::DeletePod { name, by_force, .. } => {
            tracing::info!(mountpoint_pod = name, node, volume_id, by_force, "pod deleted");
        }
    }
}
