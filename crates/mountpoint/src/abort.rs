//! Aborts the multipart uploads that a mount process has left on the server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use futures::executor::block_on;
use thiserror::Error;

use crate::client::Client;
use crate::multipart::Unfinished;
use crate::raw_client::{ABORT, RawError, bodyless};
use crate::server_timeout::{Awaited, ServerTimedOut};

/// Programs are waiting until this process serves, which needs the processor first.
const BEGIN_AFTER: Duration = Duration::from_secs(1);
const NOT_FOUND: i32 = 404;

#[derive(Debug, Error)]
enum AbortError {
    #[error(transparent)]
    Request(#[from] RawError),
    #[error(transparent)]
    TimedOut(#[from] ServerTimedOut),
}

/// On a thread of its own: the server may be slow, and programs do not wait for it. What fails is tried again by the next
/// mount process.
pub(crate) fn abort_all(
    client: Client,
    uploads: BTreeSet<String>,
    unfinished: Arc<Unfinished>,
) -> io::Result<()> {
    let abort_all = move || {
        thread::sleep(BEGIN_AFTER);
        for upload in uploads {
            match block_on(abort(&client, &upload)) {
                Ok(()) => {
                    tracing::info!(upload, "aborted the upload of a mount process that died");
                    unfinished.ended(&upload);
                }
                Err(error) => tracing::warn!(%error, upload, "cannot abort an unfinished upload"),
            }
        }
    };
    thread::Builder::new().name("abort-uploads".to_owned()).spawn(abort_all).map(drop)
}

async fn abort(client: &Client, upload: &str) -> Result<(), AbortError> {
    let sending = client.raw()?.send(bodyless("DELETE", ABORT, upload.to_owned()))?;
    match client.timeout().limit(Awaited::Answer, sending).await? {
        Ok(_) | Err(RawError::Refused { status: NOT_FOUND, .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
