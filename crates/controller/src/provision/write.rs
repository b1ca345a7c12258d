//! The provisioner's writes to the API server.

use std::future::Future;
use std::time::Duration;

use contract::names::DRIVER;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use thiserror::Error;

use super::claim::{BEGUN, Begun, Claim, FINALIZER};
use super::naming::VolumeId;
use super::reclaim;
use crate::slim::{SlimClaim, SlimVolume};

/// A write is answered in milliseconds; a connection that died without saying so never answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Somebody else's write may come between our read and our write; twice in a row is rare.
const TRIES: usize = 4;

#[derive(Debug, Error)]
pub enum WriteError {
    /// Decided on old knowledge: look again.
    #[error("{step}: {message}")]
    Outdated { step: &'static str, message: String },
    #[error("PersistentVolume `{0}` exists and belongs to another claim: delete it")]
    Taken(String),
    #[error("{step} failed: {message}")]
    Failed { step: &'static str, message: String },
}

pub struct Writer {
    client: Client,
    volumes: Api<PersistentVolume>,
    slim_volumes: Api<SlimVolume>,
}

impl Writer {
    pub fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            volumes: Api::all(client.clone()),
            slim_volumes: Api::all(client.clone()),
        }
    }

    fn claims(&self, claim: &Claim) -> Api<SlimClaim> {
        Api::namespaced(self.client.clone(), &claim.namespace)
    }

    /// Marks the claim as begun. The API server refuses that for a claim that is being deleted or was changed: what has
    /// been marked cannot vanish before it is released.
    pub async fn begin(&self, claim: &Claim, id: &VolumeId) -> Result<Claim, WriteError> {
        let (step, begun) = ("begin_claim", Begun { volume: id.to_string() });
        let finalizers: Vec<&str> = claim.finalizers.iter().map(String::as_str).chain([FINALIZER]).collect();
        let patch = Patch::Merge(json!({"metadata": {
            "resourceVersion": claim.resource_version.to_string(), "uid": claim.uid,
            "finalizers": finalizers, "annotations": {BEGUN: json!(begun).to_string()},
        }}));
        let params = PatchParams::default();
        let written = answered(step, self.claims(claim).patch(&claim.name, &params, &patch)).await?;
        Claim::of(&written)
            .ok_or_else(|| WriteError::Outdated { step, message: "it is not ours any more".to_owned() })
    }

    /// The claim with all annotations, as they are now: a watch keeps those that every claim needs.
    pub async fn with_annotations(&self, claim: &Claim) -> Result<Claim, WriteError> {
        let step = "read_claim";
        let found = answered(step, self.claims(claim).get_metadata_opt(&claim.name)).await?;
        let found = found.filter(|found| found.uid().as_ref() == Some(&claim.uid));
        let found = found.ok_or_else(|| WriteError::Outdated { step, message: "it is gone".to_owned() })?;
        let mut claim = claim.clone();
        claim.annotations = found.metadata.annotations.unwrap_or_default();
        Ok(claim)
    }

    /// Takes the mark away. Nothing, if the claim is gone or not ours any more, or has no mark.
    pub async fn release(&self, claim: &Claim) -> Result<Option<Claim>, WriteError> {
        let claims = self.claims(claim);
        let mut metadata = json!({"finalizers": claim.finalizers, "annotations": claim.annotations});
        for _ in 0..TRIES {
            let Some(patch) = without(&metadata, FINALIZER, Some(BEGUN), &claim.uid) else { return Ok(None) };
            match answered("release_claim", claims.patch(&claim.name, &PatchParams::default(), &patch)).await
            {
                Ok(written) => return Ok(Claim::of(&written)),
                Err(WriteError::Outdated { .. }) => {}
                Err(error) => return Err(error),
            }
            // Others wrote meanwhile: once more, with what is there now.
            match answered("read_claim", claims.get_metadata_opt(&claim.name)).await? {
                Some(found) if found.uid().as_ref() == Some(&claim.uid) => metadata = json!(found.metadata),
                _ => return Ok(None),
            }
        }
        Err(refused("release_claim"))
    }

    /// One that is there already and is the claim's own is as good: an earlier answer was lost. Returns what is behind it.
    pub async fn create_volume(
        &self,
        volume: &PersistentVolume,
        claim: &Claim,
    ) -> Result<String, WriteError> {
        let handle = |volume: SlimVolume| volume.spec.csi.map(|csi| csi.volume_handle).unwrap_or_default();
        match answered("create_volume", self.volumes.create(&PostParams::default(), volume)).await {
            Ok(written) => Ok(written.spec.and_then(|spec| spec.csi).unwrap_or_default().volume_handle),
            Err(WriteError::Outdated { .. }) => {
                let name = volume.name_any();
                let found = answered("read_volume", self.slim_volumes.get_opt(&name)).await?;
                found.filter(|found| is_of(found, claim)).map(handle).ok_or(WriteError::Taken(name))
            }
            Err(error) => Err(error),
        }
    }

    pub async fn has_volume(&self, claim: &Claim) -> Result<bool, WriteError> {
        let found = answered("read_volume", self.slim_volumes.get_opt(&claim.persistent_volume())).await?;
        Ok(found.is_some_and(|found| is_of(&found, claim)))
    }

    pub async fn volume(&self, name: &str) -> Result<Option<SlimVolume>, WriteError> {
        answered("read_volume", self.slim_volumes.get_opt(name)).await
    }

    /// Deletes the object, whose bucket is gone, and lets it go.
    pub async fn delete_volume(&self, volume: &SlimVolume) -> Result<(), WriteError> {
        let name = volume.name_any();
        if volume.metadata.deletion_timestamp.is_none() {
            let preconditions = Preconditions { uid: volume.uid(), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            match answered("delete_volume", self.slim_volumes.delete(&name, &params)).await {
                // Gone, or another of the same name: both are not ours to delete.
                Ok(_) | Err(WriteError::Outdated { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.drop_finalizer(volume).await
    }

    pub async fn drop_finalizer(&self, volume: &SlimVolume) -> Result<(), WriteError> {
        let (name, uid) = (volume.name_any(), volume.uid().unwrap_or_default());
        let mut metadata = json!({"finalizers": volume.finalizers()});
        for _ in 0..TRIES {
            let Some(patch) = without(&metadata, reclaim::FINALIZER, None, &uid) else { return Ok(()) };
            let params = PatchParams::default();
            match answered("release_volume", self.slim_volumes.patch(&name, &params, &patch)).await {
                Ok(_) => return Ok(()),
                Err(WriteError::Outdated { .. }) => {}
                Err(error) => return Err(error),
            }
            match self.volume(&name).await? {
                Some(found) if found.uid().as_ref() == Some(&uid) => metadata = json!(found.metadata),
                _ => return Ok(()),
            }
        }
        Err(refused("release_volume"))
    }

    /// When the Secret was missed first; nothing once it is back.
    pub async fn note_missing(
        &self,
        volume: &SlimVolume,
        since: Option<Timestamp>,
    ) -> Result<(), WriteError> {
        let since = since.map(|since| since.to_string());
        let metadata = json!({"uid": volume.uid(), "annotations": {reclaim::SECRET_MISSING_SINCE: since}});
        let (name, params) = (volume.name_any(), PatchParams::default());
        let patch = Patch::Merge(json!({"metadata": metadata}));
        answered("note_missing", self.slim_volumes.patch(&name, &params, &patch)).await.map(drop)
    }

    pub async fn add_finalizer(&self, volume: &SlimVolume) -> Result<(), WriteError> {
        let finalizers: Vec<&str> =
            volume.finalizers().iter().map(String::as_str).chain([reclaim::FINALIZER]).collect();
        let version = volume.resource_version();
        let patch = Patch::Merge(json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}}));
        let (name, params) = (volume.name_any(), PatchParams::default());
        answered("keep_volume", self.slim_volumes.patch(&name, &params, &patch)).await.map(drop)
    }
}

/// Takes away this finalizer and this annotation alone, and only from this very object: what others write beside them
/// stays, whether we have seen it or not. Nothing, if the finalizer is not there.
fn without(metadata: &Value, finalizer: &str, annotation: Option<&str>, uid: &str) -> Option<Patch<()>> {
    let at = metadata["finalizers"].as_array()?.iter().position(|found| found == finalizer)?;
    let place = format!("/metadata/finalizers/{at}");
    let mut steps = vec![
        json!({"op": "test", "path": "/metadata/uid", "value": uid}),
        json!({"op": "test", "path": place, "value": finalizer}),
        json!({"op": "remove", "path": place}),
    ];
    if let Some(key) = annotation.filter(|key| metadata["annotations"].get(*key).is_some()) {
        let key = key.replace('~', "~0").replace('/', "~1");
        steps.push(json!({"op": "remove", "path": format!("/metadata/annotations/{key}")}));
    }
    Some(Patch::Json(serde_json::from_value(json!(steps)).expect("these are steps of a patch")))
}

fn is_of(volume: &SlimVolume, claim: &Claim) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|owner| owner.uid == claim.uid)
        && volume.spec.csi.as_ref().is_some_and(|csi| csi.driver == DRIVER)
}

/// A patch whose test fails, or a mark on a claim that is being deleted, is refused as invalid; so is what somebody's
/// admission policy does not like, which must be told.
fn is_outdated(step: &str, message: &str) -> bool {
    match step {
        "release_claim" | "release_volume" => true,
        "begin_claim" | "keep_volume" => message.contains("deleted"),
        _ => false,
    }
}

/// Not because somebody else was faster: that does not happen so often in a row.
fn refused(step: &'static str) -> WriteError {
    WriteError::Failed { step, message: format!("refused {TRIES} times") }
}

async fn answered<T>(
    step: &'static str,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, WriteError> {
    match tokio::time::timeout(ANSWER_WITHIN, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status)))
            if status.is_conflict()
                || status.is_already_exists()
                || status.is_not_found()
                || (status.is_invalid() && is_outdated(step, &status.message)) =>
        {
            Err(WriteError::Outdated { step, message: status.message })
        }
        Ok(Err(kube::Error::Api(status))) => Err(WriteError::Failed { step, message: status.message }),
        Ok(Err(error)) => Err(WriteError::Failed { step, message: error.to_string() }),
        Err(_) => Err(WriteError::Failed { step, message: format!("no answer within {ANSWER_WITHIN:?}") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_marks_are_taken_away() {
        let metadata = json!({"finalizers": ["a", FINALIZER], "annotations": {BEGUN: "{}", "b": ""}});
        let patch = without(&metadata, FINALIZER, Some(BEGUN), "1").unwrap();
        let Patch::Json(steps) = patch else { panic!("not a list of steps") };
        assert_eq!(
            json!(steps),
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "1"},
                {"op": "test", "path": "/metadata/finalizers/1", "value": FINALIZER},
                {"op": "remove", "path": "/metadata/finalizers/1"},
                {"op": "remove", "path": "/metadata/annotations/s3.csi.scality.com~1provisioning"},
            ])
        );
        assert!(without(&json!({"finalizers": ["a"]}), FINALIZER, None, "1").is_none());
        assert!(without(&json!({}), FINALIZER, None, "1").is_none());
    }
}
