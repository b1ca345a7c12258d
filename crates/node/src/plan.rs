//! From what is mounted to what is to be done for one publish. Pure: the same for a first publish, for one whose
//! predecessor died half-way, for one that finds a dead server, and for one that moves to another Mountpoint Pod.
//!
//! A container gets its own copy of whatever is on top of the target when it starts. What is mounted upon the original
//! later appears upon the copy, too, if the container asked for that (`HostToContainer`), as a copy of its own that hears
//! in turn of what is mounted upon *its* original. So a mount upon the top reaches every such container, whichever of the
//! mounts it started on, while a mount upon a lower one is hidden from those that started higher. Unmounting cuts: a copy
//! whose original is gone never hears of anything again. Hence the rule: the next mount covers the top, dead or alive, and
//! what lies below stays until the workload ends.

use std::iter::repeat_n;
use std::path::Path;

use crate::mount_table::MountTable;

/// Mounts upon each other at one target: each is a mount process that died or was replaced in the life of one workload,
/// and keeps a few kilobytes of the kernel's memory.
pub const MOST_LAYERS: usize = 16;
/// What is left of them when there are that many: containers that started on one of these are reached as before, those
/// that started on a later one must start again. If only one were taken away at a time, that would be so after each death.
pub const LAYERS_KEPT: usize = 8;

/// What is wanted: the bucket at `source`, and the same bound into the workload's `target`.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub source: &'a Path,
    pub target: &'a Path,
    pub read_only: bool,
    /// Whether somebody answers at `source`.
    pub alive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Takes away what is on top of the source, without waiting for anybody who still holds it.
    UnmountSource,
    /// Mounts the source and hands its descriptor over.
    Serve,
    /// Lets nobody write into the bare folder below the bucket, which is on the node's own disk.
    Seal,
    /// Takes away what is on top of the target.
    UnmountTarget,
    /// Covers whatever is at the target.
    Bind,
}

pub fn plan(table: &MountTable, wanted: Wanted<'_>) -> Vec<Step> {
    let Wanted { source, target, read_only, alive } = wanted;
    let sources: Vec<_> = table.at(source).collect();
    // Others upon it could only come from two of us at once, and the lowest then has users that nobody can tell; except
    // for copies of itself, which a read-only bind that was cut off leaves.
    let keep = sources.first().filter(|lowest| lowest.bucket && alive).map(|lowest| lowest.device);
    let keep = keep.filter(|device| sources.iter().all(|mount| mount.device == *device));
    let bound = table
        .top(target)
        .is_some_and(|top| top.bucket && keep == Some(top.device) && top.read_only == read_only);
    let mut steps = vec![Step::UnmountSource; sources.len() - usize::from(keep.is_some())];
    if keep.is_none() {
        steps.push(Step::Serve);
    }
    // Only then: if nobody can serve it, the workload keeps what it has.
    if !bound {
        match table.at(target).count() {
            0 => steps.push(Step::Seal),
            layers if layers >= MOST_LAYERS => {
                steps.extend(repeat_n(Step::UnmountTarget, layers - LAYERS_KEPT));
            }
            _ => {}
        }
        steps.push(Step::Bind);
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount_table::Mount;
    use proptest::prelude::*;

    const SOURCE: &str = "/source";
    const TARGET: &str = "/target";
    /// Of the file system that seals the folder.
    const SEAL: u32 = 999;

    fn mount(point: &str, device: u32, read_only: bool) -> Mount {
        Mount { device: (0, device), point: point.into(), read_only, bucket: device != SEAL }
    }

    /// A node with its mounts, the devices whose server lives, and containers that listen to the node.
    #[derive(Clone, Debug, Default)]
    struct World {
        table: MountTable,
        alive: Vec<u32>,
        next: u32,
        /// What is mounted at the target, each mount with a number of its own, as containers know them.
        layers: Vec<u32>,
        containers: Vec<Container>,
        /// Whether there ever were too many layers.
        cut: bool,
    }

    #[derive(Clone, Debug)]
    struct Container {
        /// Copies of these layers, one upon the other.
        copies: Vec<u32>,
        /// How many layers there were when it started.
        depth: usize,
    }

    impl World {
        fn at(&self, point: &str) -> Vec<&Mount> {
            self.table.0.iter().filter(|mount| mount.point == Path::new(point)).collect()
        }

        fn wanted(&self, read_only: bool) -> Wanted<'static> {
            let top = self.at(SOURCE).pop();
            let alive = top.is_some_and(|mount| self.alive.contains(&mount.device.1));
            Wanted { source: Path::new(SOURCE), target: Path::new(TARGET), read_only, alive }
        }

        /// As much of a publish as its process lives for.
        fn publish(&mut self, read_only: bool, steps: usize) {
            for step in plan(&self.table, self.wanted(read_only)).into_iter().take(steps) {
                let has_bucket = |world: &Self| world.at(TARGET).last().is_some_and(|top| top.bucket);
                let had = has_bucket(self);
                self.apply(step, read_only);
                assert!(!had || has_bucket(self), "{step:?} bares the folder under a workload");
            }
        }

        fn apply(&mut self, step: Step, read_only: bool) {
            match step {
                Step::UnmountTarget => {
                    self.cut = true;
                    self.unmount(TARGET);
                    let gone = self.layers.pop();
                    // From where it had appeared; not from under those that started on it.
                    for container in &mut self.containers {
                        if container.copies.len() > 1 && container.copies.last() == gone.as_ref() {
                            container.copies.pop();
                        }
                    }
                }
                Step::UnmountSource => self.unmount(SOURCE),
                Step::Serve => {
                    self.next += 1;
                    self.alive.push(1000 + self.next);
                    self.table.0.push(mount(SOURCE, 1000 + self.next, false));
                }
                Step::Seal => self.cover(mount(TARGET, SEAL, true)),
                Step::Bind => {
                    let device = self.at(SOURCE).pop().unwrap().device.1;
                    self.cover(mount(TARGET, device, read_only));
                }
            }
        }

        fn unmount(&mut self, point: &str) {
            let last = self.table.0.iter().rposition(|mount| mount.point == Path::new(point));
            self.table.0.remove(last.expect("only what is mounted is unmounted"));
        }

        fn cover(&mut self, mount: Mount) {
            self.next += 1;
            for container in &mut self.containers {
                if container.copies.last() == self.layers.last() {
                    container.copies.push(self.next);
                }
            }
            self.layers.push(self.next);
            self.table.0.push(mount);
        }

        /// As the container runtime does, which cannot start one upon a dead mount.
        fn start_container(&mut self) {
            let alive = self.at(TARGET).last().is_some_and(|top| self.alive.contains(&top.device.1));
            if let Some(top) = self.layers.last().filter(|_| alive) {
                self.containers.push(Container { copies: vec![*top], depth: self.layers.len() });
            }
        }

        /// What the container sees is what is on top of the target.
        fn reaches(&self, container: &Container) -> bool {
            container.copies.last() == self.layers.last()
        }
    }

    #[test]
    fn the_usual_ways() {
        let mut world = World::default();
        assert_eq!(plan(&world.table, world.wanted(false)), [Step::Serve, Step::Seal, Step::Bind]);
        world.publish(false, usize::MAX);
        assert_eq!(plan(&world.table, world.wanted(false)), [], "a republish");
        assert_eq!(plan(&world.table, world.wanted(true)), [Step::Bind], "it is read-only now");
        let mut shared = world.clone();
        shared.table.0.retain(|mount| mount.point == Path::new(SOURCE));
        let joins = [Step::Seal, Step::Bind];
        assert_eq!(plan(&shared.table, shared.wanted(true)), joins, "another workload is served already");
        let mut cut_off = world.clone();
        cut_off.table.0.push(mount(SOURCE, cut_off.alive[0], true));
        assert_eq!(
            plan(&cut_off.table, cut_off.wanted(false)),
            [Step::UnmountSource],
            "amid a read-only bind"
        );
        let mut moved = world.clone();
        moved.unmount(SOURCE);
        assert_eq!(plan(&moved.table, moved.wanted(false)), [Step::Serve, Step::Bind], "by another pod");
        world.alive.clear();
        let covering = [Step::UnmountSource, Step::Serve, Step::Bind];
        for read_only in [false, true] {
            assert_eq!(plan(&world.table, world.wanted(read_only)), covering, "its server is dead");
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        ServerDies,
        /// The attachment names another Mountpoint Pod, whose source is elsewhere.
        Moves,
        ContainerStarts,
        Publish {
            steps: usize,
        },
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let one = prop_oneof![
            2 => Just(Event::ServerDies),
            1 => Just(Event::Moves),
            3 => Just(Event::ContainerStarts),
            3 => Just(Event::Publish { steps: usize::MAX }),
            1 => (0_usize..20).prop_map(|steps| Event::Publish { steps }),
        ];
        proptest::collection::vec(one, 0..120)
    }

    fn mounts() -> impl Strategy<Value = Vec<Mount>> {
        let one = (
            proptest::sample::select(&[SOURCE, TARGET, "/other"][..]),
            1_u32..4,
            any::<bool>(),
            any::<bool>(),
        );
        let one = one.prop_map(|(point, device, read_only, bucket)| Mount {
            bucket,
            ..mount(point, device, read_only)
        });
        proptest::collection::vec(one, 0..6)
    }

    proptest! {
        /// Whatever a predecessor left, and in whatever order servers die, workloads move and containers start: the next publish
        /// that is not cut off ends with one source, the same on top of the target, and in every container.
        #[test]
        fn any_order_ends_with_the_bucket_in_every_container(
            mounts in mounts(),
            alive in proptest::collection::vec(1_u32..4, 0..3),
            events in events(),
            read_only: bool,
        ) {
            let mut world = World { table: MountTable(mounts), alive, ..World::default() };
            world.layers = (500..).take(world.at(TARGET).len()).collect();
            let others = world.at("/other").len();
            for event in events {
                match event {
                    Event::ServerDies => world.alive.clear(),
                    Event::Moves => world.table.0.retain(|mount| mount.point != Path::new(SOURCE)),
                    Event::ContainerStarts => world.start_container(),
                    Event::Publish { steps } => world.publish(read_only, steps),
                }
                prop_assert!(world.layers.len() <= MOST_LAYERS);
            }
            world.publish(read_only, usize::MAX);
            let (source, target) = (world.at(SOURCE), world.at(TARGET));
            let top = target.last().unwrap();
            prop_assert_eq!(source.len(), 1);
            prop_assert_eq!(source[0].device, top.device);
            prop_assert!(world.alive.contains(&source[0].device.1));
            prop_assert_eq!(top.read_only, read_only);
            for container in &world.containers {
                prop_assert!(world.reaches(container) || world.cut && container.depth > LAYERS_KEPT);
            }
            prop_assert_eq!(world.at("/other").len(), others, "nobody else's mount is touched");
            prop_assert_eq!(plan(&world.table, world.wanted(read_only)), []);
        }
    }
}
