//! Steps become writes to attachments, Mountpoint Pods and workloads here, and nowhere else.

mod headroom;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::annotation;
use contract::quantity::Quantity;
use contract::sharing::SharingKey;
use contract::slim::SlimPod;
use contract::volume::Volume;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use thiserror::Error;

use crate::api::{Cause, Failure, answer};
use crate::headroom::{GatedWorkload, HeadroomPod};
use crate::mountpoint_pod::headroom::Reservation;
use crate::mountpoint_pod::{Blueprint, Served};
use crate::observed::{Attachment, MountpointPod};
use crate::step::Step;

/// Why a step did not happen. What to do about it follows from the kind.
#[derive(Debug, Error)]
pub enum StepError {
    /// The decision was based on an outdated object. Nothing is wrong: decide again.
    #[error("{step}: {message}")]
    Conflict { step: &'static str, message: String },
    /// The API server refuses it as it is: quota, admission, a missing service account, missing rights.
    #[error("{step} was refused: {message}")]
    Refused { step: &'static str, message: String },
    /// The volume that a pod is to serve does not exist or is invalid, which has its own Event.
    #[error("{step}: the volume cannot be served")]
    NoVolume { step: &'static str },
    #[error("{step} failed: {message}")]
    Unavailable { step: &'static str, message: String },
}

impl StepError {
    fn new(step: &Step, Failure { cause, message }: Failure) -> Self {
        let step = step.name();
        match cause {
            // For a create, what is not found is the namespace or the custom resource definition.
            Cause::NotFound if step.starts_with("create") => Self::Refused { step, message },
            Cause::Conflict | Cause::NotFound => Self::Conflict { step, message },
            Cause::Forbidden | Cause::Invalid => Self::Refused { step, message },
            Cause::Internal | Cause::Unavailable => Self::Unavailable { step, message },
        }
    }
}

/// What a step has made of its object; for the caches, which then need not wait for the watch.
#[derive(Debug)]
pub enum Applied {
    Attachment(Box<Attachment>),
    AttachmentDeleted(String),
    Pod(Box<MountpointPod>),
    GatedWorkload(Box<GatedWorkload>),
    HeadroomPod(Box<HeadroomPod>),
    PodDeleted { name: String, uid: String },
    Nothing,
}

pub struct Writer {
    attachments: Api<MountpointS3PodAttachment>,
    pods: Api<SlimPod>,
    client: Client,
    blueprint: Blueprint,
}

impl Writer {
    pub fn new(client: &Client, mountpoint_namespace: &str, blueprint: Blueprint) -> Self {
        Self {
            attachments: Api::all(client.clone()),
            pods: Api::namespaced(client.clone(), mountpoint_namespace),
            client: client.clone(),
            blueprint,
        }
    }

    pub fn driver_version(&self) -> &str {
        &self.blueprint.driver_version
    }

    /// The installation's limit for the volume's cache, if the volume has none.
    pub fn cache_limit(&self, volume: &Volume) -> Option<&Quantity> {
        self.blueprint.limit_for(&volume.cache)
    }

    /// Whether a warm pod can serve the volume.
    pub fn suits_warm(&self, volume: &Volume) -> bool {
        self.blueprint.suits_warm(volume)
    }

    /// `served` is what a new pod or a claimed one would serve.
    pub async fn apply(
        &self,
        step: &Step,
        served: Option<(&SharingKey, Served<'_>)>,
    ) -> Result<Applied, StepError> {
        let failed = |failure| StepError::new(step, failure);
        match step {
            Step::CreateAttachment { name, spec } => {
                let object = MountpointS3PodAttachment::new(name, (**spec).clone());
                let created = answer(self.attachments.create(&PostParams::default(), &object)).await;
                created.map(attachment).map_err(failed)
            }
            Step::UpdateAttachment { name, resource_version, entries } => {
                // A merge patch keeps other fields; the version makes it conditional.
                let patch = Patch::Merge(json!({
                    "metadata": {"resourceVersion": resource_version.to_string()},
                    "spec": {"mountpointS3PodAttachments": entries},
                }));
                let written = answer(self.attachments.patch(name, &PatchParams::default(), &patch)).await;
                written.map(attachment).map_err(failed)
            }
            Step::DeleteAttachment { name, uid, resource_version } => {
                let preconditions = Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: Some(resource_version.to_string()),
                };
                let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                match answer(self.attachments.delete(name, &params)).await {
                    Err(Failure { cause: Cause::NotFound, .. }) => {}
                    outcome => drop(outcome.map_err(failed)?),
                }
                Ok(Applied::AttachmentDeleted(name.clone()))
            }
            Step::CreatePod { name, attachment, workload_uid, preempts } => {
                let (key, served) = served.ok_or(StepError::NoVolume { step: step.name() })?;
                let mut pod = self.blueprint.build(name, attachment, workload_uid, key, served);
                if *preempts {
                    pod = self.blueprint.preempting(pod);
                }
                match self.create(&pod).await {
                    Ok(pod) => Ok(found(&pod)),
                    Err(Failure { cause: Cause::Conflict, .. }) => self.adopt(step, name, attachment).await,
                    Err(failure) => Err(failed(failure)),
                }
            }
            Step::CreateWarmPod { name, node, node_uid } => {
                let pod = self.blueprint.build_warm(name, node, node_uid);
                self.create(&pod).await.map(|pod| found(&pod)).map_err(failed)
            }
            Step::ClaimPod { name, resource_version, attachment, workload_uid, early_mount } => {
                let (key, served) = served.ok_or(StepError::NoVolume { step: step.name() })?;
                let early = early_mount.as_ref();
                let mut metadata = self.blueprint.claim(attachment, workload_uid, key, served, early);
                metadata["resourceVersion"] = json!(resource_version.to_string());
                let patch = Patch::Merge(json!({"metadata": metadata}));
                match answer(self.pods.patch(name, &PatchParams::default(), &patch)).await {
                    Ok(pod) => Ok(found(&pod)),
                    Err(failure) if failure.cause == Cause::Unavailable => Err(failed(failure)),
                    // Also what a webhook does not allow: the volume then goes the usual way, which may be allowed.
                    Err(Failure { message, .. }) => Err(StepError::Conflict { step: step.name(), message }),
                }
            }
            Step::DeleteWarmPod { name, uid, resource_version, by_force } => {
                self.delete(step, name, uid, Some(*resource_version), *by_force).await
            }
            Step::MarkUnmount { name, uid } => {
                self.annotate(name, uid, annotation::NEEDS_UNMOUNT, "true").await.map_err(failed)
            }
            Step::RecordAuthentication { name, uid, source } => {
                let recorded = self.annotate(name, uid, annotation::AUTHENTICATION_SOURCE, source.as_str());
                recorded.await.map_err(failed)
            }
            Step::DeletePod { name, uid, by_force } => self.delete(step, name, uid, None, *by_force).await,
            Step::DeleteHeadroomPod { name, uid } => self.delete(step, name, uid, None, false).await,
            Step::LabelWorkload(workload) => self.label_workload(step, workload, Some(&workload.uid)).await,
            Step::UnlabelWorkload(workload) => self.label_workload(step, workload, None).await,
            Step::RemoveGate(workload) => self.remove_gate(step, workload).await,
            Step::CreateHeadroomPod { name, workload, volume_name, volume } => {
                let reservation = Reservation { workload, volume_name, volume };
                self.create_headroom_pod(step, name, reservation).await
            }
            Step::SetCondition { attachment: name, condition } => {
                let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
                let params = PatchParams::default();
                let written = answer(self.attachments.patch_status(name, &params, &patch)).await;
                // Else the next change of the attachment would be a conflict.
                written.map(attachment).map_err(failed)
            }
        }
    }

    async fn annotate(&self, name: &str, uid: &str, key: &str, value: &str) -> Result<Applied, Failure> {
        // The UID makes it conditional: a pod of the same name may have been created since.
        let patch = Patch::Merge(json!({"metadata": {"uid": uid, "annotations": {key: value}}}));
        match answer(self.pods.patch(name, &PatchParams::default(), &patch)).await {
            Err(Failure { cause: Cause::NotFound, .. }) => Ok(Applied::Nothing),
            // Because of the UID, or because an admission policy denies it.
            Err(failure) if failure.cause == Cause::Invalid => {
                let now = answer(self.pods.get_opt(name)).await?;
                let is_same = now.is_some_and(|pod| pod.uid().as_deref() == Some(uid));
                if is_same { Err(failure) } else { Ok(Applied::Nothing) }
            }
            outcome => outcome.map(|pod| found(&pod)),
        }
    }

    async fn delete(
        &self,
        step: &Step,
        name: &str,
        uid: &str,
        version: Option<u64>,
        by_force: bool,
    ) -> Result<Applied, StepError> {
        let resource_version = version.map(|version| version.to_string());
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version }),
            grace_period_seconds: by_force.then_some(0),
            ..DeleteParams::default()
        };
        match answer(self.pods.delete(name, &params)).await {
            Ok(_) => Ok(Applied::PodDeleted { name: name.to_owned(), uid: uid.to_owned() }),
            Err(Failure { cause: Cause::NotFound, .. }) => Ok(Applied::Nothing),
            // The pod is gone, and another one has its name.
            Err(Failure { cause: Cause::Conflict, .. }) if version.is_none() => Ok(Applied::Nothing),
            Err(failure) => Err(StepError::new(step, failure)),
        }
    }

    /// Sends a whole pod and keeps only the slim part of the response.
    async fn create(&self, pod: &Pod) -> Result<SlimPod, Failure> {
        let body = serde_json::to_vec(pod).map_err(kube::Error::SerdeError)?;
        let request = Request::new(self.pods.resource_url()).create(&PostParams::default(), body);
        answer(self.client.request(request.map_err(kube::Error::BuildRequest)?)).await
    }

    /// The client repeats a create whose answer it did not get, and a predecessor may have died right after its own: a
    /// pod that was created for the same attachment is the wanted one.
    async fn adopt(&self, step: &Step, name: &str, attachment: &str) -> Result<Applied, StepError> {
        let found = answer(self.pods.get_opt(name)).await.map_err(|failure| StepError::new(step, failure))?;
        match found.as_ref().and_then(MountpointPod::of) {
            Some(pod) if pod.attachment.as_deref() == Some(attachment) && !pod.is_ending() => {
                Ok(Applied::Pod(Box::new(pod)))
            }
            _ => Err(StepError::Conflict {
                step: step.name(),
                message: format!("pod {name} exists and belongs to another attachment"),
            }),
        }
    }
}

fn found(pod: &SlimPod) -> Applied {
    MountpointPod::of(pod).map_or(Applied::Nothing, |pod| Applied::Pod(Box::new(pod)))
}

fn attachment(object: MountpointS3PodAttachment) -> Applied {
    Attachment::of(object).map_or(Applied::Nothing, |found| Applied::Attachment(Box::new(found)))
}
