//! What the node's first process does to its fresh namespaces before anything runs in them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};

use super::{Cluster, NODE_ADDRESS, NODE_NAME, cgroup};
use crate::command::run;

/// kubelet sets these for the whole machine. The node gets private files with the values kubelet wants to see.
const SYSCTLS: &[(&str, &str)] = &[
    ("kernel/keys/root_maxbytes", "25000000"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
];

pub(crate) fn isolate(cluster: &Cluster) -> Result<()> {
    leave_foreign_fuse_mounts()?;
    share_root()?;
    rustix::system::sethostname(NODE_NAME.as_bytes())?;
    own_folders(cluster)?;
    own_sysctls()?;
    own_network()?;
    cgroup::create(&cluster.cgroup())
}

/// A new mount namespace copies every mount, and a copy of somebody's FUSE mount keeps it alive after its owner has
/// unmounted it. Lazily, because the server of such a mount may be dead and then a plain unmount hangs.
fn leave_foreign_fuse_mounts() -> Result<()> {
    // The innermost first: an outer one takes those below along.
    for line in fs::read_to_string("/proc/self/mounts")?.lines().rev() {
        let mut fields = line.split(' ').skip(1);
        let (point, kind) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        if kind == "fuse" || kind == "fuseblk" || kind.starts_with("fuse.") {
            let point = point.replace("\\040", " ");
            match unmount(&*point, UnmountFlags::DETACH) {
                // Covered by another mount, or gone with it: not ours to see any more.
                Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
                Err(error) => bail!("cannot leave the FUSE mount {point}: {error}"),
            }
        }
    }
    Ok(())
}

/// Mounts that the driver makes in its container must reach other pods (`mountPropagation: Bidirectional`), which needs
/// a shared root. `unshare` has made ours private before, so nothing of this reaches the machine.
fn share_root() -> Result<()> {
    mount_change("/", MountPropagationFlags::SHARED | MountPropagationFlags::REC)
        .context("cannot share the root mount")
}

fn own_folders(cluster: &Cluster) -> Result<()> {
    let state = cluster.dir().join("state");
    tmpfs("/run")?;
    // Overlays: the node may write anywhere below these, and the machine's own folders stay as they are.
    for name in ["etc", "var"] {
        let (upper, work) = (state.join(name), state.join(format!("{name}-work")));
        fs::create_dir_all(&upper)?;
        fs::create_dir_all(&work)?;
        let options = format!("lowerdir=/{name},upperdir={},workdir={}", upper.display(), work.display());
        let options = std::ffi::CString::new(options)?;
        mount("overlay", format!("/{name}"), "overlay", MountFlags::empty(), options.as_c_str())
            .with_context(|| format!("cannot put an overlay on /{name}"))?;
    }
    // An overlay cannot lie on an overlay, which containerd's snapshots would; kubelet finds no device behind one.
    for name in ["containerd", "kubelet"] {
        let (own, point) = (state.join(name), Path::new("/var/lib").join(name));
        fs::create_dir_all(&own)?;
        fs::create_dir_all(&point)?;
        mount_bind(&own, &point).with_context(|| format!("cannot bind {}", point.display()))?;
        // A bind mount joins its source's peer group: what is mounted below would appear in both places, twice.
        // Made private and then shared, it has a group of its own.
        mount_change(&point, MountPropagationFlags::PRIVATE)?;
        mount_change(&point, MountPropagationFlags::SHARED)?;
    }
    // On many machines a link into the /run that we have just covered.
    let _ = fs::remove_file("/etc/resolv.conf");
    fs::write("/etc/resolv.conf", format!("nameserver {NODE_ADDRESS}\n"))?;
    fs::write("/etc/hosts", format!("127.0.0.1 localhost\n{NODE_ADDRESS} {NODE_NAME}\n"))?;
    // Where a hung FUSE mount can be aborted; `down` reaches it through /proc/PID/root. Opening the device loads FUSE.
    let _ = fs::File::open("/dev/fuse");
    let options = None::<&std::ffi::CStr>;
    match mount("fusectl", "/sys/fs/fuse/connections", "fusectl", MountFlags::empty(), options) {
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(error) => Err(error).context("cannot mount fusectl"),
    }
}

fn own_sysctls() -> Result<()> {
    fs::create_dir_all("/run/sysctl")?;
    for (name, value) in SYSCTLS {
        let own = format!("/run/sysctl/{}", name.replace('/', "."));
        fs::write(&own, format!("{value}\n"))?;
        mount_bind(&own, format!("/proc/sys/{name}"))
            .with_context(|| format!("cannot cover the sysctl {name}"))?;
    }
    Ok(())
}

/// A bridge carries the node's address, so that it exists without any card. The default route goes nowhere, but kubelet
/// and the API server refuse to start without one.
fn own_network() -> Result<()> {
    for line in [
        "link set lo up",
        "link add node0 type bridge",
        &format!("address add {NODE_ADDRESS}/24 dev node0"),
        "link set node0 up",
        "route add default dev node0",
    ] {
        run(Command::new("ip").args(line.split(' ')))?;
    }
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("cannot let pods reach the node")
}

fn tmpfs(point: &str) -> Result<()> {
    mount("tmpfs", point, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, None::<&std::ffi::CStr>)
        .with_context(|| format!("cannot mount a tmpfs on {point}"))
}
