//! Writes to attachments.

use std::collections::BTreeMap;

use contract::attachment::{AttachmentSpec, MountpointS3PodAttachment, WorkloadAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;

use super::{Applied, Attempt, Writer};
use crate::api::{Cause, answer};
use crate::observed::Attachment;

impl Writer {
    pub(super) async fn create_attachment(&self, name: &str, spec: &AttachmentSpec) -> Attempt {
        let object = MountpointS3PodAttachment::new(name, spec.clone());
        answer(self.attachments.create(&PostParams::default(), &object)).await.map(written)
    }

    /// A merge patch keeps other fields; the version makes it conditional.
    pub(super) async fn update_attachment(
        &self,
        name: &str,
        resource_version: u64,
        entries: &BTreeMap<String, Option<Vec<WorkloadAttachment>>>,
    ) -> Attempt {
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": resource_version.to_string()},
            "spec": {"mountpointS3PodAttachments": entries},
        }));
        answer(self.attachments.patch(name, &PatchParams::default(), &patch)).await.map(written)
    }

    pub(super) async fn delete_attachment(&self, name: &str, uid: &str, resource_version: u64) -> Attempt {
        let preconditions =
            Preconditions { uid: Some(uid.to_owned()), resource_version: Some(resource_version.to_string()) };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match answer(self.attachments.delete(name, &params)).await {
            Err(failure) if failure.cause != Cause::NotFound => Err(failure),
            _ => Ok(Applied::AttachmentDeleted(name.to_owned())),
        }
    }

    /// Returns the new attachment: with the old one, its next change would be a conflict.
    pub(super) async fn set_condition(&self, name: &str, condition: &Condition) -> Attempt {
        let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
        answer(self.attachments.patch_status(name, &PatchParams::default(), &patch)).await.map(written)
    }
}

fn written(object: MountpointS3PodAttachment) -> Applied {
    Attachment::of(object).map_or(Applied::Nothing, |found| Applied::Attachment(Box::new(found)))
}
