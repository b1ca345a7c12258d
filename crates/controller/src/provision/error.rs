//! Why a volume cannot be provisioned or reclaimed.

use exchange::ExchangeError;
use jiff::Timestamp;
use service::keys::KeysError;
use thiserror::Error;
use tonic::Code;

use super::bucket::BucketError;
use super::class::parameters::{ClassError, SecretRef};
use super::kubernetes::ApiError;

#[derive(Debug, Error)]
pub enum ProvisionError {
    #[error("the claim has no `storageClassName`")]
    NoClass,
    #[error("there is no StorageClass `{0}`: create it, or correct the claim")]
    ClassMissing(String),
    #[error("StorageClass `{0}`: {1}")]
    Class(String, ClassError),
    #[error("there is no claim {0}/{1}")]
    ClaimMissing(String, String),
    #[error("there is no Secret {}/{}: create it, or correct the class", .0.namespace, .0.name)]
    SecretMissing(SecretRef),
    #[error(
        "the controller may not read Secret {namespace}/{name}: add namespace `{namespace}` to `provisioning.secretNamespaces` of the \
         driver's Helm values, or correct the class", namespace = .0.namespace, name = .0.name
    )]
    SecretForbidden(SecretRef),
    #[error("invalid credentials: {0}")]
    Keys(#[from] KeysError),
    #[error(
        "no credentials: the class has no provisioner secret and the driver has no keys; add `access_key_id` and \
         `secret_access_key` to the driver's Secret, give the controller's service account a role, or add a provisioner \
         secret to the class"
    )]
    NoDriverKeys,
    #[error("no credentials: {0}")]
    Exchange(Box<ExchangeError>),
    #[error(
        "Secret {namespace}/{name}, whose keys delete `{volume}`, is missing or not readable: create it again, or add namespace \
         `{namespace}` to `provisioning.secretNamespaces` if that value is set; after {until} the volume is deleted and its \
         objects are left behind", namespace = .secret.namespace, name = .secret.name
    )]
    AwaitingSecret { secret: SecretRef, volume: String, until: Timestamp },
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Bucket(#[from] BucketError),
}

impl ProvisionError {
    /// The observation was outdated; the watch brings what changed.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(ApiError::Conflict { .. }))
    }

    /// These credentials will be refused again.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Keys(_) | Self::NoDriverKeys => true,
            Self::Exchange(error) => error.is_refusal(),
            Self::Bucket(error) => !matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded),
            Self::NoClass
            | Self::ClassMissing(_)
            | Self::Class(..)
            | Self::ClaimMissing(..)
            | Self::SecretMissing(_)
            | Self::SecretForbidden(_)
            | Self::AwaitingSecret { .. }
            | Self::Api(_) => false,
        }
    }

    /// Whether a bucket may have been created all the same.
    pub fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Bucket(error) if error.is_ambiguous())
    }

    pub fn code(&self) -> Code {
        match self {
            Self::NoClass | Self::ClassMissing(_) | Self::Class(..) | Self::Keys(_) => Code::InvalidArgument,
            Self::Exchange(error) if error.is_refusal() => Code::Unauthenticated,
            Self::ClaimMissing(..) | Self::Api(_) | Self::Exchange(_) => Code::Unavailable,
            Self::SecretMissing(_) | Self::AwaitingSecret { .. } => Code::FailedPrecondition,
            Self::SecretForbidden(_) => Code::PermissionDenied,
            Self::NoDriverKeys => Code::Unauthenticated,
            Self::Bucket(error) => error.code(),
        }
    }
}
