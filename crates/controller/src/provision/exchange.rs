//! One signed request, one answer: within a time, and within what the controller's memory bears.

use std::io::Cursor;
use std::path::Path;
use std::time::Duration;

use http::{Method, Request};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use jiff::Timestamp;
use tokio::sync::{Semaphore, SemaphorePermit};
use url::Url;

use super::connection::Connections;
use super::credentials::Credentials;
use super::fault::{Call, Fault, Operation};
use super::kind::Kind;
use super::signing::{Unsigned, sign};
use crate::metrics::S3Calls;

/// csi-provisioner gives up after 10 s: the answer must be there before, so that it hears what is wrong.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
/// An error with its words.
const SMALL_ANSWER_BYTES: u32 = 64 << 10;
/// A list of a thousand keys of a kilobyte, each byte of which may be written as three, with what is said about them.
const LIST_ANSWER_BYTES: u32 = 4 << 20;
/// The same keys, each byte of which may be written as six.
const LIST_REQUEST_BYTES: u32 = 6 << 20;
/// Of all requests and answers that there are at once, whoever waits for them: a server that sends as much as it can must
/// not end the controller. A page that is read and taken apart takes about three times its size.
const ROOM_BYTES: u32 = 24 << 20;
pub(super) struct Exchange {
    connections: Connections,
    calls: S3Calls,
    /// In bytes.
    room: Semaphore,
}

/// A request that is not signed yet.
pub(super) struct Asked {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) body: String,
    /// Beside those of every request.
    pub(super) headers: Vec<(&'static str, String)>,
}

impl Asked {
    pub(super) fn new(method: Method, url: Url) -> Self {
        Self { method, url, body: String::new(), headers: Vec::new() }
    }
}

/// An answer, which takes room as long as it is there.
pub(super) struct Answer<'a> {
    pub(super) page: String,
    _room: SemaphorePermit<'a>,
}

impl Exchange {
    /// `authorities` replaces the system's.
    pub(super) fn new(authorities: Option<&Path>, calls: S3Calls) -> Self {
        let room = Semaphore::new(ROOM_BYTES as usize);
        Self { connections: Connections::new(authorities), calls, room }
    }

    /// `build` makes the request once there is room for it.
    pub(super) async fn ask(
        &self,
        call: &Call<'_>,
        credentials: &Credentials,
        build: impl FnOnce() -> Asked,
    ) -> Result<Answer<'_>, Fault> {
        let answered = async {
            let (request, answer) = sizes(call.operation);
            let room = self.room.acquire_many(request + answer).await.expect("it is never closed");
            let page = self.send(call, build(), credentials, answer as usize).await?;
            Ok(Answer { page, _room: room })
        };
        let outcome = match tokio::time::timeout(ANSWER_WITHIN, answered).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Fault::new(Kind::Late, call, format!("within {} s", ANSWER_WITHIN.as_secs()))),
        };
        self.calls.count(call.operation, &outcome);
        outcome
    }

    async fn send(
        &self,
        call: &Call<'_>,
        asked: Asked,
        credentials: &Credentials,
        largest: usize,
    ) -> Result<String, Fault> {
        let Asked { method, url, body, headers } = asked;
        let unsigned = Unsigned { method: &method, url: &url, payload: body.as_bytes(), headers: &headers };
        let headers = sign(&unsigned, &credentials.keys, call.region, Timestamp::now());
        let mut request = Request::builder().method(method).uri(url.as_str());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request
            .body(Full::new(Cursor::new(body.into_bytes())))
            .map_err(|error| Fault::new(Kind::BadName, call, error.to_string()))?;
        let answer = self.connections.client().request(request).await;
        let answer = answer.map_err(|error| Fault::of_connection(call, error.is_connect(), &error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), largest).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                Fault::new(Kind::Garbled, call, format!("more than {largest} bytes"))
            } else {
                Fault::of_connection(call, false, &*error)
            }
        })?;
        let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        if status.is_success() { Ok(body) } else { Err(Fault::of_answer(call, status.as_u16(), &body)) }
    }
}

/// The largest request and the largest answer.
fn sizes(operation: Operation) -> (u32, u32) {
    match operation {
        Operation::CreateBucket | Operation::DeleteBucket | Operation::AbortUpload => (0, SMALL_ANSWER_BYTES),
        Operation::ListObjects | Operation::ListUploads => (0, LIST_ANSWER_BYTES),
        Operation::DeleteObjects => (LIST_REQUEST_BYTES, LIST_ANSWER_BYTES),
    }
}
