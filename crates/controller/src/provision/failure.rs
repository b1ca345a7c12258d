//! Why a claim or a volume is not done.

use jiff::Timestamp;
use thiserror::Error;

use super::keyring::KeyringError;
use super::storage_class::{ClassError, SecretRef};
use super::volume::VolumeError;
use super::write::WriteError;
use crate::confirm::ReadError;

#[derive(Debug, Error)]
pub(super) enum ProvisionError {
    #[error("the claim names no StorageClass")]
    NoClass,
    #[error("there is no StorageClass `{0}`: create it, or correct the claim")]
    ClassMissing(String),
    #[error("StorageClass `{0}`: {1}")]
    Class(String, ClassError),
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    #[error(
        "there is no Secret {}/{}, with whose keys `{volume}` is deleted: create it again; after {until} the volume is \
         deleted without what is behind it", .secret.namespace, .secret.name
    )]
    SecretGone { secret: SecretRef, volume: String, until: Timestamp },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

impl ProvisionError {
    /// Nothing is wrong: what we knew was old, and the watch will tell.
    pub(super) fn is_outdated(&self) -> bool {
        matches!(self, Self::Write(WriteError::Outdated { .. }))
    }

    /// S3 said no to these keys, or there are none: trying again with them changes nothing.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::Volume(error) | Self::Keyring(KeyringError::Keys(error)) => error.is_refusal(),
            _ => false,
        }
    }
}
