//! The folder shared with a Mountpoint Pod, and the moment its mounter listens there.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use contract::names::comm_on_node;
use mounter::channel::listens;
use rustix::fs::{Mode, OFlags, inotify, openat};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use crate::mounts::NextChange;
use crate::place::Root;

/// The kernel tells of every change; this is for one that it forgot, or for a mounter that listens after its file is there.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Of the pod with this UID, once kubelet has made it.
pub fn open(kubelet: &Root, pod_uid: &str) -> io::Result<OwnedFd> {
    kubelet.folder(&path(kubelet, pod_uid))
}

pub fn path(kubelet: &Root, pod_uid: &str) -> PathBuf {
    comm_on_node(kubelet.path(), pod_uid)
}

/// Waits until somebody listens. The pod's phase would tell it up to a second later.
pub async fn listening(kubelet: &Root, pod_uid: &str) -> io::Result<()> {
    let folder = path(kubelet, pod_uid);
    loop {
        // kubelet mounts the folder's memory upon a folder that is there already, of which inotify does not tell.
        let mounts = NextChange::watch()?;
        // There are only so many of them for all programs of a user: without one, it takes a second longer.
        let nearest = watch_nearest(kubelet, &folder)
            .inspect_err(|error| tracing::debug!(%error, folder = %folder.display(), "not watched"))
            .ok();
        // After the watch: what appeared in between is not missed.
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
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
    }
}

/// What is not there yet appears in the nearest folder that is.
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

/// Whether the folder below `watched` on the way to `folder` has come into being since.
fn next_exists(watched: &Path, folder: &Path) -> bool {
    let next = folder.strip_prefix(watched).ok().and_then(|rest| rest.iter().next());
    next.is_some_and(|name| watched.join(name).exists())
}

/// Tells the mounter that its end is wanted.
pub fn ask_to_exit(comm: &OwnedFd) -> io::Result<()> {
    // Not blocking: the pod can put a pipe there that nobody reads.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(openat(comm.as_fd(), mounter::EXIT, flags, Mode::from_raw_mode(0o640)).map(drop)?)
}
