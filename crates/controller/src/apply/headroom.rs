//! The writes that reserve headroom: to headroom pods, and to the workloads that ask for it.

use contract::names::{HEADROOM_GATE, label};
use contract::slim::SlimPod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{Applied, StepError, Writer};
use crate::api::{Cause, Failure, answer};
use crate::headroom::{GatedWorkload, HeadroomPod};
use crate::mountpoint_pod::headroom::Reservation;
use crate::step::{Step, WorkloadRef};

impl Writer {
    pub(super) async fn create_headroom_pod(
        &self,
        step: &Step,
        name: &str,
        reservation: Reservation<'_>,
    ) -> Result<Applied, StepError> {
        let failed = |failure| StepError::new(step, failure);
        let pod = match self.create(&self.blueprint.build_headroom(name, reservation)).await {
            // The client repeats a create whose answer it did not get, and the name is of this workload and volume.
            Err(Failure { cause: Cause::Conflict, .. }) => {
                let found = answer(self.pods.get_opt(name)).await.map_err(failed)?;
                let found = found.filter(|found| found.metadata.deletion_timestamp.is_none());
                let message = format!("headroom pod {name} is being deleted");
                found.ok_or(StepError::Conflict { step: step.name(), message })?
            }
            outcome => outcome.map_err(failed)?,
        };
        let pod = HeadroomPod::of(&pod);
        Ok(pod.map_or(Applied::Nothing, |pod| Applied::HeadroomPod(Box::new(pod))))
    }

    /// Headroom pods follow this label. `None` removes it.
    pub(super) async fn label_workload(
        &self,
        step: &Step,
        workload: &WorkloadRef,
        uid: Option<&str>,
    ) -> Result<Applied, StepError> {
        let patch = json!({"metadata": {"labels": {label::HEADROOM_FOR_WORKLOAD: uid}}});
        self.patch_workload(step, workload, patch).await
    }

    /// By its name, because others may add or remove theirs at the same time.
    pub(super) async fn remove_gate(
        &self,
        step: &Step,
        workload: &WorkloadRef,
    ) -> Result<Applied, StepError> {
        let patch = json!({"spec": {"schedulingGates": [{"$patch": "delete", "name": HEADROOM_GATE}]}});
        self.patch_workload(step, workload, patch).await
    }

    /// The UID makes it conditional: a pod of the same name may have been created since.
    async fn patch_workload(
        &self,
        step: &Step,
        WorkloadRef { namespace, name, uid }: &WorkloadRef,
        mut patch: Value,
    ) -> Result<Applied, StepError> {
        patch["metadata"]["uid"] = json!(uid);
        let pods = Api::<SlimPod>::namespaced(self.client.clone(), namespace);
        match answer(pods.patch(name, &PatchParams::default(), &Patch::Strategic(patch))).await {
            Err(Failure { cause: Cause::NotFound, .. }) => Ok(Applied::Nothing),
            Err(failure) => Err(StepError::new(step, failure)),
            Ok(pod) => Ok(GatedWorkload::of(&pod)
                .map_or(Applied::Nothing, |gated| Applied::GatedWorkload(Box::new(gated)))),
        }
    }
}
