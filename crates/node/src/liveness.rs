//! Whether a mount process answers for its mount. A dead or stuck one can block whatever touches the mount in the kernel,
//! so each check is a thread of its own that may be left behind.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mounter::deadlines::CHECK;
use parking_lot::Mutex;
use rustix::io::Errno;

/// A mount process that has not answered for this long is stuck, whatever its S3 server does: it is replaced.
pub const REPLACED_AFTER: Duration = Duration::from_mins(1);
/// How often to check whether another check of the same mount has ended, which is usually a matter of milliseconds.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// `f_type` of a FUSE file system.
const FUSE: rustix::fs::FsWord = 0x6573_5546;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Liveness {
    Alive,
    /// No FUSE file system is mounted there.
    NotMounted,
    /// The mount process is gone; holds the kernel's error.
    Dead(String),
    /// The mount process did not answer in time.
    Unresponsive,
}

/// Checks mounts, with at most one thread per mount: checks of a stuck one must not pile up.
#[derive(Clone, Debug, Default)]
pub struct LivenessProbe(Arc<Mutex<HashSet<PathBuf>>>);

impl LivenessProbe {
    pub async fn check(&self, path: &Path) -> Liveness {
        let until = Instant::now() + CHECK;
        while !self.0.lock().insert(path.to_owned()) {
            if Instant::now() > until {
                return Liveness::Unresponsive;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let (probe, checked) = (self.clone(), path.to_owned());
        let spawned = std::thread::Builder::new().name("liveness".to_owned()).spawn(move || {
            let answer = rustix::fs::statfs(&checked);
            probe.0.lock().remove(&checked);
            let _ = sender.send(answer.map(|about| about.f_type == FUSE));
        });
        // Without a thread nothing is known; of the answers, this one has the fewest consequences.
        if spawned.is_err() {
            self.0.lock().remove(path);
            return Liveness::Unresponsive;
        }
        match tokio::time::timeout_at(until.into(), receiver).await {
            Ok(Ok(Ok(true))) => Liveness::Alive,
            Ok(Ok(Err(error @ (Errno::NOTCONN | Errno::CONNABORTED | Errno::IO)))) => {
                Liveness::Dead(error.to_string())
            }
            Ok(Ok(Ok(false) | Err(_))) => Liveness::NotMounted,
            Ok(Err(_)) | Err(_) => Liveness::Unresponsive,
        }
    }
}
