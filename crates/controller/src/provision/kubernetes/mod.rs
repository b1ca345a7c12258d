//! The API server: live reads, and every write of provisioning.

mod request;

use std::fmt::Debug;

use contract::names::DRIVER;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, Secret};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use service::follow::{Objects, Selection};

pub use request::{ApiError, Request};
use request::{conflict, respond};

use crate::provision::claims::claim::{self, Claim, StartedBucket};
use crate::provision::reclaim::volume::{self as released, SECRET_MISSING_SINCE};
use crate::provision::volume_id::VolumeId;
use crate::slim::{SlimClaim, SlimVolume};

/// Another writer may come between our read and our write; repeatedly is rare.
const ATTEMPTS: usize = 4;

pub struct Kubernetes {
    client: Client,
    volumes: Api<PersistentVolume>,
    slim_volumes: Api<SlimVolume>,
}

impl Kubernetes {
    pub fn new(client: &Client) -> Self {
        let (volumes, slim_volumes) = (Api::all(client.clone()), Api::all(client.clone()));
        Self { client: client.clone(), volumes, slim_volumes }
    }

    fn claims(&self, namespace: &str) -> Api<SlimClaim> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub async fn class(&self, name: &str) -> Result<Option<StorageClass>, ApiError> {
        let classes = Api::<StorageClass>::all(self.client.clone());
        respond(Request::ReadClass, classes.get_opt(name)).await
    }

    pub async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Secret>, ApiError> {
        let secrets = Api::<Secret>::namespaced(self.client.clone(), namespace);
        respond(Request::ReadSecret, secrets.get_opt(name)).await
    }

    pub async fn claim(&self, namespace: &str, name: &str) -> Result<Option<Claim>, ApiError> {
        let found = respond(Request::ReadClaim, self.claims(namespace).get_opt(name)).await?;
        Ok(found.as_ref().and_then(Claim::of))
    }

    pub async fn reread(&self, claim: &Claim) -> Result<Claim, ApiError> {
        let found = self.claim(&claim.namespace, &claim.name).await?;
        let found = found.filter(|found| found.uid == claim.uid);
        found.ok_or_else(|| conflict(Request::ReadClaim, "it was deleted"))
    }

    /// The claim with all of its annotations: the cache keeps only those that every claim needs.
    pub async fn with_annotations(&self, claim: &Claim) -> Result<Claim, ApiError> {
        let request = Request::ReadClaim;
        let found = respond(request, self.claims(&claim.namespace).get_metadata_opt(&claim.name)).await?;
        let found = found.filter(|found| found.uid().as_ref() == Some(&claim.uid));
        let found = found.ok_or_else(|| conflict(request, "it was deleted"))?;
        let mut claim = claim.clone();
        claim.annotations = found.metadata.annotations.unwrap_or_default();
        Ok(claim)
    }

    pub async fn volume(&self, name: &str) -> Result<Option<SlimVolume>, ApiError> {
        respond(Request::ReadVolume, self.slim_volumes.get_opt(name)).await
    }

    /// A list of all volumes: no selector knows handles, and no name follows from one.
    pub async fn volume_with_handle(&self, handle: &str) -> Result<Option<SlimVolume>, ApiError> {
        let mut volumes = Objects::of(&self.slim_volumes, &Selection::default());
        while let Some(volume) = respond(Request::ListVolumes, volumes.next()).await? {
            if volume.has_handle(handle) {
                return Ok(Some(volume));
            }
        }
        Ok(None)
    }

    /// The handle of the volume that was created for this claim.
    pub async fn volume_of(&self, claim: &Claim) -> Result<Option<String>, ApiError> {
        let found = self.volume(&claim.volume_name()).await?;
        Ok(found.filter(|found| is_of(found, claim)).map(handle))
    }

    /// The API server refuses a new finalizer on a claim that is being deleted, and this patch on one that has changed: a
    /// claim with our finalizer cannot vanish before it is removed.
    pub async fn add_claim_finalizer(&self, claim: &Claim, id: &VolumeId) -> Result<Claim, ApiError> {
        let (request, started) = (Request::AddClaimFinalizer, StartedBucket { volume: id.to_string() });
        let finalizers: Vec<&str> =
            claim.finalizers.iter().map(String::as_str).chain([claim::FINALIZER]).collect();
        let patch = Patch::Merge(json!({"metadata": {
            "resourceVersion": claim.resource_version.to_string(), "uid": claim.uid,
            "finalizers": finalizers, "annotations": {claim::STARTED: json!(started).to_string()},
        }}));
        let (claims, params) = (self.claims(&claim.namespace), PatchParams::default());
        let written = respond(request, claims.patch(&claim.name, &params, &patch)).await?;
        Claim::of(&written).ok_or_else(|| conflict(request, "it is no longer for this driver"))
    }

    /// Removes the annotation, too. `None` if the claim is gone or has no such finalizer.
    pub async fn remove_claim_finalizer(&self, claim: &Claim) -> Result<Option<Claim>, ApiError> {
        let metadata = json!({
            "name": claim.name, "uid": claim.uid,
            "finalizers": claim.finalizers, "annotations": claim.annotations,
        });
        let requests = [Request::RemoveClaimFinalizer, Request::ReadClaim];
        let marks = (claim::FINALIZER, Some(claim::STARTED));
        let written = remove_finalizer(&self.claims(&claim.namespace), requests, metadata, marks).await?;
        Ok(written.as_ref().and_then(Claim::of))
    }

    /// Returns the handle of the volume that exists then: one of the same claim may be left from an earlier attempt.
    pub async fn create_volume(&self, volume: &PersistentVolume, claim: &Claim) -> Result<String, ApiError> {
        match respond(Request::CreateVolume, self.volumes.create(&PostParams::default(), volume)).await {
            Ok(written) => Ok(written.spec.and_then(|spec| spec.csi).unwrap_or_default().volume_handle),
            Err(ApiError::Conflict { .. }) => {
                let found = self.volume_of(claim).await?;
                found.ok_or_else(|| ApiError::OwnedByOther(volume.name_any()))
            }
            Err(error) => Err(error),
        }
    }

    /// Deletes the volume, then removes its finalizer.
    pub async fn delete_volume(&self, volume: &SlimVolume) -> Result<(), ApiError> {
        if volume.metadata.deletion_timestamp.is_none() {
            let preconditions = Preconditions { uid: volume.uid(), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            match respond(Request::DeleteVolume, self.slim_volumes.delete(&volume.name_any(), &params)).await
            {
                // It is gone, or another one has its name now.
                Ok(_) | Err(ApiError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.remove_volume_finalizer(volume).await
    }

    pub async fn remove_volume_finalizer(&self, volume: &SlimVolume) -> Result<(), ApiError> {
        let requests = [Request::RemoveVolumeFinalizer, Request::ReadVolume];
        let marks = (released::FINALIZER, None);
        remove_finalizer(&self.slim_volumes, requests, json!(volume.metadata), marks).await.map(drop)
    }

    /// Since when the Secret is missing; nothing once it exists again.
    pub async fn record_missing_secret(
        &self,
        volume: &SlimVolume,
        since: Option<Timestamp>,
    ) -> Result<(), ApiError> {
        let since = since.map(|since| since.to_string());
        let metadata = json!({"uid": volume.uid(), "annotations": {SECRET_MISSING_SINCE: since}});
        let (name, params) = (volume.name_any(), PatchParams::default());
        let patch = Patch::Merge(json!({"metadata": metadata}));
        respond(Request::RecordMissingSecret, self.slim_volumes.patch(&name, &params, &patch)).await.map(drop)
    }

    pub async fn add_volume_finalizer(&self, volume: &SlimVolume) -> Result<(), ApiError> {
        let finalizers: Vec<&str> =
            volume.finalizers().iter().map(String::as_str).chain([released::FINALIZER]).collect();
        let version = volume.resource_version();
        let patch = Patch::Merge(json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}}));
        let (name, params) = (volume.name_any(), PatchParams::default());
        respond(Request::AddVolumeFinalizer, self.slim_volumes.patch(&name, &params, &patch)).await.map(drop)
    }
}

/// Removes a finalizer and an annotation from the object that this metadata is of, to patch and to read again. Nothing, if it
/// is gone or has no such finalizer.
async fn remove_finalizer<K: Clone + DeserializeOwned + Debug>(
    objects: &Api<K>,
    [request, read]: [Request; 2],
    mut metadata: Value,
    marks: (&str, Option<&str>),
) -> Result<Option<K>, ApiError> {
    let uid = metadata["uid"].as_str().unwrap_or_default().to_owned();
    let name = metadata["name"].as_str().unwrap_or_default().to_owned();
    for _ in 0..ATTEMPTS {
        let Some(patch) = without_finalizer(&metadata, marks) else { return Ok(None) };
        match respond(request, objects.patch(&name, &PatchParams::default(), &patch)).await {
            Ok(written) => return Ok(Some(written)),
            Err(ApiError::Conflict { .. }) => {}
            Err(error) => return Err(error),
        }
        match respond(read, objects.get_metadata_opt(&name)).await? {
            Some(found) if found.metadata.uid.as_ref() == Some(&uid) => metadata = json!(found.metadata),
            _ => return Ok(None),
        }
    }
    // Conflicts do not happen so often in a row: something else rejects the patch.
    Err(ApiError::Failed { request, message: format!("rejected {ATTEMPTS} times") })
}

/// Removes this finalizer and this annotation, and only from this object: what others write beside them stays, even if we
/// have not seen it yet. Nothing, if the finalizer is not there.
fn without_finalizer(metadata: &Value, (finalizer, annotation): (&str, Option<&str>)) -> Option<Patch<()>> {
    let at = metadata["finalizers"].as_array()?.iter().position(|found| found == finalizer)?;
    let path = format!("/metadata/finalizers/{at}");
    let mut operations = vec![
        json!({"op": "test", "path": "/metadata/uid", "value": metadata["uid"]}),
        json!({"op": "test", "path": path, "value": finalizer}),
        json!({"op": "remove", "path": path}),
    ];
    if let Some(key) = annotation.filter(|key| metadata["annotations"].get(*key).is_some()) {
        let key = key.replace('~', "~0").replace('/', "~1");
        operations.push(json!({"op": "remove", "path": format!("/metadata/annotations/{key}")}));
    }
    Some(Patch::Json(serde_json::from_value(json!(operations)).expect("a valid JSON patch")))
}

fn handle(volume: SlimVolume) -> String {
    volume.spec.csi.map(|csi| csi.volume_handle).unwrap_or_default()
}

fn is_of(volume: &SlimVolume, claim: &Claim) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|owner| owner.uid == claim.uid)
        && volume.spec.csi.as_ref().is_some_and(|csi| csi.driver == DRIVER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_finalizer_and_annotation_are_removed() {
        let metadata = json!({
            "uid": "1", "finalizers": ["a", claim::FINALIZER], "annotations": {claim::STARTED: "{}", "b": ""},
        });
        let marks = (claim::FINALIZER, Some(claim::STARTED));
        let patch = without_finalizer(&metadata, marks).unwrap();
        let Patch::Json(operations) = patch else { panic!("not a JSON patch") };
        assert_eq!(
            json!(operations),
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "1"},
                {"op": "test", "path": "/metadata/finalizers/1", "value": claim::FINALIZER},
                {"op": "remove", "path": "/metadata/finalizers/1"},
                {"op": "remove", "path": "/metadata/annotations/s3.csi.scality.com~1provisioning"},
            ])
        );
        assert!(without_finalizer(&json!({"finalizers": ["a"]}), marks).is_none());
        assert!(without_finalizer(&json!({}), marks).is_none());
    }
}
