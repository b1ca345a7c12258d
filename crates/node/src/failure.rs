//! Why a publish fails, in words for the workload's owner, and the code that kubelet gets.

use std::io;
use std::path::{Path, PathBuf};

use mounter::channel::HandOverError;
use mounter::reply::{Code, Refused};
use thiserror::Error;
use tonic::Status;

use crate::credentials::CredentialsError;
use crate::request::RequestError;

#[derive(Debug, Error)]
pub enum PublishError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("another call is working on this target; try again")]
    Busy,
    #[error(
        "waiting for the API server: it has not listed this node's attachments and Mountpoint Pods since the node \
         service started; see the logs of the node service"
    )]
    NoApiServer,
    #[error(
        "no attachment names this workload yet (volume `{volume}`, pod {pod_uid}): is the controller running? \
         kubectl get s3pa; kubectl get pods -A -lapp=s3-csi-controller"
    )]
    NoAssignment { volume: String, pod_uid: String },
    #[error("the Mountpoint Pod `{0}` of this workload is not known yet")]
    NoPod(String),
    #[error("the Mountpoint Pod `{pod}` is not one that may serve this workload: {reason}")]
    WrongPod { pod: String, reason: &'static str },
    #[error(
        "the Mountpoint Pod `{pod}` does not start: {reason}; see kubectl describe pod -n {namespace} {pod}"
    )]
    PodTrouble { pod: String, namespace: String, reason: String },
    #[error("the Mountpoint Pod `{pod}` is not listening yet; see kubectl describe pod -n {namespace} {pod}")]
    NotListening { pod: String, namespace: String },
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error("{message} ({code}, Mountpoint Pod `{pod}`)", message = .refused.message, code = .refused.code)]
    Refused { pod: String, refused: Refused },
    #[error(
        "the hand-over to the Mountpoint Pod `{pod}` failed: {source}; see kubectl logs -n {namespace} {pod}"
    )]
    HandOver { pod: String, namespace: String, source: HandOverError },
    #[error("others are being served by the Mountpoint Pod `{0}` at the moment; try again")]
    Waiting(String),
    #[error("mount {0} is not responding; see the logs of the Mountpoint Pod of this name")]
    Silent(PathBuf),
    #[error("the volume is for one pod at a time, and is still mounted at {0}: wait for that pod's end")]
    UsedElsewhere(PathBuf),
    #[error("cannot {step} {path}: {source}")]
    Kernel { step: &'static str, path: PathBuf, source: io::Error },
}

impl From<PublishError> for Status {
    fn from(error: PublishError) -> Self {
        let message = error.to_string();
        match error {
            PublishError::Busy => Self::aborted(message),
            PublishError::NoAssignment { .. }
            | PublishError::NoPod(_)
            | PublishError::NotListening { .. } => Self::deadline_exceeded(message),
            PublishError::WrongPod { .. } | PublishError::UsedElsewhere(_) => {
                Self::failed_precondition(message)
            }
            PublishError::NoApiServer
            | PublishError::PodTrouble { .. }
            | PublishError::HandOver { .. }
            | PublishError::Waiting(_)
            | PublishError::Silent(_) => Self::unavailable(message),
            PublishError::Credentials(CredentialsError::Write(_)) | PublishError::Kernel { .. } => {
                Self::internal(message)
            }
            PublishError::Request(_) | PublishError::Credentials(_) => Self::invalid_argument(message),
            PublishError::Refused { refused, .. } => match refused.code {
                Code::BadOption | Code::BadPrefix | Code::BadBucket | Code::WrongRegion => {
                    Self::invalid_argument(message)
                }
                Code::NoSuchBucket => Self::not_found(message),
                Code::AccessDenied => Self::permission_denied(message),
                Code::WrongSecret | Code::UnknownKey | Code::ExpiredCredentials | Code::NoCredentials => {
                    Self::unauthenticated(message)
                }
                Code::EndpointUnreachable | Code::UnknownHost | Code::UntrustedCertificate | Code::Busy => {
                    Self::unavailable(message)
                }
                Code::TimedOut | Code::Late => Self::deadline_exceeded(message),
                Code::CacheNotWritable => Self::failed_precondition(message),
                Code::WrongPeer
                | Code::Garbled
                | Code::WrongVersion
                | Code::WrongDescriptor
                | Code::Failed => Self::internal(message),
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
