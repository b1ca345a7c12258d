//! The writes that reserve headroom: to headroom pods, and to the workloads that ask for it.

use contract::names::{HEADROOM_GATE, label};
use contract::slim::SlimPod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{Applied, Attempt, Writer};
use crate::api::{Cause, Failure, answer};
use crate::headroom::{GatedWorkload, HeadroomPod};
use crate::mountpoint_pod::headroom::Reservation;
use crate::step::WorkloadRef;

impl Writer {
    pub(super) async fn create_headroom_pod(&self, name: &str, reservation: Reservation<'_>) -> Attempt {
        let pod = match self.create(&self.blueprint.build_headroom(name, reservation)).await {
            // The client repeats a create whose answer it did not get, and the name is of this workload and volume.
            Err(Failure { cause: Cause::Conflict, .. }) => {
                let found = answer(self.pods.get_opt(name)).await?;
                let found = found.filter(|found| found.metadata.deletion_timestamp.is_none());
                let message = format!("headroom pod {name} is being deleted");
                found.ok_or(Failure { cause: Cause::Conflict, message })?
            }
            outcome => outcome?,
        };
        let pod = HeadroomPod::of(&pod);
        Ok(pod.map_or(Applied::Nothing, |pod| Applied::HeadroomPod(Box::new(pod))))
    }

    /// Headroom pods follow this label. `None` removes it.
    pub(super) async fn label_workload(&self, workload: &WorkloadRef, uid: Option<&str>) -> Attempt {
        let patch = json!({"metadata": {"labels": {label::HEADROOM_FOR_WORKLOAD: uid}}});
        self.patch_workload(workload, patch).await
    }

    /// Removes the gate by its name, because others may add or remove theirs at the same time.
    pub(super) async fn remove_gate(&self, workload: &WorkloadRef) -> Attempt {
        let patch = json!({"spec": {"schedulingGates": [{"$patch": "delete", "name": HEADROOM_GATE}]}});
        self.patch_workload(workload, patch).await
    }

    /// The UID makes it conditional: a pod of the same name may have been created since.
    async fn patch_workload(
        &self,
        WorkloadRef { namespace, name, uid }: &WorkloadRef,
        mut patch: Value,
    ) -> Attempt {
        patch["metadata"]["uid"] = json!(uid);
        let pods = Api::<SlimPod>::namespaced(self.client.clone(), namespace);
        match answer(pods.patch(name, &PatchParams::default(), &Patch::Strategic(patch))).await {
            Err(Failure { cause: Cause::NotFound, .. }) => Ok(Applied::Nothing),
            Err(failure) => Err(failure),
            Ok(pod) => Ok(GatedWorkload::of(&pod)
                .map_or(Applied::Nothing, |gated| Applied::GatedWorkload(Box::new(gated)))),
        }
    }
}
