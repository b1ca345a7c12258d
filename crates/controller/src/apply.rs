//! Steps become writes to attachments, Mountpoint Pods and workloads here, and nowhere else.

mod attachments;
mod headroom;
mod pods;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::annotation;
use contract::quantity::Quantity;
use contract::sharing::SharingKey;
use contract::slim::SlimPod;
use contract::volume::Volume;
use kube::{Api, Client};
use thiserror::Error;

use crate::api::{Cause, Failure};
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
        let (creates, step) = (step.creates(), step.name());
        match cause {
            // What is not found is the namespace or the custom resource definition.
            Cause::NotFound if creates => Self::Refused { step, message },
            Cause::Conflict | Cause::NotFound => Self::Conflict { step, message },
            Cause::Forbidden | Cause::Invalid => Self::Refused { step, message },
            Cause::Internal | Cause::Unavailable => Self::Unavailable { step, message },
        }
    }
}

/// What came of one request.
type Attempt = Result<Applied, Failure>;

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
        let served = || served.ok_or(StepError::NoVolume { step: step.name() });
        let applied = match step {
            Step::CreateAttachment { name, spec } => self.create_attachment(name, spec).await,
            Step::UpdateAttachment { name, resource_version, entries } => {
                self.update_attachment(name, *resource_version, entries).await
            }
            Step::DeleteAttachment { name, uid, resource_version } => {
                self.delete_attachment(name, uid, *resource_version).await
            }
            Step::SetCondition { attachment, condition } => self.set_condition(attachment, condition).await,
            Step::CreatePod { name, attachment, workload_uid, preempts } => {
                let (key, served) = served()?;
                let pod = self.blueprint.build(name, attachment, workload_uid, key, served);
                let pod = if *preempts { self.blueprint.preempting(pod) } else { pod };
                self.create_pod(&pod, name, attachment).await
            }
            Step::CreateWarmPod { name, node, node_uid } => {
                self.create_warm_pod(&self.blueprint.build_warm(name, node, node_uid)).await
            }
            Step::ClaimPod { name, resource_version, attachment, workload_uid, early_mount } => {
                let ((key, served), early) = (served()?, early_mount.as_ref());
                let metadata = self.blueprint.claim(attachment, workload_uid, key, served, early);
                self.claim_pod(name, *resource_version, metadata).await
            }
            Step::MarkUnmount { name, uid } => {
                self.annotate(name, uid, annotation::NEEDS_UNMOUNT, "true").await
            }
            Step::RecordAuthentication { name, uid, source } => {
                self.annotate(name, uid, annotation::AUTHENTICATION_SOURCE, source.as_str()).await
            }
            Step::DeletePod { name, uid, by_force } => self.delete(name, uid, None, *by_force).await,
            Step::DeleteWarmPod { name, uid, resource_version, by_force } => {
                self.delete(name, uid, Some(*resource_version), *by_force).await
            }
            Step::CreateHeadroomPod { name, workload, volume_name, volume } => {
                self.create_headroom_pod(name, Reservation { workload, volume_name, volume }).await
            }
            Step::DeleteHeadroomPod { name, uid } => self.delete(name, uid, None, false).await,
            Step::LabelWorkload(workload) => self.label_workload(workload, Some(&workload.uid)).await,
            Step::UnlabelWorkload(workload) => self.label_workload(workload, None).await,
            Step::RemoveGate(workload) => self.remove_gate(workload).await,
        };
        applied.map_err(|failure| StepError::new(step, failure))
    }
}
