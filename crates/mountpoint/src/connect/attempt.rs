//! One attempt at the bucket, and a diagnosis if it takes long.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use mounter::deadlines::{DIAGNOSE_AFTER, DIAGNOSE_GRACE};
use mounter::handover::Refused;
use mountpoint_s3_client::error::{ListObjectsError, ObjectClientError};
use mountpoint_s3_client::{ObjectClient as _, S3CrtClient, S3RequestError};
use mountpoint_s3_fs::s3::S3Path;

use crate::diagnose::Route;

/// How often the answer and the diagnosis are checked while both are awaited.
const CHECK_EVERY: Duration = Duration::from_millis(20);

type Answer = Result<(), ObjectClientError<ListObjectsError, S3RequestError>>;

pub(super) enum Outcome {
    Answer(Answer),
    /// Why there is no answer.
    Diagnosis(Refused),
    Timeout,
}

/// One small listing; if that takes long, a diagnosis beside it.
pub(super) fn attempt(client: &S3CrtClient, path: &S3Path, route: Option<Route>, until: Instant) -> Outcome {
    let (listed, answers) = mpsc::channel();
    let (client, path) = (client.clone(), path.clone());
    // Once there is an outcome, the threads no longer have a receiver.
    thread::spawn(move || {
        let listing = client.list_objects(&path.bucket, None, "", 0, path.prefix.as_str());
        let _ = listed.send(futures::executor::block_on(listing).map(drop));
    });
    if let Ok(answer) = answers.recv_timeout(DIAGNOSE_AFTER) {
        return Outcome::Answer(answer);
    }
    let (diagnosed, findings) = mpsc::channel();
    if let Some(route) = route {
        thread::spawn(move || route.diagnose().map(|refused| diagnosed.send(refused)));
    }
    let mut diagnosis: Option<(Refused, Instant)> = None;
    while Instant::now() < until {
        match answers.recv_timeout(CHECK_EVERY) {
            Ok(answer) => return Outcome::Answer(answer),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        if let Ok(refused) = findings.try_recv() {
            diagnosis = Some((refused, Instant::now()));
        }
        match diagnosis {
            Some((refused, at)) if at.elapsed() >= DIAGNOSE_GRACE => return Outcome::Diagnosis(refused),
            _ => {}
        }
    }
    diagnosis.map_or(Outcome::Timeout, |(refused, _)| Outcome::Diagnosis(refused))
}
