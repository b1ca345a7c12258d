//! The mounts upon each other at a workload's target, and what containers see of them.

use std::fs;
use std::os::fd::OwnedFd;

use node::kernel;
use node::liveness::Liveness;
use node::publish::plan::{LAYERS_KEPT, MAX_LAYERS, Observed, Step, Wanted, plan};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};

use crate::ground::Ground;

/// A workload on a node, without mount processes: what counts is which mounts containers see.
struct Workload {
    node: Ground,
    containers: Ground,
    started: Vec<String>,
    /// Descriptor of the mount process that lives.
    device: Option<OwnedFd>,
}

impl Workload {
    fn new() -> Self {
        Self { node: Ground::shared(), containers: Ground::new(), started: Vec::new(), device: None }
    }

    /// What the node does for a publish.
    fn publish(&mut self) {
        let (source, target) = (self.node.path("source"), self.node.path("target"));
        let table = self.node.mounts.table().unwrap();
        let liveness = if self.device.is_some() { Liveness::Alive } else { Liveness::NotMounted };
        let observed = Observed {
            table: &table,
            source: liveness.clone(),
            target: liveness,
            movable: false,
            other_targets: Vec::new(),
        };
        let (from, to) = (self.node.place("source"), self.node.place("target"));
        let wanted = Wanted { source: &source, target: &target, read_only: false, single_pod: false };
        for step in plan(&observed, &wanted).unwrap().steps {
            match step {
                Step::UnmountSource => kernel::detach(&from).unwrap(),
                Step::MountSource => self.device = Some(kernel::mount_source(&from, false).unwrap()),
                Step::MoveSource => unreachable!("nothing is movable here"),
                Step::SealTarget => kernel::seal(&to).unwrap(),
                Step::UnmountTarget => kernel::detach(&to).unwrap(),
                Step::BindTarget { read_only } => kernel::bind(&from, &to, read_only).unwrap(),
            }
        }
    }

    /// The mount process dies, and the node heals.
    fn dies(&mut self) {
        drop(self.device.take());
        self.publish();
    }

    /// A container starts, or starts again, with `HostToContainer`.
    fn container_starts(&mut self) -> String {
        let name = format!("container-{}", self.started.len());
        self.containers.place(&name);
        let copy = self.containers.path(&name);
        mount_bind(self.node.path("target"), &copy).unwrap();
        mount_change(&copy, MountPropagationFlags::DOWNSTREAM).unwrap();
        self.started.push(name.clone());
        name
    }

    /// What is to be seen there.
    fn sees(&self, container: &str) -> (u32, u32) {
        self.containers.mounts.table().unwrap().top(&self.containers.path(container)).unwrap().device
    }

    fn served(&self) -> (u32, u32) {
        self.node.mounts.table().unwrap().top(&self.node.path("source")).unwrap().device
    }
}

/// `k`: the mount process is killed and the node heals; `s`: a container starts, first or again.
#[test]
fn in_every_order_of_deaths_and_starts_all_containers_get_the_bucket_again() {
    for order in ["sk", "skk", "sksk", "skskk", "skksk", "kskk", "sskskskk", "skskskskskskk"] {
        let mut workload = Workload::new();
        workload.publish();
        for event in order.chars() {
            match event {
                's' => drop(workload.container_starts()),
                _ => workload.dies(),
            }
            for container in &workload.started {
                assert_eq!(
                    workload.sees(container),
                    workload.served(),
                    "{container} in {order} after {event}"
                );
            }
        }
        assert!(workload.node.depth("target") <= MAX_LAYERS);
    }
}

#[test]
fn however_often_it_dies_the_mounts_are_bounded_and_old_containers_are_reached() {
    let mut workload = Workload::new();
    workload.publish();
    let first = workload.container_starts();
    // Upon one that is never taken away: the folder's seal and that many buckets.
    (2..LAYERS_KEPT).for_each(|_| workload.dies());
    let kept = workload.container_starts();
    for death in 0..3 * MAX_LAYERS {
        let newest = workload.container_starts();
        let layers = workload.node.depth("target");
        workload.dies();
        assert!(workload.node.depth("target") <= MAX_LAYERS, "after {death} more deaths");
        assert_eq!(workload.sees(&first), workload.served());
        assert_eq!(workload.sees(&kept), workload.served());
        if layers < MAX_LAYERS {
            assert_eq!(workload.sees(&newest), workload.served(), "after {death} more deaths");
        }
    }
}

/// Binds of one source would otherwise form a peer group, in which a mount upon one appears upon all.
#[test]
fn what_heals_one_workload_reaches_no_other() {
    let ground = Ground::shared();
    let (source, target, neighbour) =
        (ground.place("source"), ground.place("target"), ground.place("neighbour"));
    drop(kernel::mount_source(&source, false).unwrap());
    kernel::bind(&source, &target, false).unwrap();
    kernel::bind(&source, &neighbour, true).unwrap();
    kernel::detach(&source).unwrap();
    let _device = kernel::mount_source(&source, false).unwrap();
    kernel::bind(&source, &target, false).unwrap();
    assert_eq!((ground.depth("target"), ground.depth("neighbour")), (2, 1));
    kernel::bind(&source, &neighbour, true).unwrap();
    assert_eq!((ground.depth("target"), ground.depth("neighbour"), ground.depth("source")), (2, 2, 1));
    let table = ground.mounts.table().unwrap();
    let read_only: Vec<bool> = table.at(&ground.path("neighbour")).map(|mount| mount.read_only).collect();
    assert_eq!(read_only, [true, true]);
    assert!(!table.top(&ground.path("target")).unwrap().read_only);
}

/// A running container must not get a writable mount for even a moment.
#[test]
fn a_read_only_bind_is_read_only_from_its_first_moment() {
    let ground = Ground::shared();
    let (source, target) = (ground.place("source"), ground.place("target"));
    let _device = kernel::mount_source(&source, false).unwrap();
    kernel::seal(&target).unwrap();
    let copies = Ground::new();
    copies.place("listening");
    mount_bind(ground.path("target"), copies.path("listening")).unwrap();
    mount_change(copies.path("listening"), MountPropagationFlags::DOWNSTREAM).unwrap();
    kernel::bind(&source, &target, true).unwrap();
    let seen = copies.mounts.table().unwrap();
    // A copy keeps the flags it was made with, whatever becomes of the original.
    assert!(seen.top(&copies.path("listening")).is_some_and(|top| top.bucket && top.read_only));
}

#[test]
fn a_sealed_folder_takes_no_writes_and_can_be_removed() {
    let ground = Ground::new();
    let (target, path) = (ground.place("target"), ground.path("target"));
    kernel::seal(&target).unwrap();
    let refused = fs::write(path.join("file"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let _device = kernel::mount_source(&ground.place("source"), false).unwrap();
    kernel::bind(&ground.place("source"), &target, false).unwrap();
    assert!(kernel::unmount_buckets(&ground.mounts, &target, &path).unwrap());
    assert_eq!(ground.depth("target"), 1, "it stays sealed");
    assert!(kernel::unmount_all(&ground.mounts, &target, &path).unwrap());
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "nothing was written");
    target.remove_directory().unwrap();
}
