//! Requests to the API server and how they fail.

use thiserror::Error;

use crate::api::{self, Cause, Failure};

/// Completes `cannot …`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
pub enum Request {
    #[strum(serialize = "read the claim")]
    ReadClaim,
    #[strum(serialize = "read the StorageClass")]
    ReadClass,
    #[strum(serialize = "read the Secret")]
    ReadSecret,
    #[strum(serialize = "read the PersistentVolume")]
    ReadVolume,
    #[strum(serialize = "list the PersistentVolumes")]
    ListVolumes,
    #[strum(serialize = "add a finalizer to the claim")]
    AddClaimFinalizer,
    #[strum(serialize = "remove the finalizer of the claim")]
    RemoveClaimFinalizer,
    #[strum(serialize = "create the PersistentVolume")]
    CreateVolume,
    #[strum(serialize = "delete the PersistentVolume")]
    DeleteVolume,
    #[strum(serialize = "add a finalizer to the PersistentVolume")]
    AddVolumeFinalizer,
    #[strum(serialize = "remove the finalizer of the PersistentVolume")]
    RemoveVolumeFinalizer,
    #[strum(serialize = "annotate the PersistentVolume")]
    RecordMissingSecret,
}

impl Request {
    /// A JSON patch whose test fails is `Invalid`, and so is a finalizer on an object that is being deleted. What an
    /// admission policy rejects is `Invalid`, too, and must be reported.
    fn is_conflict(self, message: &str) -> bool {
        match self {
            Self::RemoveClaimFinalizer | Self::RemoveVolumeFinalizer => true,
            Self::AddClaimFinalizer | Self::AddVolumeFinalizer => message.contains("deleted"),
            _ => false,
        }
    }
}

#[derive(Debug, Error)]
pub enum ApiError {
    /// The object is not as it was observed: observe it again.
    #[error("cannot {request}: {message}")]
    Conflict { request: Request, message: String },
    #[error("cannot {request}: {message}")]
    Forbidden { request: Request, message: String },
    #[error("cannot {request}: {message}")]
    Failed { request: Request, message: String },
    #[error("PersistentVolume `{0}` exists and belongs to another claim: delete it")]
    OwnedByOther(String),
}

pub(super) fn conflict(request: Request, message: &str) -> ApiError {
    ApiError::Conflict { request, message: message.to_owned() }
}

pub(super) async fn respond<T>(
    request: Request,
    response: impl Future<Output = kube::Result<T>>,
) -> Result<T, ApiError> {
    api::answer(response).await.map_err(|Failure { cause, message }| match cause {
        Cause::Conflict | Cause::NotFound => ApiError::Conflict { request, message },
        Cause::Invalid if request.is_conflict(&message) => ApiError::Conflict { request, message },
        Cause::Forbidden => ApiError::Forbidden { request, message },
        Cause::Invalid | Cause::Internal | Cause::Unavailable => ApiError::Failed { request, message },
    })
}
