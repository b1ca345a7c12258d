//! Why a publish fails, and the gRPC code that the kubelet gets.

use std::io;
use std::path::{Path, PathBuf};

use contract::mountpoint_pod::StartFailure;
use mounter::handover::client::HandOverError;
use mounter::handover::{Code, Refused};
use thiserror::Error;
use tonic::Status;

use crate::credentials::CredentialsError;
use crate::identity::IdentityError;
use crate::publish::plan::Refusal;
use crate::request::RequestError;

#[derive(Debug, Error)]
pub enum PublishError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("another operation on this target is in progress; the kubelet will retry")]
    Busy,
    #[error(
        "waiting for the API server: it has not listed this node's attachments and Mountpoint Pods since the node \
         service started; see the logs of the node service"
    )]
    CacheNotSynced,
    #[error(
        "no attachment lists this workload yet (volume `{volume}`, pod {pod_uid}); check that the controller is running: \
         kubectl get s3pa; kubectl get pods -A -lapp=s3-csi-controller"
    )]
    NotAttached { volume: String, pod_uid: String },
    #[error("waiting for Mountpoint Pod {0} to appear")]
    PodMissing(String),
    #[error("Mountpoint Pod {0} has ended; waiting for its replacement")]
    PodEnded(String),
    #[error("Mountpoint Pod {pod} must not serve this workload: {reason}")]
    PodNotTrusted { pod: String, reason: &'static str },
    #[error("Mountpoint Pod {pod} cannot start: {reason}; see kubectl describe pod -n {namespace} {pod}")]
    PodCannotStart { pod: String, namespace: String, reason: StartFailure },
    #[error(
        "timed out waiting for Mountpoint Pod {pod} to accept the mount; see kubectl describe pod -n {namespace} {pod}"
    )]
    MounterNotListening { pod: String, namespace: String },
    #[error("timed out waiting for another mount on Mountpoint Pod {0}; the kubelet will retry")]
    MountpointPodBusy(String),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error("{message} ({code}, Mountpoint Pod {pod})", message = .refused.message, code = .refused.code)]
    MountFailed { pod: String, refused: Refused },
    #[error("hand-over to Mountpoint Pod {pod} failed: {source}; see kubectl logs -n {namespace} {pod}")]
    HandOver { pod: String, namespace: String, source: HandOverError },
    #[error("cannot {step} {path}: {source}")]
    Kernel { step: &'static str, path: PathBuf, source: io::Error },
}

impl From<PublishError> for Status {
    fn from(error: PublishError) -> Self {
        let message = error.to_string();
        match error {
            PublishError::Busy => Self::aborted(message),
            PublishError::NotAttached { .. }
            | PublishError::PodMissing(_)
            | PublishError::PodEnded(_)
            | PublishError::MounterNotListening { .. } => Self::deadline_exceeded(message),
            PublishError::PodNotTrusted { .. } | PublishError::Refused(Refusal::UsedByOtherPod(_)) => {
                Self::failed_precondition(message)
            }
            PublishError::CacheNotSynced
            | PublishError::PodCannotStart { .. }
            | PublishError::HandOver { .. }
            | PublishError::MountpointPodBusy(_)
            | PublishError::Credentials(
                CredentialsError::Unrecorded | CredentialsError::Identity(IdentityError::DriverToken { .. }),
            )
            | PublishError::Refused(Refusal::Unresponsive(_)) => Self::unavailable(message),
            PublishError::Credentials(CredentialsError::NoDriverKeys) => Self::unauthenticated(message),
            PublishError::Credentials(CredentialsError::Write(_)) | PublishError::Kernel { .. } => {
                Self::internal(message)
            }
            PublishError::Request(_) | PublishError::Credentials(_) => Self::invalid_argument(message),
            PublishError::MountFailed { refused, .. } => match refused.code {
                Code::BadOption | Code::BadPrefix | Code::BadBucket | Code::WrongRegion => {
                    Self::invalid_argument(message)
                }
                Code::NoSuchBucket => Self::not_found(message),
                Code::AccessDenied => Self::permission_denied(message),
                Code::WrongSecret | Code::UnknownKey | Code::ExpiredCredentials | Code::NoCredentials => {
                    Self::unauthenticated(message)
                }
                Code::EndpointUnreachable
                | Code::UnknownHost
                | Code::UntrustedCertificate
                | Code::ServerError
                | Code::Busy => Self::unavailable(message),
                Code::TimedOut | Code::RequestTimeout => Self::deadline_exceeded(message),
                Code::CacheNotWritable | Code::Rejected | Code::WrongVersion => {
                    Self::failed_precondition(message)
                }
                Code::WrongPeer | Code::Garbled | Code::WrongDescriptor | Code::Failed => {
                    Self::internal(message)
                }
            },
        }
    }
}

pub(crate) fn kernel_error<'a>(
    step: &'static str,
    path: &'a Path,
) -> impl Fn(io::Error) -> PublishError + 'a {
    move |source| PublishError::Kernel { step, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grpc(code: Code) -> tonic::Code {
        let refused = Refused::new(code, "why");
        Status::from(PublishError::MountFailed { pod: "mp-1".to_owned(), refused }).code()
    }

    /// The volume is not at fault. The controller says the same of its own keys.
    #[test]
    fn what_the_driver_lacks_is_no_invalid_argument() {
        let source = io::ErrorKind::NotFound.into();
        let token = IdentityError::DriverToken { path: "/token".into(), source };
        for (error, expected) in [
            (CredentialsError::NoDriverKeys, tonic::Code::Unauthenticated),
            (CredentialsError::Identity(token), tonic::Code::Unavailable),
        ] {
            assert_eq!(Status::from(PublishError::from(error)).code(), expected);
        }
    }

    /// Internal is for mistakes of the driver.
    #[test]
    fn what_the_user_or_the_server_got_wrong_is_never_internal() {
        for (code, expected) in [
            (Code::BadOption, tonic::Code::InvalidArgument),
            (Code::BadPrefix, tonic::Code::InvalidArgument),
            (Code::BadBucket, tonic::Code::InvalidArgument),
            (Code::WrongRegion, tonic::Code::InvalidArgument),
            (Code::NoSuchBucket, tonic::Code::NotFound),
            (Code::AccessDenied, tonic::Code::PermissionDenied),
            (Code::WrongSecret, tonic::Code::Unauthenticated),
            (Code::UnknownKey, tonic::Code::Unauthenticated),
            (Code::ExpiredCredentials, tonic::Code::Unauthenticated),
            (Code::NoCredentials, tonic::Code::Unauthenticated),
            (Code::EndpointUnreachable, tonic::Code::Unavailable),
            (Code::UnknownHost, tonic::Code::Unavailable),
            (Code::UntrustedCertificate, tonic::Code::Unavailable),
            (Code::ServerError, tonic::Code::Unavailable),
            (Code::Busy, tonic::Code::Unavailable),
            (Code::TimedOut, tonic::Code::DeadlineExceeded),
            (Code::RequestTimeout, tonic::Code::DeadlineExceeded),
            (Code::CacheNotWritable, tonic::Code::FailedPrecondition),
            (Code::Rejected, tonic::Code::FailedPrecondition),
            (Code::WrongVersion, tonic::Code::FailedPrecondition),
        ] {
            assert_eq!(grpc(code), expected, "{code}");
        }
        for code in [Code::WrongPeer, Code::Garbled, Code::WrongDescriptor, Code::Failed] {
            assert_eq!(grpc(code), tonic::Code::Internal, "{code}");
        }
    }
}
