//! Writes to Mountpoint Pods, and what they share with those to headroom pods.

use contract::slim::SlimPod;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use serde_json::{Value, json};

use super::{Applied, Attempt, Writer};
use crate::api::{Cause, Failure, answer};
use crate::observed::MountpointPod;

impl Writer {
    /// The client repeats a create whose answer it did not get, and a predecessor may have died right after its own: a
    /// pod that was created for the same attachment is the wanted one.
    pub(super) async fn create_pod(&self, pod: &Pod, name: &str, attachment: &str) -> Attempt {
        match self.create(pod).await {
            Err(Failure { cause: Cause::Conflict, .. }) => {}
            outcome => return outcome.map(|pod| applied(&pod)),
        }
        let found = answer(self.pods.get_opt(name)).await?;
        match found.as_ref().and_then(MountpointPod::of) {
            Some(pod) if pod.attachment.as_deref() == Some(attachment) && !pod.is_ending() => {
                Ok(Applied::Pod(Box::new(pod)))
            }
            _ => Err(Failure {
                cause: Cause::Conflict,
                message: format!("pod {name} exists and belongs to another attachment"),
            }),
        }
    }

    pub(super) async fn create_warm_pod(&self, pod: &Pod) -> Attempt {
        self.create(pod).await.map(|pod| applied(&pod))
    }

    pub(super) async fn claim_pod(&self, name: &str, resource_version: u64, mut metadata: Value) -> Attempt {
        metadata["resourceVersion"] = json!(resource_version.to_string());
        let patch = Patch::Merge(json!({"metadata": metadata}));
        match answer(self.pods.patch(name, &PatchParams::default(), &patch)).await {
            // A webhook may deny the claim, too; the volume then gets a new pod.
            Err(Failure { cause, message }) if cause != Cause::Unavailable => {
                Err(Failure { cause: Cause::Conflict, message })
            }
            outcome => outcome.map(|pod| applied(&pod)),
        }
    }

    pub(super) async fn annotate(&self, name: &str, uid: &str, key: &str, value: &str) -> Attempt {
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
            outcome => outcome.map(|pod| applied(&pod)),
        }
    }

    /// With a `version`, fails if the pod was written since.
    pub(super) async fn delete(
        &self,
        name: &str,
        uid: &str,
        version: Option<u64>,
        by_force: bool,
    ) -> Attempt {
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
            Err(failure) => Err(failure),
        }
    }

    /// Sends a whole pod and keeps only the slim part of the response.
    pub(super) async fn create(&self, pod: &Pod) -> Result<SlimPod, Failure> {
        let body = serde_json::to_vec(pod).map_err(kube::Error::SerdeError)?;
        let request = Request::new(self.pods.resource_url()).create(&PostParams::default(), body);
        answer(self.client.request(request.map_err(kube::Error::BuildRequest)?)).await
    }
}

fn applied(pod: &SlimPod) -> Applied {
    MountpointPod::of(pod).map_or(Applied::Nothing, |pod| Applied::Pod(Box::new(pod)))
}
