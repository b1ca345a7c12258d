//! Requests to the API server: how long they may take, and how they fail.

use std::time::Duration;

use thiserror::Error;

/// The API server answers in milliseconds; a connection that was cut without notice never does.
pub const API_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It exists already, or was written since.
    Conflict,
    NotFound,
    /// Permissions, a quota, an admission controller.
    Forbidden,
    /// Not acceptable as it is; also a JSON patch whose test fails, and the UID of another object.
    Invalid,
    /// Something is wrong with the server, or with a webhook that it asks.
    Internal,
    /// No answer.
    Unavailable,
}

#[derive(Debug, Error)]
#[error("{message}")]
pub struct Failure {
    pub cause: Cause,
    pub message: String,
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        let kube::Error::Api(status) = error else {
            return Self { cause: Cause::Unavailable, message: error.to_string() };
        };
        let cause = if status.is_conflict() || status.is_already_exists() {
            Cause::Conflict
        } else if status.is_not_found() {
            Cause::NotFound
        } else if status.is_forbidden() || status.code == 400 {
            // Webhooks choose the code.
            Cause::Forbidden
        } else if status.is_invalid() {
            Cause::Invalid
        } else {
            Cause::Internal
        };
        Self { cause, message: status.message }
    }
}

pub async fn answer<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    let late = || Failure { cause: Cause::Unavailable, message: format!("no answer within {API_TIMEOUT:?}") };
    Ok(tokio::time::timeout(API_TIMEOUT, request).await.map_err(|_| late())??)
}
