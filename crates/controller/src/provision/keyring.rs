//! The keys that a Secret holds at this moment.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use thiserror::Error;

use super::credentials::Credentials;
use super::storage_class::SecretRef;
use super::volume::{VolumeError, Volumes};
use crate::confirm::{ReadError, read};

#[derive(Debug, Error)]
pub(super) enum KeyringError {
    #[error("there is no Secret {}/{}: create it, or correct the class", .0.namespace, .0.name)]
    SecretMissing(SecretRef),
    #[error(
        "the controller may not read Secret {namespace}/{name}: add namespace `{namespace}` to `provisioning.secretNamespaces` of the \
         driver's Helm values, or correct the class", namespace = .0.namespace, name = .0.name
    )]
    SecretForbidden(SecretRef),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Keys(#[from] VolumeError),
}

pub(super) struct Keyring {
    client: Client,
}

impl Keyring {
    pub(super) fn new(client: &Client) -> Self {
        Self { client: client.clone() }
    }

    /// Live: a Secret may have been corrected a moment ago. The driver's keys are for what names no Secret, and never take
    /// the place of one that is missing or has no keys.
    pub(super) async fn find(
        &self,
        secret: Option<&SecretRef>,
        volumes: &Volumes,
    ) -> Result<Credentials, KeyringError> {
        let Some(secret) = secret else { return Ok(volumes.drivers_own()?) };
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &secret.namespace);
        let found = read("the Secret", secrets.get_opt(&secret.name)).await.map_err(|error| match error {
            ReadError { is_forbidden: true, .. } => KeyringError::SecretForbidden(secret.clone()),
            error => error.into(),
        })?;
        let data = found.ok_or_else(|| KeyringError::SecretMissing(secret.clone()))?.data.unwrap_or_default();
        let text = |(key, value): (String, ByteString)| Some((key, String::from_utf8(value.0).ok()?));
        let data: BTreeMap<String, String> = data.into_iter().filter_map(text).collect();
        let whose = format!("Secret {}/{}", secret.namespace, secret.name);
        Ok(Credentials::of_secret(&data, &whose).map_err(VolumeError::from)?)
    }
}
