//! The only module that mounts and unmounts. Nothing here touches a served path, so nothing waits for a mount process, except
//! perhaps the last unmount of its file system.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use contract::names::MOUNT_SOURCE;
use mounter::handover::FUSE_DEVICE;
use rustix::fs::{FileType, Mode, OFlags, makedev, mkdirat, mknodat, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, UnmountFlags,
    fsconfig_create, fsmount, fsopen, mount, mount_bind, mount_change, mount_remount, unmount,
};

use crate::mount_table::{Device, Mount};
use crate::mounts::Mounts;
use crate::safe_path::{Root, SafePath};

/// Read-ahead of a source mount in KiB. The kernel's default of 128 makes eight times as many requests of a large read;
/// with more than this, requests overtake each other, which the mount process takes for random reads.
const READ_AHEAD_KIB: &str = "512";
/// Unmounts before giving up: something keeps mounting upon a path with more layers than this.
const MAX_UNMOUNTS: usize = 64;
const COMMON: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOATIME);

/// Opens the device by a node of its own, in a file system that is mounted nowhere. The Mountpoint library accepts a
/// descriptor only if its path is `/dev/fuse`. With the container of this service, its `/dev` goes too, and the path of a
/// descriptor from there is `/fuse`: a mount process that follows another one would not accept it any more.
fn open_fuse() -> io::Result<OwnedFd> {
    let system = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(system.as_fd())?;
    let root = fsmount(system.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    mkdirat(&root, "dev", Mode::RWXU)?;
    let (major, minor) = FUSE_DEVICE;
    mknodat(&root, "dev/fuse", FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, makedev(major, minor))?;
    Ok(openat(&root, "dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Mounts a FUSE file system and returns its descriptor, which the mount process serves.
pub fn mount_source(path: &SafePath, read_only: bool) -> io::Result<OwnedFd> {
    let device = open_fuse()?;
    // The kernel lets every user in as far as the modes allow; the mount process admits only root unless its options say
    // otherwise.
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
        device.as_raw_fd()
    );
    let options = CString::new(options).map_err(io::Error::other)?;
    let mut flags = COMMON;
    flags.set(MountFlags::RDONLY, read_only);
    mount(MOUNT_SOURCE, path.path(), "fuse", flags, options.as_c_str())?;
    Ok(device)
}

/// Binds the source mount to the target, on top of what is mounted there.
pub fn bind(source: &SafePath, target: &SafePath, read_only: bool) -> io::Result<()> {
    // Binds of a shared mount form a peer group: a mount upon one of them appears upon all. Healing one workload would
    // cover its neighbour's mount, too, which may be read-only.
    mount_change(source.path(), MountPropagationFlags::PRIVATE)?;
    if !read_only {
        return Ok(mount_bind(source.path(), target.path())?);
    }
    // A bind inherits the flags of what is bound, and only a remount changes them; in between, running containers would
    // see a writable mount. So a read-only copy is made on top of the source, out of their sight, and bound from there.
    mount_bind(source.path(), source.path())?;
    let flags = COMMON | MountFlags::BIND | MountFlags::RDONLY;
    let bound =
        mount_remount(source.path(), flags, c"").and_then(|()| mount_bind(source.path(), target.path()));
    detach(source)?;
    Ok(bound?)
}

/// Covers the bare directory of a target, so that a container started while no bucket is mounted gets an error, even as
/// root, instead of writing to the node's disk. A mount needs no support of the disk's file system and ends with an
/// unmount, unlike an immutable flag.
pub fn seal(target: &SafePath) -> io::Result<()> {
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount(MOUNT_SOURCE, target.path(), "tmpfs", flags, c"mode=0555,size=4k,nr_inodes=1")?)
}

/// Unmounts the top mount, if there is one. Fails while it is in use.
pub fn unmount_top(path: &SafePath) -> io::Result<()> {
    ignore_unmounted(unmount(path.path(), UnmountFlags::NOFOLLOW))
}

/// Unmounts the top mount, if there is one. Processes that use it keep it until they close it.
pub fn detach(path: &SafePath) -> io::Result<()> {
    ignore_unmounted(unmount(path.path(), UnmountFlags::NOFOLLOW | UnmountFlags::DETACH))
}

/// Does what may unmount the last mount of a file system: the kernel then ends that, and can wait for a mount process that does
/// not answer. The runtime uses another thread meanwhile, because it has only two.
pub fn blocking_unmount<T>(unmount: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(unmount)
}

/// Unmounts everything at the path, removes its directory, and returns whether anything was mounted.
pub fn remove_mount_point(mounts: &Mounts, kubelet: &Root, path: &Path) -> io::Result<bool> {
    let safe_path = match kubelet.locate(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        located => located?,
    };
    let mounted = unmount_all(mounts, &safe_path, path)?;
    safe_path.remove_directory()?;
    Ok(mounted)
}

/// Unmounts everything at the path and returns whether anything was mounted.
pub fn unmount_all(mounts: &Mounts, safe_path: &SafePath, path: &Path) -> io::Result<bool> {
    unmount_while(mounts, safe_path, path, |_| true)
}

/// Unmounts the buckets at the path and leaves the seal below them.
pub fn unmount_buckets(mounts: &Mounts, safe_path: &SafePath, path: &Path) -> io::Result<bool> {
    unmount_while(mounts, safe_path, path, |top| top.bucket)
}

fn unmount_while(
    mounts: &Mounts,
    safe_path: &SafePath,
    path: &Path,
    matches: impl Fn(&Mount) -> bool,
) -> io::Result<bool> {
    for unmounted in 0..MAX_UNMOUNTS {
        if !mounts.table()?.top(path).is_some_and(&matches) {
            return Ok(unmounted > 0);
        }
        if let Err(error) = unmount_top(safe_path) {
            tracing::debug!(%error, path = %path.display(), "mount is in use, detaching it");
            detach(safe_path)?;
        }
    }
    Err(io::Error::other(format!("{} is still mounted after {MAX_UNMOUNTS} unmounts", path.display())))
}

/// Aborts the FUSE connection: blocked processes get an error, and the mount process finds its descriptor dead. The
/// kernel aborts before it tries the forced unmount, which may then fail because the mount is in use.
pub fn abort_connection(source: &SafePath) -> io::Result<()> {
    match unmount(source.path(), UnmountFlags::NOFOLLOW | UnmountFlags::FORCE) {
        Err(Errno::BUSY) => Ok(()),
        outcome => ignore_unmounted(outcome),
    }
}

/// EINVAL is what the kernel says of a path that is not a mount point.
fn ignore_unmounted(outcome: rustix::io::Result<()>) -> io::Result<()> {
    match outcome {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Best effort: reads are slower without it.
pub fn set_read_ahead(device: Device) {
    let file = format!("/sys/class/bdi/{}:{}/read_ahead_kb", device.0, device.1);
    if let Err(error) = fs::write(&file, READ_AHEAD_KIB) {
        tracing::debug!(%error, file, "cannot set read-ahead");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn an_unmount_that_waits_delays_nothing_else() {
        let (begins, began) = oneshot::channel();
        let (answer, answered) = std::sync::mpsc::channel();
        let unmount = tokio::spawn(async move {
            begins.send(()).unwrap();
            blocking_unmount(|| answered.recv().unwrap());
        });
        began.await.unwrap();
        tokio::spawn(async move { answer.send(()).unwrap() }).await.unwrap();
        unmount.await.unwrap();
    }
}
