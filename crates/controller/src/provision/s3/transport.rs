//! Sends one signed request and reads the response, within a deadline and a memory budget.

use std::io::Cursor;
use std::path::Path;
use std::time::Duration;

use contract::keys::Keys;
use contract::s3::S3Failure;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use jiff::Timestamp;
use tokio::sync::{Semaphore, SemaphorePermit};
use url::Url;

use super::connection::Connections;
use super::error::{Call, ErrorKind, Operation, S3Error};
use super::proxy::ProxyFlags;
use super::signing::{Unsigned, sign};
use crate::provision::metrics::{ProvisioningMetrics, S3Calls};

/// csi-provisioner cancels a call after 10 s; it must get the error before that.
const S3_TIMEOUT: Duration = Duration::from_secs(8);
/// Other requests give their memory back within this, unless the server is slow. Nothing is sent before.
const MEMORY_WITHIN: Duration = Duration::from_secs(8);
/// An error with its message.
const SMALL_ANSWER_BYTES: u32 = 64 << 10;
/// A list of a thousand keys of a kilobyte, each byte of which may be written as three, with their metadata.
const LIST_ANSWER_BYTES: u32 = 4 << 20;
/// The same keys, each byte of which may be written as six.
const LIST_REQUEST_BYTES: u32 = 6 << 20;
/// For all requests and responses at once: a server that sends as much as it can must not get the controller OOM-killed. A
/// page takes about three times its size while it is parsed.
const MEMORY_BYTES: u32 = 24 << 20;
pub(super) struct Transport {
    connections: Connections,
    calls: S3Calls,
    /// In bytes.
    memory: Semaphore,
}

/// A request before it is signed.
pub(super) struct S3Request {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) body: String,
    /// In addition to those of every request.
    pub(super) headers: Vec<(&'static str, String)>,
}

impl S3Request {
    pub(super) fn new(method: Method, url: Url) -> Self {
        Self { method, url, body: String::new(), headers: Vec::new() }
    }
}

/// Holds its share of the memory budget until it is dropped.
pub(super) struct S3Response<'a> {
    pub(super) body: String,
    _memory: SemaphorePermit<'a>,
}

impl Transport {
    /// `ca_bundle` replaces the system's CAs.
    pub(super) fn new(ca_bundle: Option<&Path>, proxy: &ProxyFlags, metrics: &ProvisioningMetrics) -> Self {
        let memory = Semaphore::new(MEMORY_BYTES as usize);
        let connections = Connections::new(ca_bundle, proxy, metrics.certificate_expiry.clone());
        Self { connections, calls: metrics.s3_calls.clone(), memory }
    }

    /// `build` is called once there is memory for the request.
    pub(super) async fn send(
        &self,
        call: &Call<'_>,
        keys: &Keys,
        build: impl FnOnce() -> S3Request,
    ) -> Result<S3Response<'_>, S3Error> {
        let (request, answer) = sizes(call.operation);
        let memory = self.memory_for(call, request + answer, MEMORY_WITHIN).await?;
        let exchange = self.exchange(call, build(), keys, answer as usize);
        let outcome = tokio::time::timeout(S3_TIMEOUT, exchange)
            .await
            .unwrap_or_else(|_| Err(late(ErrorKind::Timeout, call, S3_TIMEOUT)));
        self.calls.count(call.operation.into(), outcome.is_ok());
        Ok(S3Response { body: outcome?, _memory: memory })
    }

    async fn memory_for(
        &self,
        call: &Call<'_>,
        bytes: u32,
        within: Duration,
    ) -> Result<SemaphorePermit<'_>, S3Error> {
        match tokio::time::timeout(within, self.memory.acquire_many(bytes)).await {
            Ok(memory) => Ok(memory.expect("the semaphore is never closed")),
            Err(_) => Err(late(ErrorKind::NotSent, call, within)),
        }
    }

    async fn exchange(
        &self,
        call: &Call<'_>,
        request: S3Request,
        keys: &Keys,
        largest: usize,
    ) -> Result<String, S3Error> {
        let S3Request { method, url, body, headers } = request;
        let unsigned = Unsigned { method: &method, url: &url, payload: body.as_bytes(), headers: &headers };
        let headers = sign(&unsigned, keys, call.region, Timestamp::now());
        let mut request = Request::builder().method(method).uri(url.as_str());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request
            .body(Full::new(Cursor::new(body.into_bytes())))
            .map_err(|error| S3Error::answered(S3Failure::InvalidBucketName, call, error.to_string()))?;
        let answer = self.connections.client().request(request).await;
        let answer = answer.map_err(|error| S3Error::of_connection(call, error.is_connect(), &error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), largest).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                S3Error::new(ErrorKind::InvalidResponse, call, format!("more than {largest} bytes"))
            } else {
                S3Error::of_connection(call, false, &*error)
            }
        })?;
        let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        if status.is_success() { Ok(body) } else { Err(S3Error::of_response(call, status.as_u16(), &body)) }
    }
}

fn late(kind: ErrorKind, call: &Call<'_>, within: Duration) -> S3Error {
    S3Error::new(kind, call, format!("within {} s", within.as_secs()))
}

/// The largest request and the largest answer.
fn sizes(operation: Operation) -> (u32, u32) {
    match operation {
        Operation::CreateBucket | Operation::DeleteBucket | Operation::AbortUpload => (0, SMALL_ANSWER_BYTES),
        Operation::ListObjects | Operation::ListUploads => (0, LIST_ANSWER_BYTES),
        Operation::DeleteObjects => (LIST_REQUEST_BYTES, LIST_ANSWER_BYTES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;

    #[tokio::test]
    async fn a_request_that_gets_no_memory_was_not_sent() {
        let transport = Transport::new(None, &ProxyFlags::default(), &ProvisioningMetrics::default());
        let endpoint = Cow::Borrowed("http://s3.test");
        let call = Call { operation: Operation::CreateBucket, bucket: "csi-s3-1", endpoint, region: "eu" };
        let others = transport.memory_for(&call, MEMORY_BYTES, Duration::ZERO).await.unwrap();
        let error = transport.memory_for(&call, 1, Duration::from_millis(1)).await.err().unwrap();
        assert_eq!((error.kind, error.is_ambiguous()), (ErrorKind::NotSent, false));
        drop(others);
        assert!(transport.memory_for(&call, 1, Duration::ZERO).await.is_ok());
    }
}
