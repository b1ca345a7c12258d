//! The directory shared with a Mountpoint Pod, where its mounter listens for the hand-over.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use contract::names::comm_on_node;
use contract::text::on_one_line;
use mounter::figures::{self, Figures};
use mounter::handover::client::listens;
use rustix::fs::{AtFlags, Mode, OFlags, inotify, openat, statat};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use tokio::io::unix::AsyncFd;

use crate::descriptors::MounterId;
use crate::mounts::NextChange;
use crate::safe_path::{Root, open_beneath};

/// Safety net for a mounter that starts to listen after its socket file appeared, which no event reports.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
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
            () = tokio::time::sleep(POLL_INTERVAL) => {}
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
    read_report(comm, mounter::EXPIRED).as_deref().map(on_one_line)
}

/// How many processes of the mount have died, and why the last one did, as the mounter reports it.
pub fn deaths(comm: &OwnedFd) -> Option<(u64, String)> {
    let report = read_report(comm, mounter::DEATHS)?;
    let (count, reason) = report.split_once('\n')?;
    Some((count.parse().ok()?, on_one_line(reason)))
}

/// Why the mount has ended, if that was because its mount process died, as the mounter reports it.
pub fn reason_of_end(comm: &OwnedFd) -> Option<String> {
    // After a death that another mount process follows, there is only the report of the death.
    open_beneath(comm, Path::new(mounter::ERROR), OFlags::PATH).ok()?;
    deaths(comm).map(|(_, reason)| reason)
}

/// What the mount process has counted, as it says.
pub fn figures(comm: &OwnedFd) -> Option<Figures> {
    // A longer file is cut off, which no file survives.
    Figures::parse(&read(comm, figures::FILE, figures::LARGEST_FILE)?)
}

fn read_report(comm: &OwnedFd, name: &str) -> Option<String> {
    let report = read(comm, name, LONGEST_REASON)?;
    Some(String::from_utf8_lossy(&report).into_owned())
}

/// Non-blocking: the pod can put a pipe there.
fn read(comm: &OwnedFd, name: &str, most_bytes: u64) -> Option<Vec<u8>> {
    let file = open_beneath(comm, Path::new(name), OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
    let mut content = Vec::new();
    File::from(file).take(most_bytes).read_to_end(&mut content).ok()?;
    Some(content)
}

/// Identifies the mounter that has listened there last, whether it still does or not.
pub fn mounter_of(kubelet: &Root, pod_uid: &str) -> Option<MounterId> {
    let comm = open(kubelet, pod_uid).ok()?;
    let socket = statat(&comm, mounter::SOCKET, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(MounterId(socket.st_ino))
}

/// The folder in which the pod keeps what a successor needs. Opened in a mount of its own: it stays when the pod's volume is
/// unmounted, and does not keep the kubelet from unmounting that.
pub fn successor_folder(comm: &OwnedFd) -> io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let copy = open_tree(comm.as_fd(), "", flags)?;
    open_beneath(&copy, Path::new(mounter::SURVIVAL), OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Whether a mount process of this pod can be followed by another: unless that is known to be impossible.
pub fn has_journal(comm: &OwnedFd) -> bool {
    let journal = Path::new(mounter::SURVIVAL).join(mounter::JOURNAL);
    !open_beneath(comm, &journal, OFlags::PATH).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Tells the mounter that the coming unmount is intentional.
pub fn request_exit(comm: &OwnedFd) -> io::Result<()> {
    // Non-blocking: the pod can put a pipe without a reader there.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(openat(comm.as_fd(), mounter::EXIT, flags, Mode::from_raw_mode(0o640)).map(drop)?)
}
