//! The end of a multipart upload: its parts become the object. A mount process that dies meanwhile has sent everything, perhaps,
//! and its successor looks what the server has.

pub(crate) mod answer;

use std::thread;
use std::time::Duration;

use futures::channel::oneshot;
use mountpoint_s3_client::types::ETag;
use mountpoint_s3_crt::http::request_response::Headers;
use thiserror::Error;

use crate::journal::{Completion, Version};
use crate::put::IF_NONE_MATCH;
use crate::raw_client::{RawClient, RawError, Request, Response, bodyless};
use crate::server_timeout::ServerTimedOut;
use answer::{Listed, whole};

pub(crate) use answer::{Part, Unreadable};

const FORBIDDEN: i32 = 403;
pub(crate) const NOT_FOUND: i32 = 404;
pub(crate) const PRECONDITION_FAILED: i32 = 412;

/// How often to look for the parts of a process that died. What it had handed to the kernel is still sent, a few megabytes at
/// most.
const LOOKS: u32 = 4;
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The object that an upload has become.
#[derive(Debug)]
pub(crate) struct Completed {
    pub(crate) etag: ETag,
    pub(crate) encryption: Option<String>,
    pub(crate) kms_key: Option<String>,
}

#[derive(Debug, Error)]
pub(crate) enum CompletionError {
    #[error("the object was replaced or deleted meanwhile")]
    Replaced,
    #[error("the server has {has} of its {length} bytes")]
    Incomplete { has: u64, length: u64 },
    #[error("the S3 server does not list its parts: allow `s3:ListMultipartUploadParts`: {0}")]
    CannotList(RawError),
    #[error("the S3 server does not confirm the encryption; remove the mount option `sse`")]
    Unencrypted,
    /// The request itself, not one that looks what the server has.
    #[error(transparent)]
    Refused(RawError),
    #[error(transparent)]
    Request(#[from] RawError),
    #[error(transparent)]
    Answer(#[from] Unreadable),
    #[error(transparent)]
    TimedOut(#[from] ServerTimedOut),
}

impl CompletionError {
    /// Whether another attempt would fail, too.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Replaced | Self::Incomplete { .. } | Self::CannotList(_) | Self::Unencrypted => true,
            Self::Refused(_) | Self::Request(_) | Self::Answer(_) | Self::TimedOut(_) => false,
        }
    }
}

impl Completion {
    /// Makes these parts the object.
    pub(crate) async fn complete(
        &self,
        raw: &RawClient,
        parts: &[Part],
    ) -> Result<Completed, CompletionError> {
        let if_none_match = self.terms.creates.then(|| (IF_NONE_MATCH, "*".to_owned()));
        let if_match = self.terms.replaces.clone().map(|etag| ("If-Match", etag));
        let request = Request {
            method: "POST",
            operation: "CompleteMultipartUpload",
            path: self.upload.clone(),
            headers: if_none_match.into_iter().chain(if_match).collect(),
            body: answer::parts(parts, self.terms.checksums).into_bytes(),
        };
        match raw.send(request)?.await {
            // The S3 client repeats a request whose answer was lost, and the server refuses the second one because of the first.
            Err(RawError::Refused { status: PRECONDITION_FAILED | NOT_FOUND, .. }) => {
                match self.list(raw).await? {
                    Some(_) => Err(CompletionError::Replaced),
                    None => self.completed_before(raw).await,
                }
            }
            Err(error @ RawError::Refused { .. }) => Err(CompletionError::Refused(error)),
            answer => {
                let Response { headers, body } = answer?;
                Ok(completed(answer::completed(&body)?, &headers))
            }
        }
    }

    /// Completes what a mount process was completing when it died.
    pub(crate) async fn finish(&self, raw: &RawClient) -> Result<Completed, CompletionError> {
        let mut has = 0;
        for look in 0..LOOKS {
            if look > 0 {
                pause(LOOK_EVERY).await;
            }
            let Some(listed) = self.list(raw).await? else { return self.completed_before(raw).await };
            match whole(listed, self.length) {
                Ok(parts) => return self.complete(raw, &parts).await,
                Err(so_far) => has = so_far,
            }
        }
        Err(CompletionError::Incomplete { has, length: self.length })
    }

    /// The parts that the server has. An upload that is complete is no longer there.
    async fn list(&self, raw: &RawClient) -> Result<Option<Vec<Listed>>, CompletionError> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let marker = after.map_or_else(String::new, |part: u64| format!("&part-number-marker={part}"));
            let request = bodyless("GET", "ListParts", format!("{}{marker}", self.upload));
            let page = match raw.send(request)?.await {
                Err(RawError::Refused { status: NOT_FOUND, .. }) => return Ok(None),
                Err(error @ RawError::Refused { status: FORBIDDEN, .. }) => {
                    return Err(CompletionError::CannotList(error));
                }
                answer => answer::listed(&answer?.body, self.terms.checksums)?,
            };
            let last = page.parts.iter().map(|part| part.number).max();
            all.extend(page.parts);
            match last {
                Some(last) if page.is_truncated && Some(last) > after => after = Some(last),
                _ => return Ok(Some(all)),
            }
        }
    }

    /// The object, if it is what the upload has become, which is no longer there.
    async fn completed_before(&self, raw: &RawClient) -> Result<Completed, CompletionError> {
        let object = self.upload.split_once('?').map_or(&*self.upload, |(object, _)| object);
        match raw.send(bodyless("HEAD", "HeadObject", object.to_owned()))?.await {
            Ok(Response { headers, .. }) if answer::length(&headers) == Some(self.length) => {
                let etag = answer::etag(&headers)?;
                if Version::of(Some(&etag)) == self.before {
                    return Err(CompletionError::Replaced);
                }
                Ok(completed(etag, &headers))
            }
            Ok(_) | Err(RawError::Refused { status: NOT_FOUND, .. }) => Err(CompletionError::Replaced),
            Err(error) => Err(error.into()),
        }
    }
}

fn completed(etag: String, headers: &Headers) -> Completed {
    Completed {
        etag: etag.into(),
        encryption: answer::header(headers, "x-amz-server-side-encryption"),
        kms_key: answer::header(headers, "x-amz-server-side-encryption-aws-kms-key-id"),
    }
}

/// On a thread of its own, because nothing else wakes what waits, and this is rare.
async fn pause(time: Duration) {
    let (end, ended) = oneshot::channel::<()>();
    let wait = move || {
        thread::sleep(time);
        drop(end);
    };
    if thread::Builder::new().name("look-again".to_owned()).spawn(wait).is_ok() {
        let _ = ended.await;
    }
}
