//! A request that is under way, and its result.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::channel::oneshot;
use mountpoint_s3_client::OnTelemetry as _;
use mountpoint_s3_crt::common::error::Error as CrtError;
use mountpoint_s3_crt::http::request_response::Headers;
use mountpoint_s3_crt::s3::client::{Client, MetaRequest, MetaRequestOptions, MetaRequestResult};
use parking_lot::Mutex;

use super::failure::RawError;
use crate::telemetry::Telemetry;

/// Bytes of a response that are kept: more than any answer to these requests has. A page of parts has a thousand.
const MOST_BODY: usize = 512 * 1024;

pub(crate) struct Response {
    pub(crate) headers: Headers,
    pub(crate) body: String,
}

#[derive(Debug, Default)]
struct Received {
    headers: Option<Headers>,
    body: Vec<u8>,
}

/// A request that is under way. Dropped, it is cancelled.
#[derive(Debug)]
pub(crate) struct Sending {
    /// `None` if it goes on without this.
    request: Option<MetaRequest>,
    received: Arc<Mutex<Received>>,
    result: oneshot::Receiver<MetaRequestResult>,
}

impl Future for Sending {
    type Output = Result<Response, RawError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(result) = self.result.poll_unpin(context) else { return Poll::Pending };
        let result = result.map_err(|_| RawError::Dropped)?;
        if !result.is_err() {
            let Received { headers, body } = std::mem::take(&mut *self.received.lock());
            let body = String::from_utf8_lossy(&body).into_owned();
            return Poll::Ready(headers.map(|headers| Response { headers, body }).ok_or(RawError::Dropped));
        }
        let body = result.error_response_body.unwrap_or_default().to_string_lossy().into_owned();
        Poll::Ready(Err(match result.response_status {
            0 => result.crt_error.into(),
            status => RawError::Refused { status, body },
        }))
    }
}

impl Sending {
    pub(super) fn begin(
        client: &Client,
        mut options: MetaRequestOptions,
        telemetry: Arc<Telemetry>,
    ) -> Result<Self, CrtError> {
        let received = Arc::<Mutex<Received>>::default();
        let (of_headers, of_body) = (Arc::clone(&received), Arc::clone(&received));
        let (sender, result) = oneshot::channel();
        options
            .on_telemetry(move |attempt| telemetry.on_telemetry(attempt))
            .on_headers(move |headers, _| of_headers.lock().headers = Some(headers.clone()))
            .on_body(move |_, part| {
                let body = &mut of_body.lock().body;
                body.extend_from_slice(&part[..part.len().min(MOST_BODY.saturating_sub(body.len()))]);
            })
            .on_finish(move |result| {
                // There is no longer a receiver if the request was cancelled.
                let _ = sender.send(result);
            });
        let request = Some(client.make_meta_request(options)?);
        Ok(Self { request, received, result })
    }

    /// It goes on, and its result does not matter.
    pub(crate) fn detach(mut self) {
        self.request = None;
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(request) = &self.request {
            request.cancel();
        }
    }
}
