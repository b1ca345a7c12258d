//! The node's mounts in a real kernel, below a directory that stands in for the kubelet's.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::time::Instant;

use node::kernel;
use node::liveness::{Liveness, LivenessProbe};
use rustix::mount::{MountFlags, MountPropagationFlags, mount_bind, mount_change, mount_remount};
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, bucket, eventually};
use s3_csi_tests::within;
use xtask::s3::ALICE;

use crate::ground::Ground;

#[test]
fn every_change_of_the_mounts_is_noticed() {
    let ground = Ground::new();
    let (source, target) = (ground.place("source"), ground.place("target"));
    let seen = || {
        let table = ground.mounts.table().unwrap();
        table.at(&ground.path("target")).map(|mount| mount.read_only).collect::<Vec<_>>()
    };
    assert!(seen().is_empty());
    mount_bind(source.path(), target.path()).unwrap();
    assert_eq!(seen(), [false]);
    mount_remount(target.path(), MountFlags::BIND | MountFlags::RDONLY, c"").unwrap();
    assert_eq!(seen(), [true]);
    kernel::unmount_top(&target).unwrap();
    assert!(seen().is_empty());
}

/// It is accepted by a mount process that is started after the node service was replaced.
#[test]
fn the_descriptor_of_a_mount_keeps_its_name_when_the_container_that_opened_it_is_gone() {
    let ground = Ground::new();
    let descriptor = kernel::mount_source(&ground.place("source"), false).unwrap();
    let name = fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).unwrap();
    assert_eq!(name, PathBuf::from("/dev/fuse"));
    let mounts =
        fs::read_to_string("/proc/self/fdinfo/".to_owned() + &descriptor.as_raw_fd().to_string()).unwrap();
    let id = mounts.lines().find_map(|line| line.strip_prefix("mnt_id:")).unwrap().trim().to_owned();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        !table.lines().any(|line| line.split(' ').next() == Some(&id)),
        "it depends on no mount of a container"
    );
}

#[tokio::test]
async fn a_source_is_served_bound_and_taken_away() {
    bucket(ALICE, "node-bind").put("node-bind", "file", b"bound").unwrap();
    let (ground, mut pod) = (Ground::new(), MountpointPod::start());
    pod.serve_at(ALICE, "node-bind", &ground.place("source"));
    assert_eq!(LivenessProbe::default().check(&ground.path("source")).await, Liveness::Alive);
    kernel::bind(&ground.place("source"), &ground.place("target"), false).unwrap();
    kernel::bind(&ground.place("source"), &ground.place("read-only"), true).unwrap();
    assert_eq!(ground.read("target/file").unwrap(), "bound");
    assert_eq!(ground.read("read-only/file").unwrap(), "bound");
    let write = |name: &str| {
        let path = ground.path(name);
        within("writing", LIMIT, move || fs::write(path, "x"))
    };
    assert_eq!(write("read-only/new").unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    write("target/new").unwrap();

    let table = ground.mounts.table().unwrap();
    let source = ground.path("source");
    assert!(table.at(&source).all(|mount| mount.bucket && !mount.read_only));
    let copies: Vec<(PathBuf, bool)> =
        table.copies(&source).map(|copy| (copy.point.clone(), copy.read_only)).collect();
    assert_eq!(copies, [(ground.path("target"), false), (ground.path("read-only"), true)]);
    let device = table.at(&source).next_back().unwrap().device;
    kernel::set_read_ahead(device);

    assert!(kernel::unmount_top(&ground.place("source")).is_ok(), "a bound source can go first");
    for name in ["target", "read-only"] {
        kernel::unmount_top(&ground.place(name)).unwrap();
        kernel::unmount_top(&ground.place(name)).unwrap();
        assert_eq!(ground.depth(name), 0, "{name}");
    }
    assert_eq!(pod.ended().code(), Some(1), "no exit was requested");
}

#[tokio::test]
async fn a_dead_mount_is_noticed_and_replaced_or_covered() {
    bucket(ALICE, "node-dead").put("node-dead", "file", b"again").unwrap();
    let (ground, mut pod) = (Ground::new(), MountpointPod::start());
    pod.serve_at(ALICE, "node-dead", &ground.place("source"));
    kernel::bind(&ground.place("source"), &ground.place("target"), false).unwrap();
    pod.end_container();
    let liveness = LivenessProbe::default();
    let source = ground.path("source");
    let until = Instant::now() + LIMIT;
    let mut seen = liveness.check(&source).await;
    while seen == Liveness::Alive && Instant::now() < until {
        seen = liveness.check(&source).await;
    }
    assert!(matches!(seen, Liveness::Dead(_)), "{seen:?}");

    kernel::detach(&ground.place("source")).unwrap();
    let successor = MountpointPod::start();
    successor.serve_at(ALICE, "node-dead", &ground.place("source"));
    kernel::bind(&ground.place("source"), &ground.place("target"), false).unwrap();
    assert_eq!((ground.depth("source"), ground.depth("target")), (1, 2), "upon the dead one");
    assert_eq!(ground.read("target/file").unwrap(), "again");
}

/// With `HostToContainer`, a container's copy of its target receives what the node mounts later.
#[tokio::test]
async fn a_mount_upon_a_dead_one_reaches_the_copies_that_listen() {
    bucket(ALICE, "node-copies").put("node-copies", "file", b"again").unwrap();
    let (ground, mut pod) = (Ground::shared(), MountpointPod::start());
    pod.serve_at(ALICE, "node-copies", &ground.place("source"));
    kernel::bind(&ground.place("source"), &ground.place("target"), false).unwrap();
    let containers = Ground::new();
    for (name, propagation) in
        [("listening", MountPropagationFlags::DOWNSTREAM), ("deaf", MountPropagationFlags::PRIVATE)]
    {
        containers.place(name);
        let copy = containers.path(name);
        mount_bind(ground.path("target"), &copy).unwrap();
        mount_change(&copy, propagation).unwrap();
        assert_eq!(containers.read(&format!("{name}/file")).unwrap(), "again");
    }
    pod.end_container();
    eventually("both are dead", || {
        ["listening/file", "deaf/file"].iter().all(|name| containers.read(name).is_err())
    });
    kernel::detach(&ground.place("source")).unwrap();
    let successor = MountpointPod::start();
    successor.serve_at(ALICE, "node-copies", &ground.place("source"));
    kernel::bind(&ground.place("source"), &ground.place("target"), false).unwrap();
    assert_eq!(containers.read("listening/file").unwrap(), "again");
    assert_eq!(containers.read("deaf/file").unwrap_err().kind(), std::io::ErrorKind::NotConnected);
}

/// Blocked processes get an error, and the mount process finds its descriptor dead.
#[tokio::test]
async fn an_unresponsive_mount_is_aborted() {
    let ground = Ground::new();
    let device = kernel::mount_source(&ground.place("source"), false).unwrap();
    kernel::bind(&ground.place("source"), &ground.place("target"), false).unwrap();
    let liveness = LivenessProbe::default();
    assert_eq!(liveness.check(&ground.path("target")).await, Liveness::Unresponsive);
    kernel::abort_connection(&ground.place("source")).unwrap();
    let until = Instant::now() + LIMIT;
    while !matches!(liveness.check(&ground.path("target")).await, Liveness::Dead(_)) {
        assert!(Instant::now() < until);
    }
    assert_eq!(ground.depth("target"), 1, "containers keep it, for the next one to cover");
    let read = within("reading the device", LIMIT, move || rustix::io::read(&device, &mut [0; 1 << 14]));
    assert_eq!(read.unwrap_err(), rustix::io::Errno::NODEV);
}

/// A mount process that takes the descriptor and never answers blocks no check, and no second thread.
#[tokio::test]
async fn an_unresponsive_mount_blocks_no_check() {
    let ground = Ground::new();
    let device = kernel::mount_source(&ground.place("source"), false).unwrap();
    let liveness = LivenessProbe::default();
    assert_eq!(liveness.check(&ground.path("source")).await, Liveness::Unresponsive);
    assert_eq!(
        liveness.check(&ground.path("source")).await,
        Liveness::Unresponsive,
        "and no second thread hangs"
    );
    drop(device);
    let until = Instant::now() + LIMIT;
    while !matches!(liveness.check(&ground.path("source")).await, Liveness::Dead(_)) {
        assert!(Instant::now() < until);
    }
}

#[test]
fn stacked_mounts_are_seen_and_removed_one_by_one() {
    let ground = Ground::new();
    let devices: Vec<_> =
        (0..3).map(|_| kernel::mount_source(&ground.place("source"), false).unwrap()).collect();
    assert_eq!(ground.depth("source"), 3);
    drop(devices);
    for left in [2, 1, 0] {
        kernel::detach(&ground.place("source")).unwrap();
        assert_eq!(ground.depth("source"), left);
    }
    kernel::detach(&ground.place("source")).unwrap();
    eventually("the folder can go", || ground.place("source").remove_directory().is_ok());
}
