//! From what is mounted to what is to be done for one publish. Pure: the same for a first publish, for one whose
//! predecessor died half-way, and for one that finds a dead server.

use std::path::Path;

use crate::mount_table::MountTable;

/// What is wanted: the bucket at `source`, and the same bound into the workload's `target`.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub source: &'a Path,
    pub target: &'a Path,
    pub read_only: bool,
    /// Whether somebody answers at `source`.
    pub alive: bool,
    /// Whether nobody answers any more for what lies lowest at `target`.
    pub target_dead: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Takes away what is on top of the target.
    UnmountTarget,
    /// The same for the source, without waiting for anybody who still holds it: its server is gone.
    UnmountSource,
    /// Mounts the source and hands its descriptor over.
    Serve,
    Bind,
}

pub fn plan(table: &MountTable, wanted: Wanted<'_>) -> Vec<Step> {
    let Wanted { source, target, read_only, alive, target_dead } = wanted;
    let sources: Vec<_> = table.at(source).collect();
    let targets: Vec<_> = table.at(target).collect();
    // One upon the other could only come from two of us at once; the lower one has users that nobody can tell.
    let keep = match sources.as_slice() {
        [only] if only.bucket && alive => Some(only.device),
        _ => None,
    };
    // A running container has a copy of the dead mount. What is mounted upon the dead one appears upon the copy, too, if the
    // container asked for that (`HostToContainer`); unmounting it would cut this only way in. Not for a read-only
    // workload: a bind is writable until its second call, and containers would get the first.
    let covered = targets.first().filter(|lowest| lowest.bucket && target_dead && !read_only);
    let upper = &targets[usize::from(covered.is_some())..];
    let bound = match upper {
        [only] => keep == Some(only.device) && only.read_only == read_only,
        _ => false,
    };
    let mut steps = Vec::new();
    if keep.is_none() {
        steps.extend(sources.iter().map(|_| Step::UnmountSource));
        steps.push(Step::Serve);
    }
    // Only then: if nobody can serve it, the workload keeps what it has. An empty folder would take its files.
    if !bound {
        steps.extend(upper.iter().map(|_| Step::UnmountTarget));
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

    fn mount(point: &str, device: u32, read_only: bool) -> Mount {
        Mount { device: (0, device), point: point.into(), read_only, bucket: true }
    }

    /// A node with its mounts, and the devices whose server lives.
    #[derive(Clone, Debug, Default)]
    struct World {
        table: MountTable,
        alive: Vec<u32>,
        next: u32,
    }

    impl World {
        fn wanted(&self, read_only: bool) -> Wanted<'static> {
            let top = self.table.at(Path::new(SOURCE)).next_back();
            let alive = top.is_some_and(|mount| self.alive.contains(&mount.device.1));
            let lowest = self.table.at(Path::new(TARGET)).next();
            let target_dead = lowest.is_some_and(|mount| !self.alive.contains(&mount.device.1));
            Wanted { source: Path::new(SOURCE), target: Path::new(TARGET), read_only, alive, target_dead }
        }

        fn apply(&mut self, step: Step, read_only: bool) {
            let remove = |table: &mut MountTable, point: &str| {
                let last = table.0.iter().rposition(|mount| mount.point == Path::new(point));
                table.0.remove(last.expect("only what is mounted is unmounted"));
            };
            match step {
                Step::UnmountTarget => remove(&mut self.table, TARGET),
                Step::UnmountSource => remove(&mut self.table, SOURCE),
                Step::Serve => {
                    self.next += 1;
                    self.alive.push(1000 + self.next);
                    self.table.0.push(mount(SOURCE, 1000 + self.next, false));
                }
                Step::Bind => {
                    let device = self.table.at(Path::new(SOURCE)).next_back().unwrap().device.1;
                    self.table.0.push(mount(TARGET, device, read_only));
                }
            }
        }
    }

    #[test]
    fn the_usual_ways() {
        let mut world = World::default();
        assert_eq!(plan(&world.table, world.wanted(false)), [Step::Serve, Step::Bind]);
        for step in [Step::Serve, Step::Bind] {
            world.apply(step, false);
        }
        assert_eq!(plan(&world.table, world.wanted(false)), [], "a republish");
        assert_eq!(
            plan(&world.table, world.wanted(true)),
            [Step::UnmountTarget, Step::Bind],
            "it is read-only now"
        );
        let mut shared = world.clone();
        shared.table.0.pop();
        assert_eq!(
            plan(&shared.table, shared.wanted(true)),
            [Step::Bind],
            "another workload is served already"
        );
        world.alive.clear();
        let again = [Step::UnmountSource, Step::Serve, Step::UnmountTarget, Step::Bind];
        assert_eq!(plan(&world.table, world.wanted(true)), again, "its server is dead, and it is read-only");
        let covering = [Step::UnmountSource, Step::Serve, Step::Bind];
        assert_eq!(
            plan(&world.table, world.wanted(false)),
            covering,
            "containers may still have the dead one"
        );
        for step in covering {
            world.apply(step, false);
        }
        assert_eq!(plan(&world.table, world.wanted(false)), [], "a republish");
        world.alive.clear();
        assert_eq!(plan(&world.table, world.wanted(false)), again, "only the first dead one is kept");
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
        /// Whatever a predecessor left, however often it died: the next one that lives ends with one of each, upon a dead one
        /// at most.
        #[test]
        fn any_state_ends_with_one_source_and_one_bind(
            mounts in mounts(),
            alive in proptest::collection::vec(1_u32..4, 0..3),
            interrupted in proptest::collection::vec((0_usize..8, any::<bool>()), 0..5),
            read_only: bool,
        ) {
            let mut world = World { table: MountTable(mounts), alive, next: 0 };
            let others = world.table.at(Path::new("/other")).count();
            for (steps, dies) in interrupted {
                for step in plan(&world.table, world.wanted(read_only)).into_iter().take(steps) {
                    world.apply(step, read_only);
                }
                if dies {
                    world.alive.clear();
                }
            }
            for step in plan(&world.table, world.wanted(read_only)) {
                world.apply(step, read_only);
            }
            let source: Vec<_> = world.table.at(Path::new(SOURCE)).collect();
            let target: Vec<_> = world.table.at(Path::new(TARGET)).collect();
            let (top, below) = target.split_last().unwrap();
            prop_assert_eq!(source.len(), 1);
            prop_assert_eq!(source[0].device, top.device);
            prop_assert!(world.alive.contains(&source[0].device.1));
            prop_assert_eq!(top.read_only, read_only);
            prop_assert!(below.len() <= 1);
            prop_assert!(below.iter().all(|dead| dead.bucket && !world.alive.contains(&dead.device.1)));
            prop_assert_eq!(world.table.at(Path::new("/other")).count(), others, "nobody else's mount is touched");
            prop_assert_eq!(plan(&world.table, world.wanted(read_only)), []);
        }
    }
}
