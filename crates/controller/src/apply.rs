//! Steps become writes to the API server here, and nowhere else.

use std::time::Duration;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::annotation;
use contract::quantity::Quantity;
use contract::sharing::SharingKey;
use contract::volume::Volume;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Api, Client};
use serde_json::json;
use thiserror::Error;

use crate::group::is_broken;
use crate::mountpoint_pod::Blueprint;
use crate::observed::{Attachment, MountpointPod};
use crate::slim::SlimPod;
use crate::step::Step;

/// A write is answered in milliseconds; a connection that died without saying so never answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Why a step did not happen. What to do about it follows from the kind.
#[derive(Debug, Error)]
pub enum StepError {
    /// The decision was made on old knowledge. Nothing is wrong: look again and decide again.
    #[error("{step}: {message}")]
    Outdated { step: &'static str, message: String },
    /// The API server refuses it as it is: quota, admission, a missing service account, missing rights.
    #[error("{step} was refused: {message}")]
    Refused { step: &'static str, message: String },
    /// The volume that a pod is to be made for is not there, or not usable; that has been told elsewhere.
    #[error("{step}: the volume cannot be served")]
    NoVolume { step: &'static str },
    #[error("{step} failed: {message}")]
    Unavailable { step: &'static str, message: String },
}

/// What a step has made of its object; for the caches, which need not wait for the watch to tell.
#[derive(Debug)]
pub enum Applied {
    Attachment(Box<Attachment>),
    AttachmentGone(String),
    Pod(Box<MountpointPod>),
    PodGoing { name: String, uid: String },
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

    /// `served` is what a new pod would serve, and for whom.
    pub async fn apply(
        &self,
        step: &Step,
        served: Option<(&SharingKey, &Volume)>,
    ) -> Result<Applied, StepError> {
        let name = step.name();
        let write = self.write(step, served);
        match tokio::time::timeout(ANSWER_WITHIN, write).await {
            Ok(outcome) => outcome,
            Err(_) => Err(StepError::Unavailable {
                step: name,
                message: format!("no answer within {ANSWER_WITHIN:?}"),
            }),
        }
    }

    async fn write(&self, step: &Step, served: Option<(&SharingKey, &Volume)>) -> Result<Applied, StepError> {
        let failed = |error| classify(step.name(), error);
        match step {
            Step::CreateAttachment { name, spec } => {
                let object = MountpointS3PodAttachment::new(name, (**spec).clone());
                let created =
                    self.attachments.create(&PostParams::default(), &object).await.map_err(failed)?;
                Ok(attachment(created))
            }
            Step::UpdateAttachment { name, resource_version, entries } => {
                // A merge, so that what others wrote beside the entries stays; the version makes it conditional.
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
                Ok(Applied::AttachmentGone(name.clone()))
            }
            Step::CreatePod { name, attachment, workload_uid } => {
                let (key, volume) = served.ok_or(StepError::NoVolume { step: step.name() })?;
                let pod = self.blueprint.build(name, attachment, workload_uid, key, volume);
                match self.create(&pod).await {
                    Ok(pod) => Ok(found(&pod)),
                    Err(kube::Error::Api(status)) if status.is_already_exists() => {
                        self.adopt(step, name, attachment).await
                    }
                    Err(error) => Err(failed(error)),
                }
            }
            Step::MarkUnmount { name, uid } => {
                // The UID makes it conditional: a pod of the same name may have been made since.
                let patch = Patch::Merge(
                    json!({"metadata": {"uid": uid, "annotations": {annotation::NEEDS_UNMOUNT: "true"}}}),
                );
                match self.pods.patch(name, &PatchParams::default(), &patch).await {
                    // Gone, or another pod of that name, which the API server calls invalid: the one we meant is gone.
                    Err(kube::Error::Api(status)) if status.is_not_found() || status.is_invalid() => {
                        Ok(Applied::Nothing)
                    }
                    Err(error) => Err(failed(error)),
                    Ok(pod) => Ok(found(&pod)),
                }
            }
            Step::DeletePod { name, uid, by_force } => {
                let preconditions = Preconditions { uid: Some(uid.clone()), resource_version: None };
                let params = DeleteParams {
                    preconditions: Some(preconditions),
                    grace_period_seconds: by_force.then_some(0),
                    ..DeleteParams::default()
                };
                match self.pods.delete(name, &params).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Applied::Nothing),
                    // Another pod of that name: the one we meant is gone.
                    Err(kube::Error::Api(status)) if status.is_conflict() => Ok(Applied::Nothing),
                    outcome => {
                        outcome.map_err(failed)?;
                        Ok(Applied::PodGoing { name: name.clone(), uid: uid.clone() })
                    }
                }
            }
        }
    }

    /// Sends a whole pod and keeps of the answer only what decisions need.
    async fn create(&self, pod: &Pod) -> kube::Result<SlimPod> {
        let body = serde_json::to_vec(pod).map_err(kube::Error::SerdeError)?;
        let request = Request::new(self.pods.resource_url()).create(&PostParams::default(), body);
        self.client.request(request.map_err(kube::Error::BuildRequest)?).await
    }

    /// The client repeats a create whose answer it did not get, and a predecessor may have died right after its own: a
    /// pod that was made for the same attachment is the pod we wanted.
    async fn adopt(&self, step: &Step, name: &str, attachment: &str) -> Result<Applied, StepError> {
        let found = self.pods.get_opt(name).await.map_err(|error| classify(step.name(), error))?;
        let found = found.as_ref().and_then(MountpointPod::of);
        match found {
            Some(pod) if pod.attachment.as_deref() == Some(attachment) && !is_broken(&pod) => {
                Ok(Applied::Pod(Box::new(pod)))
            }
            _ => Err(StepError::Outdated {
                step: step.name(),
                message: format!("pod {name} is not ours to use"),
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
    // Nothing that is created is looked up before: what is not found then is the namespace or the definition.
    let creates = step.starts_with("create");
    if status.is_conflict() || status.is_already_exists() || (status.is_not_found() && !creates) {
        StepError::Outdated { step, message }
    } else if status.is_forbidden() || status.is_invalid() || status.is_not_found() || status.code == 400 {
        StepError::Refused { step, message }
    } else {
        StepError::Unavailable { step, message }
    }
}
