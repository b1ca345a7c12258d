//! Steps become writes to attachments, Mountpoint Pods and workloads here, and nowhere else.

mod room;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::annotation;
use contract::quantity::Quantity;
use contract::sharing::SharingKey;
use contract::slim::SlimPod;
use contract::volume::Volume;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Api, Client};
use serde_json::json;
use thiserror::Error;

use crate::live_read::API_ANSWER;
use crate::mountpoint_pod::{Blueprint, Served};
use crate::observed::{Attachment, MountpointPod};
use crate::reserved_room::{HeadroomPod, Seeker};
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

/// What a step has made of its object; for the caches, which then need not wait for the watch.
#[derive(Debug)]
pub enum Applied {
    Attachment(Box<Attachment>),
    AttachmentDeleted(String),
    Pod(Box<MountpointPod>),
    Seeker(Box<Seeker>),
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
        let name = step.name();
        let write = self.write(step, served);
        match tokio::time::timeout(API_ANSWER, write).await {
            Ok(outcome) => outcome,
            Err(_) => Err(StepError::Unavailable {
                step: name,
                message: format!("no answer within {API_ANSWER:?}"),
            }),
        }
    }

    async fn write(
        &self,
        step: &Step,
        served: Option<(&SharingKey, Served<'_>)>,
    ) -> Result<Applied, StepError> {
        let failed = |error| classify(step.name(), error);
        match step {
            Step::CreateAttachment { name, spec } => {
                let object = MountpointS3PodAttachment::new(name, (**spec).clone());
                let created =
                    self.attachments.create(&PostParams::default(), &object).await.map_err(failed)?;
                Ok(attachment(created))
            }
            Step::UpdateAttachment { name, resource_version, entries } => {
                // A merge patch keeps other fields; the version makes it conditional.
                let patch = Patch::Merge(json!({
                    "metadata": {"resourceVersion": resource_version.to_string()},
                    "spec": {"mountpointS3PodAttachments": entries},
                }));
                let written =
                    self.attachments.patch(name, &PatchParams::default(), &patch).await.map_err(failed)?;
                Ok(attachment(written))
            }
            Step::DeleteAttachment { name, uid, resource_version } => {
                let preconditions = Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: Some(resource_version.to_string()),
                };
                let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                match self.attachments.delete(name, &params).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => {}
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
                    Err(kube::Error::Api(status)) if status.is_already_exists() => {
                        self.adopt(step, name, attachment).await
                    }
                    Err(error) => Err(failed(error)),
                }
            }
            Step::CreateWarmPod { name, node } => {
                let created = self.create(&self.blueprint.build_warm(name, node)).await.map_err(failed)?;
                Ok(found(&created))
            }
            Step::ClaimPod { name, resource_version, attachment, workload_uid, early_mount } => {
                let (key, served) = served.ok_or(StepError::NoVolume { step: step.name() })?;
                let (claim, early) = (served.claim, early_mount.as_ref());
                let mut metadata = self.blueprint.claim(attachment, workload_uid, key, claim, early);
                metadata["resourceVersion"] = json!(resource_version.to_string());
                let patch = Patch::Merge(json!({"metadata": metadata}));
                match self.pods.patch(name, &PatchParams::default(), &patch).await {
                    Ok(pod) => Ok(found(&pod)),
                    // Also what a webhook does not allow: the volume then goes the usual way, which may be allowed.
                    Err(kube::Error::Api(status)) => {
                        Err(StepError::Conflict { step: step.name(), message: status.message })
                    }
                    Err(error) => Err(failed(error)),
                }
            }
            Step::DeleteWarmPod { name, uid, resource_version, by_force } => {
                self.delete(name, uid, Some(*resource_version), *by_force).await.map_err(failed)
            }
            Step::MarkUnmount { name, uid } => {
                // The UID makes it conditional: a pod of the same name may have been created since.
                let patch = Patch::Merge(
                    json!({"metadata": {"uid": uid, "annotations": {annotation::NEEDS_UNMOUNT: "true"}}}),
                );
                match self.pods.patch(name, &PatchParams::default(), &patch).await {
                    // The pod is gone; another one of that name is an invalid request.
                    Err(kube::Error::Api(status)) if status.is_not_found() || status.is_invalid() => {
                        Ok(Applied::Nothing)
                    }
                    Err(error) => Err(failed(error)),
                    Ok(pod) => Ok(found(&pod)),
                }
            }
            Step::DeletePod { name, uid, by_force } => {
                match self.delete(name, uid, None, *by_force).await {
                    // The pod is gone, and another one has its name.
                    Err(kube::Error::Api(status)) if status.is_conflict() => Ok(Applied::Nothing),
                    outcome => outcome.map_err(failed),
                }
            }
            Step::LabelWorkload { .. }
            | Step::UnlabelWorkload { .. }
            | Step::RemoveGate { .. }
            | Step::CreateHeadroomPod { .. }
            | Step::DeleteHeadroomPod { .. } => self.write_room(step).await,
            Step::SetCondition { attachment: name, condition } => {
                let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
                let params = PatchParams::default();
                let written = self.attachments.patch_status(name, &params, &patch).await.map_err(failed)?;
                // Else the next change of the attachment would be a conflict.
                Ok(attachment(written))
            }
        }
    }

    async fn delete(
        &self,
        name: &str,
        uid: &str,
        version: Option<u64>,
        by_force: bool,
    ) -> kube::Result<Applied> {
        let resource_version = version.map(|version| version.to_string());
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version }),
            grace_period_seconds: by_force.then_some(0),
            ..DeleteParams::default()
        };
        match self.pods.delete(name, &params).await {
            Ok(_) => Ok(Applied::PodDeleted { name: name.to_owned(), uid: uid.to_owned() }),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Applied::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Sends a whole pod and keeps only the slim part of the response.
    async fn create(&self, pod: &Pod) -> kube::Result<SlimPod> {
        let body = serde_json::to_vec(pod).map_err(kube::Error::SerdeError)?;
        let request = Request::new(self.pods.resource_url()).create(&PostParams::default(), body);
        self.client.request(request.map_err(kube::Error::BuildRequest)?).await
    }

    /// The client repeats a create whose answer it did not get, and a predecessor may have died right after its own: a
    /// pod that was created for the same attachment is the wanted one.
    async fn adopt(&self, step: &Step, name: &str, attachment: &str) -> Result<Applied, StepError> {
        let found = self.pods.get_opt(name).await.map_err(|error| classify(step.name(), error))?;
        let found = found.as_ref().and_then(MountpointPod::of);
        match found {
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

fn classify(step: &'static str, error: kube::Error) -> StepError {
    let kube::Error::Api(status) = error else {
        return StepError::Unavailable { step, message: error.to_string() };
    };
    let message = status.message.clone();
    // For a create, what is not found is the namespace or the custom resource definition.
    let creates = step.starts_with("create");
    if status.is_conflict() || status.is_already_exists() || (status.is_not_found() && !creates) {
        StepError::Conflict { step, message }
    } else if status.is_forbidden() || status.is_invalid() || status.is_not_found() || status.code == 400 {
        StepError::Refused { step, message }
    } else {
        StepError::Unavailable { step, message }
    }
}
