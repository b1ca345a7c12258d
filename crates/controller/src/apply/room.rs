//! The writes that reserve room: to headroom pods, and to the workloads that ask for it.

use contract::names::{HEADROOM_GATE, label};
use contract::slim::SlimPod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{Applied, StepError, Writer, classify};
use crate::mountpoint_pod::headroom::Reservation;
use crate::reserved_room::{HeadroomPod, Seeker};
use crate::step::Step;

impl Writer {
    pub(super) async fn write_room(&self, step: &Step) -> Result<Applied, StepError> {
        let failed = |error| classify(step.name(), error);
        match step {
            Step::LabelWorkload { namespace, name, uid } => {
                let labels = json!({"metadata": {"labels": {label::HEADROOM_FOR_WORKLOAD: uid}}});
                self.patch_workload(step, namespace, name, uid, labels).await
            }
            Step::UnlabelWorkload { namespace, name, uid } => {
                let labels = json!({"metadata": {"labels": {label::HEADROOM_FOR_WORKLOAD: null}}});
                self.patch_workload(step, namespace, name, uid, labels).await
            }
            Step::RemoveGate { namespace, name, uid } => {
                // By name, because others may add or remove theirs at the same time.
                let gate = json!({"$patch": "delete", "name": HEADROOM_GATE});
                let patch = json!({"spec": {"schedulingGates": [gate]}});
                self.patch_workload(step, namespace, name, uid, patch).await
            }
            Step::CreateHeadroomPod {
                name,
                workload_uid,
                workload_namespace,
                workload_name,
                volume_name,
                volume,
            } => {
                let reservation =
                    Reservation { workload_uid, workload_namespace, workload_name, volume_name, volume };
                let pod = self.blueprint.build_headroom(name, reservation);
                let pod = match self.create(&pod).await {
                    // The client repeats a create whose answer it did not get, and the name is of this workload and volume.
                    Err(kube::Error::Api(status)) if status.is_already_exists() => {
                        let found = self.pods.get_opt(name).await.map_err(failed)?;
                        found.filter(|found| found.metadata.deletion_timestamp.is_none()).ok_or_else(
                            || {
                                let message = format!("headroom pod {name} is being deleted");
                                StepError::Conflict { step: step.name(), message }
                            },
                        )?
                    }
                    outcome => outcome.map_err(failed)?,
                };
                let pod = HeadroomPod::of(&pod);
                Ok(pod.map_or(Applied::Nothing, |pod| Applied::HeadroomPod(Box::new(pod))))
            }
            Step::DeleteHeadroomPod { name, uid } => match self.delete(name, uid, None, false).await {
                // The pod is gone, and another one has its name.
                Err(kube::Error::Api(status)) if status.is_conflict() => Ok(Applied::Nothing),
                outcome => outcome.map_err(failed),
            },
            other => unreachable!("{other:?} reserves no room"),
        }
    }

    /// The UID makes it conditional: a pod of the same name may have been created since.
    async fn patch_workload(
        &self,
        step: &Step,
        namespace: &str,
        name: &str,
        uid: &str,
        mut patch: Value,
    ) -> Result<Applied, StepError> {
        patch["metadata"]["uid"] = json!(uid);
        let pods = Api::<SlimPod>::namespaced(self.client.clone(), namespace);
        match pods.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Applied::Nothing),
            Err(error) => Err(classify(step.name(), error)),
            Ok(pod) => {
                Ok(Seeker::of(&pod).map_or(Applied::Nothing, |seeker| Applied::Seeker(Box::new(seeker))))
            }
        }
    }
}
