//! Whether a Mountpoint Pod serves a mount. Two mount processes must never serve one, so that a pod that does not answer is a
//! case of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use contract::mountpoint_pod::MountpointPod;
use mounter::deadlines;

use crate::context::Context;
use crate::mounter_client::{self, MounterError};

/// Between two requests to a mounter that is starting its mount process, which takes up to nine seconds.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serves {
    Yes,
    No,
    /// It may be starting.
    Unknown,
}

pub(super) async fn serves(context: &Context, pod: &MountpointPod) -> Serves {
    match mounter_client::fetch(&context.kubelet, &pod.uid).await {
        Ok(fetched) if fetched.is_served => Serves::Yes,
        Ok(_) => Serves::No,
        Err(error) if error.has_ended() => Serves::No,
        Err(error @ MounterError::Refused(_)) if !error.is_busy() => Serves::No,
        Err(_) => Serves::Unknown,
    }
}

/// As long as a mounter may take to give up a mount process that does not report.
pub(super) async fn wait_until_known(context: &Context, pod: &MountpointPod) -> Serves {
    let until = Instant::now() + deadlines::HAND_OVER;
    loop {
        match serves(context, pod).await {
            Serves::Unknown if Instant::now() < until => tokio::time::sleep(POLL_INTERVAL).await,
            known => return known,
        }
    }
}

/// The same of the Mountpoint Pod with this source. One that is gone serves nothing.
pub(super) async fn wait_until_known_at(context: &Context, source: &Path) -> Serves {
    match source.file_name().and_then(|name| context.cache.pod(name.to_str()?)) {
        Some(pod) => wait_until_known(context, &pod).await,
        None => Serves::No,
    }
}
