//! One key at a time: gather what is known, confirm by live reads what must not be guessed, decide, write, explain.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use contract::arguments::Arguments;
use contract::sharing::SharingKey;
use contract::volume::{Volume, VolumeError};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, ResourceExt as _};
use thiserror::Error;

use crate::apply::{Applied, StepError, Writer};
use crate::confirm::{ReadError, Reader, read};
use crate::dispatch::Outcome;
use crate::explain::{self, Explainer, Reason, condition};
use crate::group::{Group, is_broken, retire};
use crate::metrics::{Metrics, ResultLabel, StepLabels};
use crate::observed::{MountpointPod, Phase, Workload};
use crate::provision::provisioner::Provisioner;
use crate::step::Step;
use crate::watch::{Sink, send};
use crate::world::View;
use crate::world::{Key, World};

/// How long a cache may lag behind a live read before it is worth another look.
const CACHE_LAG: Duration = Duration::from_millis(500);
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
        let (outcome, result) = match outcome {
            Ok(outcome) => (outcome, "done"),
            Err(ReconcileError::Step(error @ StepError::Outdated { .. })) => {
                tracing::debug!(?key, %error, "decided on old knowledge");
                (Outcome::Failed, "outdated")
            }
            Err(error) => {
                if !matches!(
                    error,
                    ReconcileError::Step(StepError::Refused { .. } | StepError::NoVolume { .. })
                ) {
                    self.world().doubt();
                }
                tracing::warn!(?key, %error, "not done");
                (Outcome::Failed, "failed")
            }
        };
        self.metrics.reconciles.get_or_create(&ResultLabel { result }).inc();
        outcome
    }

    async fn group(&self, name: &str) -> Result<Outcome, ReconcileError> {
        let Some(view) = self.world().view(name) else { return Ok(Outcome::Done) };
        let gone = self.reader.gone(&view).await?;
        let cache_lags = gone.len() < view.suspects.len();
        let node_gone = !view.node_known && self.reader.node_gone(&view.key.node).await?;
        let mut arguments = Arguments::parse(view.volume.iter().flat_map(|volume| &volume.mount_options));
        let ignored = arguments.strip();
        let volume = view.volume.as_ref().map(|volume| Volume::parse(&volume.attributes, &arguments));
        let wanting = match &volume {
            Some(Ok(_)) => self.confirm_wanting(&view).await?,
            _ => Vec::new(),
        };
        let group = Group {
            key: view.key.clone(),
            now: Time(Timestamp::now()),
            driver_version: self.writer.driver_version().to_owned(),
            attachments: view.attachments.clone(),
            wanting: wanting.iter().map(|workload| workload.uid.clone()).collect(),
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
        self.warn_about_volume(&view, &ignored, &wanting).await;
        self.explain_replacements(&view, &group, &steps[..done], &workloads).await;
        self.explain_pods(name, wrong.filter(|_| applied.is_err())).await;
        applied?;
        Ok(if cache_lags { Outcome::Again(CACHE_LAG) } else { Outcome::Done })
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
        let found = read("the service account", accounts.get_metadata_opt(account)).await?;
        let role = found.map(|found| found.annotations().get(ROLE_ANNOTATION).cloned().unwrap_or_default());
        let Some(role) = role else {
            let message =
                format!("service account {account}, whose identity the volume asks for, does not exist");
            let about = explain::pod(&workload.namespace, &workload.name);
            self.explainer.tell(&[workload], Reason::ServiceAccountMissing, &about, &message).await;
            return Ok(Outcome::Failed);
        };
        let keys = self.world().set_role(uid, role);
        send(&self.sink, keys);
        Ok(Outcome::Done)
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

    async fn warn_about_volume(&self, view: &View, ignored: &[&str], workloads: &[Workload]) {
        let about = explain::volume(&view.key.volume_name);
        if let Some(namesake) = &view.namesake {
            let message = format!(
                "PersistentVolumes {} and {namesake} have the same volumeHandle `{}`; a node may take one for the other: \
                 give each its own",
                view.key.volume_name, view.key.volume_id
            );
            self.explainer.tell(workloads, Reason::DuplicateVolumeHandle, &about, &message).await;
        }
        if !ignored.is_empty() {
            let message =
                format!("these mount options are not supported and have no effect: {}", ignored.join(", "));
            self.explainer.tell(workloads, Reason::MountOptionsIgnored, &about, &message).await;
        }
    }

    /// Tells the workloads whose Mountpoint Pod has been given up or made again by the steps that were `done`.
    async fn explain_replacements(&self, view: &View, group: &Group, done: &[Step], workloads: &[Workload]) {
        let left = |pod: &str| {
            done.iter().any(|step| matches!(step, Step::UpdateAttachment { entries, .. } if entries.get(pod) == Some(&None)))
        };
        let remade =
            |pod: &str| done.iter().any(|step| matches!(step, Step::CreatePod { name, .. } if name == pod));
        for (name, listed) in group.attachments.iter().flat_map(|attachment| &attachment.spec.mountpoint_pods)
        {
            let cause = match group.pods.get(name) {
                Some(pod) if is_broken(pod) && left(name) => match &pod.trouble {
                    Some(trouble) => format!("{}: {}", trouble.reason, trouble.message),
                    None => "it was deleted".to_owned(),
                },
                None if view.lost.contains(name) && remade(name) => "it vanished".to_owned(),
                _ => continue,
            };
            let is_affected = |workload: &&Workload| {
                listed.iter().any(|entry| entry.workload_pod_uid == workload.uid)
                    && !group.gone.contains(&workload.uid)
            };
            let affected: Vec<Workload> = workloads.iter().filter(is_affected).cloned().collect();
            let namespace = &self.mountpoint_namespace;
            let message = format!("Mountpoint Pod {namespace}/{name} is replaced ({cause})");
            let about = explain::pod(namespace, name);
            self.explainer.tell(&affected, Reason::MountpointPodReplaced, &about, &message).await;
        }
    }

    /// Says why a Mountpoint Pod does not run, in Kubernetes' own words; `wrong` is why there is none at all.
    async fn explain_pods(&self, group: &str, wrong: Option<(Reason, String)>) {
        let Some(view) = self.world().view(group) else { return };
        let workloads = self.workloads_of(&view);
        let namespace = &self.mountpoint_namespace;
        for attachment in &view.attachments {
            let mut trouble = wrong.clone();
            for (name, listed) in &attachment.spec.mountpoint_pods {
                let Some(found) = view.pods.get(name).and_then(|pod| pod.trouble.as_ref()) else { continue };
                let message = format!(
                    "Mountpoint Pod {namespace}/{name} cannot serve ({}): {}",
                    found.reason, found.message
                );
                let is_listed =
                    |workload: &&Workload| listed.iter().any(|entry| entry.workload_pod_uid == workload.uid);
                let affected: Vec<Workload> = workloads.iter().filter(is_listed).cloned().collect();
                self.explainer
                    .tell(&affected, Reason::of(found), &explain::pod(namespace, name), &message)
                    .await;
                trouble.get_or_insert((Reason::of(found), message));
            }
            let serves = |pod: &MountpointPod| pod.phase == Phase::Running && !is_broken(pod);
            let all_serve =
                attachment.spec.mountpoint_pods.keys().all(|name| view.pods.get(name).is_some_and(serves));
            if trouble.is_none() && !all_serve {
                // On its way: what was said last stays true until it runs.
                continue;
            }
            if let Some(condition) = condition(attachment, trouble, &Time(Timestamp::now())) {
                self.explainer.write(&attachment.name, &condition).await;
            }
        }
    }

    /// Those who wait for the key and those who are listed, as far as they are known.
    fn workloads_of(&self, view: &View) -> Vec<Workload> {
        let world = self.world();
        let listed = view.attachments.iter().flat_map(|attachment| attachment.spec.workload_uids());
        let listed = listed.filter_map(|uid| world.workloads.get(uid)).cloned();
        let all: BTreeMap<String, Workload> = listed
            .chain(view.wanting.iter().cloned())
            .map(|workload| (workload.uid.clone(), workload))
            .collect();
        all.into_values().collect()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("nobody panics while changing the world")
    }
}

/// Why a workload gets no Mountpoint Pod, for its owner.
fn explain_failure(
    view: &View,
    invalid: Option<&VolumeError>,
    applied: &Result<(), StepError>,
) -> Option<(Reason, String)> {
    if let Some(error) = invalid {
        return Some((Reason::InvalidVolumeAttributes, error.to_string()));
    }
    match applied {
        Err(StepError::NoVolume { .. }) => {
            let message = format!("PersistentVolume {} is not there any more", view.key.volume_name);
            Some((Reason::PersistentVolumeMissing, message))
        }
        Err(StepError::Refused { message, .. }) => {
            let message = format!("the API server refuses the Mountpoint Pod or its attachment: {message}");
            Some((Reason::MountpointPodRejected, message))
        }
        _ => None,
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
