//! What only the API server can tell about workloads that ask for headroom.

use contract::slim::SlimPod;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;

use super::{ReadError, Reader, read};
use crate::headroom::GatedWorkload;
use crate::observed::S3Volume;
use crate::slim::{SlimClaim, SlimVolume};

/// Claims of such a class are bound only after the scheduler has chosen a node.
const LATE: &str = "WaitForFirstConsumer";

impl Reader {
    /// A workload that no watch shows, but that may be there: watches are not equally fast.
    pub async fn gated_workload(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<Option<GatedWorkload>, ReadError> {
        let pods = Api::<SlimPod>::namespaced(self.client.clone(), namespace);
        let _permit = self.workloads.acquire().await.expect("the semaphore is never closed");
        let found = read("a workload", pods.get_opt(name)).await?;
        Ok(found.as_ref().and_then(GatedWorkload::of).filter(|found| found.workload.uid == uid))
    }

    /// Whether a volume of ours may still be bound to the claim before its workload is scheduled.
    pub async fn awaits_volume(&self, namespace: &str, claim: &str) -> Result<bool, ReadError> {
        let claims = Api::<SlimClaim>::namespaced(self.client.clone(), namespace);
        let Some(claim) = read("a claim", claims.get_opt(claim)).await? else { return Ok(true) };
        let given = |name: Option<String>| name.filter(|name| !name.is_empty());
        if let Some(volume) = given(claim.spec.volume_name) {
            let volumes = Api::<SlimVolume>::all(self.client.clone());
            let volume = read("a volume", volumes.get_opt(&volume)).await?;
            return Ok(volume.is_none_or(|volume| S3Volume::of(&volume).is_some()));
        }
        let Some(class) = given(claim.spec.storage_class_name) else { return Ok(true) };
        let classes = Api::<StorageClass>::all(self.client.clone());
        let class = read("a class", classes.get_opt(&class)).await?;
        Ok(class.is_none_or(|class| class.volume_binding_mode.as_deref() != Some(LATE)))
    }
}
