//! The directory shared with a Mountpoint Pod, where its mounter listens for the hand-over.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use contract::names::comm_on_node;
use mounter::handover::client::listens;
use rustix::fs::{Mode, OFlags, inotify, openat};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use crate::mounts::NextChange;
use crate::safe_path::{Root, open_beneath};

/// Safety net for a mounter that starts to listen after its socket file appeared, which no event reports.
const RECHECK_EVERY: Duration = Duration::from_secs(1);
/// In bytes. An Event has room for 1,024.
const LONGEST_REASON: u64 = 800;

pub fn open(kubelet: &Root, pod_uid: &str) -> io::Result<OwnedFd> {
    kubelet.open_directory(&path(kubelet, pod_uid))
}

pub fn path(kubelet: &Root, pod_uid: &str) -> PathBuf {
    comm_on_node(kubelet.path(), pod_uid)
}

/// Waits until the mounter listens. The pod's phase would report it up to a second later.
pub async fn wait_for_mounter(kubelet: &Root, pod_uid: &str) -> io::Result<()> {
    let folder = path(kubelet, pod_uid);
    loop {
        // The kubelet mounts a tmpfs upon an existing directory, which inotify does not report.
        let mounts = NextChange::watch()?;
        // The number of inotify instances per user is limited; without one, polling takes up to a second longer.
        let nearest = watch_nearest(kubelet, &folder)
            .inspect_err(|error| tracing::debug!(%error, folder = %folder.display(), "cannot watch"))
            .ok();
        // After the watch is set up, so that a socket that appears in between is not missed.
        if listens(&folder) {
            return Ok(());
        }
        if nearest.as_ref().is_some_and(|(_, watched)| next_exists(watched, &folder)) {
            continue;
        }
        let changed = async {
            match &nearest {
                Some((changes, _)) => drop(changes.readable().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed => {}
            () = mounts.happened() => {}
            () = tokio::time::sleep(RECHECK_EVERY) => {}
        }
    }
}

/// Watches the directory, or the nearest ancestor that exists.
fn watch_nearest(kubelet: &Root, folder: &Path) -> io::Result<(AsyncFd<OwnedFd>, PathBuf)> {
    let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    let mask = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::ATTRIB;
    let mut watched = folder.to_owned();
    loop {
        match inotify::add_watch(&changes, &watched, mask) {
            Ok(_) => break,
            Err(Errno::NOENT) if watched.pop() && watched.starts_with(kubelet.path()) => {}
            Err(error) => return Err(error.into()),
        }
    }
    #[expect(deprecated, reason = "unsound only for types that do not own their descriptor; this one does")]
    let changes = AsyncFd::new(changes)?;
    Ok((changes, watched))
}

/// Whether the next directory on the way from `watched` to `folder` was created since.
fn next_exists(watched: &Path, folder: &Path) -> bool {
    let next = folder.strip_prefix(watched).ok().and_then(|rest| rest.iter().next());
    next.is_some_and(|name| watched.join(name).exists())
}

/// Why the temporary keys of the mount have expired, if they have, as the mount process reports it. The pod can put anything
/// there.
pub fn expired_keys(comm: &OwnedFd) -> Option<String> {
    let file = open_beneath(comm, Path::new(mounter::EXPIRED), OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
    let mut reason = Vec::new();
    File::from(file).take(LONGEST_REASON).read_to_end(&mut reason).ok()?;
    Some(String::from_utf8_lossy(&reason).replace(|c: char| c.is_control(), " "))
}

/// Makes the mounter take the end of its mount for a wanted one.
pub fn request_exit(comm: &OwnedFd) -> io::Result<()> {
    // Non-blocking: the pod can put a pipe without a reader there.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(openat(comm.as_fd(), mounter::EXIT, flags, Mode::from_raw_mode(0o640)).map(drop)?)
}
