//! Why a request fails, and the error that the program gets.

use mountpoint_s3_fs::fs::{Error, ToErrno as _};
use rustix::io::Errno;
use thiserror::Error;

use crate::completion::CompletionError;
use crate::server_timeout::ServerTimedOut;

#[derive(Debug, Error)]
pub(super) enum Failure {
    #[error("{0:#}")]
    Library(Box<Error>),
    #[error("the file is not open for this")]
    BadHandle,
    #[error("a write at byte {offset} of a file of {length} bytes: files are written from beginning to end")]
    OutOfOrder { offset: i64, length: u64 },
    #[error("cannot change the length of a file from {from} to {to} bytes: objects are written as a whole")]
    Truncation { from: u64, to: u64 },
    #[error("cannot continue the file: its first {length} bytes cannot be read back: {reason}")]
    ReadBack { length: u64, reason: String },
    #[error("cannot keep what was written: {0}")]
    Spool(String),
    #[error(
        "the mount process died while it completed the upload of this file, which cannot be completed: {0}"
    )]
    Completion(#[from] CompletionError),
    #[error("cannot look the object up: {0}")]
    Server(String),
    #[error(transparent)]
    TimedOut(#[from] ServerTimedOut),
    #[error("the object was replaced or deleted while the file was open")]
    Replaced,
    #[error(
        "the mount process died with bytes of this file that were not uploaded yet: write the file again"
    )]
    Lost,
    #[error(
        "the file cannot be continued, because what it had so far could not be written again: write the file again"
    )]
    Aborted,
    #[error("request refused: {deaths} mount processes died while handling it")]
    Deadly { deaths: u32 },
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(Box::new(error))
    }
}

impl Failure {
    pub(super) fn errno(&self) -> i32 {
        let errno = match self {
            Self::Library(error) => return error.to_errno(),
            Self::BadHandle => Errno::BADF,
            Self::OutOfOrder { .. } => Errno::INVAL,
            Self::Truncation { .. } => Errno::PERM,
            Self::Replaced | Self::Completion(CompletionError::Replaced) => Errno::STALE,
            Self::ReadBack { .. }
            | Self::Spool(_)
            | Self::Server(_)
            | Self::Completion(_)
            | Self::TimedOut(_)
            | Self::Lost
            | Self::Aborted
            | Self::Deadly { .. } => Errno::IO,
        };
        errno.raw_os_error()
    }
}
