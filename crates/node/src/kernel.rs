//! The only file that mounts and unmounts. Nothing here waits for a server: what touches a served path does so on a
//! thread that may be left behind.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mounter::channel::open_fuse;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, mount_remount, unmount,
};

use crate::mount_table::{DEVICE, Mount};
use crate::mounts::Mounts;
use crate::place::Place;

/// A living server answers in milliseconds, a busy one in a second.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
const ASK_AGAIN: Duration = Duration::from_millis(10);
/// What the kernel reads ahead on a bucket, in KiB. Its default of 128 makes eight times as many requests of a large
/// read; more than this lets requests overtake each other, which the mount process takes for random reads.
const READ_AHEAD_KIB: &str = "512";
/// More upon each other than this is nobody's work.
const DEEPEST: usize = 64;
/// How the kernel marks what it reaches through FUSE.
const FUSE: rustix::fs::FsWord = 0x6573_5546;
const COMMON: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOATIME);

/// Whether somebody answers for a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pulse {
    Alive,
    /// Nothing is mounted that anybody would have to answer for.
    Nobody,
    /// Its server is gone.
    Dead(String),
    /// Its server is there and does not answer.
    Silent,
}

/// Mounts the FUSE device; its descriptor is for whoever serves it.
pub fn mount_source(place: &Place, read_only: bool) -> io::Result<OwnedFd> {
    let device = open_fuse()?;
    // Every user may come in as far as the modes allow; the mount process lets only root in unless told otherwise.
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
        device.as_raw_fd()
    );
    let options = CString::new(options).map_err(io::Error::other)?;
    let mut flags = COMMON;
    flags.set(MountFlags::RDONLY, read_only);
    mount(DEVICE, place.path(), "fuse", flags, options.as_c_str())?;
    Ok(device.into())
}

/// The same file system at another place, upon whatever is mounted there.
pub fn bind(source: &Place, target: &Place, read_only: bool) -> io::Result<()> {
    // All binds of a shared mount are one group, and what is mounted upon one of them appears upon all: a mount that heals
    // one workload would cover its neighbour's as well, which may be read-only.
    mount_change(source.path(), MountPropagationFlags::PRIVATE)?;
    if !read_only {
        return Ok(mount_bind(source.path(), target.path())?);
    }
    // A bind has the flags of what is bound, and only a second call can change them: running containers would get the
    // first. So a copy is made read-only upon the source, where nobody gets it, and bound from there.
    mount_bind(source.path(), source.path())?;
    let flags = COMMON | MountFlags::BIND | MountFlags::RDONLY;
    let bound =
        mount_remount(source.path(), flags, c"").and_then(|()| mount_bind(source.path(), target.path()));
    detach(source)?;
    Ok(bound?)
}

/// Covers the bare folder of a target: whoever is led there while no bucket is mounted, as root too, is refused instead of
/// writing onto the node's disk. Unlike a flag of the folder, it ends with an unmount, and needs nothing of the disk's
/// file system.
pub fn seal(target: &Place) -> io::Result<()> {
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount(DEVICE, target.path(), "tmpfs", flags, c"mode=0555,size=4k,nr_inodes=1")?)
}

/// Takes away what is on top. Nothing there is as good.
pub fn unmount_top(place: &Place) -> io::Result<()> {
    forgiving(unmount(place.path(), UnmountFlags::NOFOLLOW))
}

/// The same without waiting for whoever still uses it: they keep it, and it ends with the last of them.
pub fn detach(place: &Place) -> io::Result<()> {
    forgiving(unmount(place.path(), UnmountFlags::NOFOLLOW | UnmountFlags::DETACH))
}

/// Takes away whatever is mounted there, one upon the other; says whether anything was. Whoever still uses it keeps it.
pub fn clear(mounts: &Mounts, place: &Place, path: &Path) -> io::Result<bool> {
    clear_while(mounts, place, path, |_| true)
}

/// The same for buckets only: the folder stays sealed.
pub fn clear_buckets(mounts: &Mounts, place: &Place, path: &Path) -> io::Result<bool> {
    clear_while(mounts, place, path, |top| top.bucket)
}

fn clear_while(
    mounts: &Mounts,
    place: &Place,
    path: &Path,
    wanted: impl Fn(&Mount) -> bool,
) -> io::Result<bool> {
    for taken in 0..DEEPEST {
        if !mounts.table()?.top(path).is_some_and(&wanted) {
            return Ok(taken > 0);
        }
        if let Err(error) = unmount_top(place) {
            tracing::debug!(%error, path = %path.display(), "somebody still holds the mount; it ends with them");
            detach(place)?;
        }
    }
    // Something mounts upon it again and again, or has hidden the folder above.
    Err(io::Error::other(format!("{} is still mounted after {DEEPEST} unmounts", path.display())))
}

/// Ends a connection whose server does not answer: everybody who waits for it gets an error, and a server that wakes finds
/// its descriptor dead and ends. The kernel does so for a forced unmount before it unmounts, which may fail.
pub fn abort(source: &Place) -> io::Result<()> {
    match unmount(source.path(), UnmountFlags::NOFOLLOW | UnmountFlags::FORCE) {
        Err(Errno::BUSY) => Ok(()),
        outcome => forgiving(outcome),
    }
}

fn forgiving(outcome: rustix::io::Result<()>) -> io::Result<()> {
    match outcome {
        // Not a mount point, or not there at all.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Lets the kernel read further ahead. Slower without, and no worse.
pub fn read_ahead(device: (u32, u32)) {
    let file = format!("/sys/class/bdi/{}:{}/read_ahead_kb", device.0, device.1);
    if let Err(error) = fs::write(&file, READ_AHEAD_KIB) {
        tracing::debug!(%error, file, "read-ahead stays at the kernel's default");
    }
}

/// Feels the pulse of mounts. One thread per mount at most: one that hangs is not joined by others.
#[derive(Clone, Debug, Default)]
pub struct Pulses(Arc<Mutex<HashSet<PathBuf>>>);

impl Pulses {
    pub async fn feel(&self, path: &Path) -> Pulse {
        let until = Instant::now() + ANSWER_WITHIN;
        // Somebody else is asking: the server may have answered them by the time it is our turn.
        while !self.begin(path) {
            if Instant::now() > until {
                return Pulse::Silent;
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let (pulses, asked) = (self.clone(), path.to_owned());
        let spawned = std::thread::Builder::new().name("pulse".to_owned()).spawn(move || {
            let answer = rustix::fs::statfs(&asked);
            pulses.end(&asked);
            let _ = sender.send(answer.map(|about| about.f_type == FUSE));
        });
        // That we cannot ask says nothing about the server.
        if spawned.is_err() {
            self.end(path);
            return Pulse::Silent;
        }
        match tokio::time::timeout_at(until.into(), receiver).await {
            Ok(Ok(Ok(true))) => Pulse::Alive,
            Ok(Ok(Err(error @ (Errno::NOTCONN | Errno::CONNABORTED | Errno::IO)))) => {
                Pulse::Dead(error.to_string())
            }
            // Another file system, or nothing there.
            Ok(Ok(Ok(false) | Err(_))) => Pulse::Nobody,
            Ok(Err(_)) | Err(_) => Pulse::Silent,
        }
    }

    fn begin(&self, path: &Path) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned())
    }

    fn end(&self, path: &Path) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(path);
    }
}
