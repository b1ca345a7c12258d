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
use super::error::{Call, ErrorKind, S3Error};
use super::proxy::ProxyFlags;
use super::signing::{Unsigned, sign};
use crate::provision::metrics::{ProvisioningMetrics, S3Calls};

/// Creating a bucket is one request, and deleting an empty one is another.
const S3_TIMEOUT: Duration = Duration::from_secs(8);
/// csi-provisioner cancels a call after this long, and its claim should get the error before that.
const CSI_CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// There is memory for as many light requests as are usually under way.
const LIGHT_WITHIN: Duration = Duration::from_secs(1);
const _: () = assert!(LIGHT_WITHIN.as_secs() + S3_TIMEOUT.as_secs() < CSI_CALL_TIMEOUT.as_secs());
/// Other requests give their memory back within this, unless the server is slow. Only deletions wait so long, and a
/// csi-provisioner that cancels one calls again, which goes on.
const HEAVY_WITHIN: Duration = Duration::from_secs(8);
/// An error with its message.
const SMALL_ANSWER_BYTES: u32 = 64 << 10;
/// A list of a thousand keys of a kilobyte, each byte of which may be written as three, with their metadata.
const LIST_ANSWER_BYTES: u32 = 4 << 20;
/// The same keys, each byte of which may be written as six.
const LIST_REQUEST_BYTES: u32 = 6 << 20;
/// For all lists and batches at once: a server that sends as much as it can must not get the controller OOM-killed. A page
/// takes about three times its size while it is parsed.
const HEAVY_BYTES: u32 = 24 << 20;
/// For all other requests at once, of which each worker has one, and csi-provisioner as many again: they do not wait for
/// lists, so that claims do not wait for deletions.
const LIGHT_BYTES: u32 = 4 << 20;

/// How much memory a request may take, and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    Light,
    List,
    Batch,
}

impl Weight {
    /// The largest request and the largest answer.
    fn sizes(self) -> (u32, u32) {
        match self {
            Self::Light => (0, SMALL_ANSWER_BYTES),
            Self::List => (0, LIST_ANSWER_BYTES),
            Self::Batch => (LIST_REQUEST_BYTES, LIST_ANSWER_BYTES),
        }
    }
}

pub(super) struct Transport {
    connections: Connections,
    calls: S3Calls,
    /// In bytes, as the other one.
    light: Semaphore,
    heavy: Semaphore,
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
        let [light, heavy] = [LIGHT_BYTES, HEAVY_BYTES].map(|bytes| Semaphore::new(bytes as usize));
        let connections = Connections::new(ca_bundle, proxy, metrics.certificate_expiry.clone());
        Self { connections, calls: metrics.s3_calls.clone(), light, heavy }
    }

    /// `build` is called once there is memory for the request.
    pub(super) async fn send(
        &self,
        call: &Call<'_>,
        keys: &Keys,
        weight: Weight,
        build: impl FnOnce() -> S3Request,
    ) -> Result<S3Response<'_>, S3Error> {
        let (request, answer) = weight.sizes();
        let (budget, within) = match weight {
            Weight::Light => (&self.light, LIGHT_WITHIN),
            Weight::List | Weight::Batch => (&self.heavy, HEAVY_WITHIN),
        };
        let memory = memory_for(budget, call, request + answer, within).await?;
        let exchange = self.exchange(call, build(), keys, answer as usize);
        let outcome = tokio::time::timeout(S3_TIMEOUT, exchange)
            .await
            .unwrap_or_else(|_| Err(late(ErrorKind::Timeout, call, S3_TIMEOUT)));
        self.calls.count(call.operation.into(), outcome.is_ok());
        Ok(S3Response { body: outcome?, _memory: memory })
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

async fn memory_for<'a>(
    budget: &'a Semaphore,
    call: &Call<'_>,
    bytes: u32,
    within: Duration,
) -> Result<SemaphorePermit<'a>, S3Error> {
    match tokio::time::timeout(within, budget.acquire_many(bytes)).await {
        Ok(memory) => Ok(memory.expect("the semaphore is never closed")),
        Err(_) => Err(late(ErrorKind::NotSent, call, within)),
    }
}

fn late(kind: ErrorKind, call: &Call<'_>, within: Duration) -> S3Error {
    S3Error::new(kind, call, format!("within {} s", within.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provision::s3::error::Operation;
    use std::borrow::Cow;

    #[tokio::test]
    async fn a_request_that_gets_no_memory_was_not_sent() {
        let budget = Semaphore::new(100);
        let endpoint = Cow::Borrowed("http://s3.test");
        let call = Call { operation: Operation::CreateBucket, bucket: "csi-s3-1", endpoint, region: "eu" };
        let others = memory_for(&budget, &call, 100, Duration::ZERO).await.unwrap();
        let error = memory_for(&budget, &call, 1, Duration::from_millis(1)).await.err().unwrap();
        assert_eq!((error.kind, error.is_ambiguous()), (ErrorKind::NotSent, false));
        drop(others);
        assert!(memory_for(&budget, &call, 1, Duration::ZERO).await.is_ok());
    }
}
