//! Whether a call without secrets may use the driver's keys. csi-provisioner sends the same for a class that names no Secret
//! and for a Secret that was emptied or is gone; the driver's keys are for the first of them only.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, Client};
use thiserror::Error;
use tonic::Code;

use super::abandon::Abandoning;
use super::claim::Claim;
use super::credentials::Credentials;
use super::failure::ProvisionError;
use super::keyring::{Keyring, KeyringError};
use super::naming::VolumeId;
use super::origin::Origin;
use super::reclaim::Leftover;
use super::storage_class::{CLAIM_NAME, CLAIM_NAMESPACE};
use super::tell::Teller;
use super::volume::Volumes;
use super::write::Writer;
use crate::confirm::{ReadError, read};
use crate::slim::{SlimClaim, SlimVolume};

#[derive(Debug, Error)]
pub(super) enum AskedKeysError {
    #[error("claim {0}/{1}, for which the volume is asked for, is not there")]
    ClaimMissing(String, String),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Class(ProvisionError),
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// It waits for its Secret.
    #[error(transparent)]
    Waiting(ProvisionError),
}

impl AskedKeysError {
    pub(super) fn code(&self) -> Code {
        match self {
            Self::ClaimMissing(..) | Self::Read(_) | Self::Keyring(KeyringError::Read(_)) => {
                Code::Unavailable
            }
            Self::Class(_) => Code::InvalidArgument,
            Self::Keyring(KeyringError::Keys(error)) => error.code(),
            Self::Keyring(KeyringError::SecretForbidden(_)) => Code::PermissionDenied,
            Self::Keyring(KeyringError::SecretMissing(_)) | Self::Waiting(_) => Code::FailedPrecondition,
        }
    }
}

pub(super) struct AskedKeys {
    client: Client,
    keyring: Keyring,
    volumes: Arc<Volumes>,
    writer: Writer,
    teller: Teller,
}

impl AskedKeys {
    pub(super) fn new(client: &Client, volumes: Arc<Volumes>, teller: Teller) -> Self {
        let (keyring, writer) = (Keyring::new(client), Writer::new(client));
        Self { client: client.clone(), keyring, volumes, writer, teller }
    }

    /// For a new volume: the keys of the Secret that the class of its claim names, else the driver's. Which claim that is
    /// only a csi-provisioner with `--extra-create-metadata` says.
    pub(super) async fn of_claim(
        &self,
        parameters: &BTreeMap<String, String>,
    ) -> Result<Credentials, AskedKeysError> {
        let place = parameters.get(CLAIM_NAMESPACE).zip(parameters.get(CLAIM_NAME));
        let Some((namespace, name)) = place else { return Ok(self.keyring.find(None, &self.volumes).await?) };
        let claims = Api::<SlimClaim>::namespaced(self.client.clone(), namespace);
        let claim = read("the claim", claims.get_opt(name)).await?;
        let missing = || AskedKeysError::ClaimMissing(namespace.clone(), name.clone());
        let claim = claim.as_ref().and_then(Claim::of).ok_or_else(missing)?;
        let classes = Api::<StorageClass>::all(self.client.clone());
        let class = read("the StorageClass", classes.get_opt(&claim.class)).await?;
        let class =
            class.ok_or_else(|| AskedKeysError::Class(ProvisionError::ClassMissing(claim.class.clone())))?;
        let origin = Origin::of(&claim, &class, &self.volumes.server.endpoint)
            .map_err(|error| AskedKeysError::Class(ProvisionError::Class(claim.class.clone(), error)))?;
        Ok(self.keyring.find(origin.secret.as_ref(), &self.volumes).await?)
    }

    /// For a volume that is to be deleted: the keys of the Secret that it names, else the driver's. Nothing, if that Secret
    /// did not come back and the volume goes without what is behind it.
    pub(super) async fn of_volume(
        &self,
        volume: &SlimVolume,
        id: &VolumeId,
    ) -> Result<Option<Credentials>, AskedKeysError> {
        let secret = Leftover::of(volume).and_then(|leftover| leftover.secret);
        match self.keyring.find(secret.as_ref(), &self.volumes).await {
            Ok(credentials) => Ok(Some(credentials)),
            Err(KeyringError::SecretMissing(secret)) => {
                let Self { writer, teller, volumes, .. } = self;
                let due = Abandoning { writer, teller, volumes }.give_up_when_due(volume, id, secret).await;
                due.map_err(AskedKeysError::Waiting).map(|()| None)
            }
            Err(error) => Err(error.into()),
        }
    }
}
