//! Prepares the new namespaces before anything runs in them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};

use super::{Cluster, NODE_ADDRESS, Node, cgroup, network};

/// The kubelet sets these for the whole machine. The node gets private files with the values that the kubelet expects.
const SYSCTLS: &[(&str, &str)] = &[
    ("kernel/keys/root_maxbytes", "25000000"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
];

pub(crate) fn isolate(cluster: &Cluster, node: Node) -> Result<()> {
    if node != Node::FIRST {
        leave_first_node()?;
    }
    leave_foreign_fuse_mounts()?;
    share_root()?;
    rustix::system::sethostname(node.name().as_bytes())?;
    own_folders(cluster, node)?;
    own_sysctls()?;
    network::own(node, &cluster.nodes()?)?;
    cgroup::create(&cluster.cgroup(node))
}

/// Any other node starts with a copy of the first node's mounts. Unmounts them, so that the overlays of this node are on top of
/// the machine's own directories.
fn leave_first_node() -> Result<()> {
    for point in ["/etc", "/run", "/var"] {
        unmount(point, UnmountFlags::DETACH)
            .with_context(|| format!("cannot unmount {point} of the first node"))?;
    }
    Ok(())
}

/// A new mount namespace copies every mount, and the copy of an unrelated FUSE mount keeps it alive after its owner has
/// unmounted it. Unmounts lazily, because a plain unmount hangs if the server of such a mount is dead.
fn leave_foreign_fuse_mounts() -> Result<()> {
    // The innermost first, because unmounting an outer one detaches those below.
    for line in fs::read_to_string("/proc/self/mounts")?.lines().rev() {
        let mut fields = line.split(' ').skip(1);
        let (point, kind) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        if kind == "fuse" || kind == "fuseblk" || kind.starts_with("fuse.") {
            let point = point.replace("\\040", " ");
            match unmount(&*point, UnmountFlags::DETACH) {
                // Hidden by another mount, or already detached with it.
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

fn own_folders(cluster: &Cluster, node: Node) -> Result<()> {
    let state = cluster.disk(node);
    tmpfs("/run")?;
    // Overlays let the node write anywhere below these without changing the machine's own directories.
    for name in ["etc", "var"] {
        let (upper, work) = (state.join(name), state.join(format!("{name}-work")));
        fs::create_dir_all(&upper)?;
        fs::create_dir_all(&work)?;
        let options = format!("lowerdir=/{name},upperdir={},workdir={}", upper.display(), work.display());
        let options = std::ffi::CString::new(options)?;
        mount("overlay", format!("/{name}"), "overlay", MountFlags::empty(), options.as_c_str())
            .with_context(|| format!("cannot put an overlay on /{name}"))?;
    }
    // containerd's snapshots are overlays, which cannot be stored on an overlay, and the kubelet finds no device behind one.
    for name in ["containerd", "kubelet"] {
        let (own, point) = (state.join(name), Path::new("/var/lib").join(name));
        fs::create_dir_all(&own)?;
        fs::create_dir_all(&point)?;
        mount_bind(&own, &point).with_context(|| format!("cannot bind {}", point.display()))?;
        // A bind mount joins its source's peer group, so that mounts below would appear in both places. Made private and then
        // shared, it has its own group.
        mount_change(&point, MountPropagationFlags::PRIVATE)?;
        mount_change(&point, MountPropagationFlags::SHARED)?;
    }
    // On many machines this is a link into /run, which is now hidden.
    let _ = fs::remove_file("/etc/resolv.conf");
    fs::write("/etc/resolv.conf", format!("nameserver {NODE_ADDRESS}\n"))?;
    fs::write("/etc/hosts", format!("127.0.0.1 localhost\n{} {}\n", node.address(), node.name()))?;
    // To abort hung FUSE mounts; `down` reaches it through /proc/PID/root. Opening the device loads FUSE.
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

fn tmpfs(point: &str) -> Result<()> {
    mount("tmpfs", point, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, None::<&std::ffi::CStr>)
        .with_context(|| format!("cannot mount a tmpfs on {point}"))
}
