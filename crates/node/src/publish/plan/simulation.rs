//! A node with containers, on which publishes follow the plan and can be interrupted after every step.

use proptest::prelude::*;

use super::*;

const SOURCE: &str = "/source";
const TARGET: &str = "/target";
/// Device of the seal.
const SEAL: u32 = 999;
const BIND: Step = Step::BindTarget { read_only: false };
const BIND_READ_ONLY: Step = Step::BindTarget { read_only: true };

fn mount(point: &str, device: u32, read_only: bool) -> Mount {
    Mount { device: (0, device), point: point.into(), read_only, bucket: device != SEAL }
}

fn wanted(read_only: bool) -> Wanted<'static> {
    Wanted { source: Path::new(SOURCE), target: Path::new(TARGET), read_only, single_pod: false }
}

/// A node with its mounts, the devices whose mount process lives, and containers with `HostToContainer`.
#[derive(Clone, Debug, Default)]
struct World {
    table: MountTable,
    alive: Vec<u32>,
    /// Whether the mount at the target could be moved from another Mountpoint Pod.
    movable: bool,
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

    fn liveness(&self, point: &str) -> Liveness {
        match self.at(point).pop() {
            Some(top) if self.alive.contains(&top.device.1) => Liveness::Alive,
            Some(top) if top.bucket => Liveness::Dead("ENOTCONN".into()),
            _ => Liveness::NotMounted,
        }
    }

    fn plan(&self, read_only: bool) -> Plan {
        let (source, target) = (self.liveness(SOURCE), self.liveness(TARGET));
        let (table, movable) = (&self.table, self.movable);
        let observed = Observed { table, source, target, movable, other_targets: Vec::new() };
        plan(&observed, &wanted(read_only)).unwrap()
    }

    fn steps(&self, read_only: bool) -> Vec<Step> {
        self.plan(read_only).steps
    }

    /// The first `steps` of a publish.
    fn publish(&mut self, read_only: bool, steps: usize) {
        for step in self.steps(read_only).into_iter().take(steps) {
            let has_bucket = |world: &Self| world.at(TARGET).last().is_some_and(|top| top.bucket);
            let had = has_bucket(self);
            self.apply(step);
            assert!(!had || has_bucket(self), "{step:?} exposes the bare directory to a workload");
        }
    }

    fn apply(&mut self, step: Step) {
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
            Step::MountSource => {
                self.next += 1;
                self.alive.push(1000 + self.next);
                self.table.0.push(mount(SOURCE, 1000 + self.next, false));
            }
            Step::MoveSource => {
                let device = self.at(TARGET).pop().unwrap().device.1;
                self.alive.push(device);
                self.table.0.push(mount(SOURCE, device, false));
                self.movable = false;
            }
            Step::SealTarget => self.cover(mount(TARGET, SEAL, true)),
            Step::BindTarget { read_only } => {
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
fn a_plan_mounts_only_what_is_missing() {
    let mut world = World::default();
    assert_eq!(world.steps(false), [Step::MountSource, Step::SealTarget, BIND]);
    world.publish(false, usize::MAX);
    assert_eq!(world.plan(false), Plan::default(), "republished");
    assert_eq!(world.steps(true), [BIND_READ_ONLY], "became read-only");
    let mut shared = world.clone();
    shared.table.0.retain(|mount| mount.point == Path::new(SOURCE));
    assert_eq!(shared.steps(true), [Step::SealTarget, BIND_READ_ONLY], "a second workload");
    let mut interrupted = world.clone();
    interrupted.table.0.push(mount(SOURCE, interrupted.alive[0], true));
    assert_eq!(interrupted.steps(false), [Step::UnmountSource], "an interrupted read-only bind");
    let mut moved = world.clone();
    moved.unmount(SOURCE);
    let steps = vec![Step::MountSource, BIND];
    assert_eq!(moved.plan(false), Plan { target_is_lost: false, steps }, "moved to another Mountpoint Pod");
    moved.movable = true;
    assert_eq!(moved.steps(false), [Step::MoveSource], "together with its mount");
    assert_eq!(moved.steps(true), [Step::MoveSource, BIND_READ_ONLY]);
    world.movable = true;
    assert_eq!(world.plan(false), Plan::default(), "it is here already");
    world.movable = false;
    world.alive.clear();
    for (read_only, bind) in [(false, BIND), (true, BIND_READ_ONLY)] {
        let steps = vec![Step::UnmountSource, Step::MountSource, bind];
        assert_eq!(world.plan(read_only), Plan { target_is_lost: true, steps }, "the mount process died");
    }
    world.unmount(SOURCE);
    let steps = vec![Step::MountSource, BIND];
    assert_eq!(world.plan(false), Plan { target_is_lost: true, steps }, "its Mountpoint Pod is gone, too");
}

#[test]
fn nothing_is_done_to_a_mount_that_is_slow_or_anothers() {
    let mut world = World::default();
    world.publish(false, usize::MAX);
    let observed = |source: Liveness| Observed {
        table: &world.table,
        target: source.clone(),
        source,
        movable: false,
        other_targets: vec!["/other".into()],
    };
    let unresponsive = Err(Refusal::Unresponsive(SOURCE.into()));
    assert_eq!(plan(&observed(Liveness::Unresponsive), &wanted(false)), unresponsive);
    assert_eq!(plan(&observed(Liveness::Alive), &wanted(false)), Ok(Plan::default()));
    let single_pod = Wanted { single_pod: true, ..wanted(false) };
    let used = Err(Refusal::UsedByOtherPod("/other".into()));
    assert_eq!(plan(&observed(Liveness::Alive), &single_pod), used);
    let alone = Observed { other_targets: Vec::new(), ..observed(Liveness::Alive) };
    assert_eq!(plan(&alone, &single_pod), Ok(Plan::default()));
}

#[derive(Clone, Copy, Debug)]
enum Event {
    MountProcessDies,
    /// The attachment names another Mountpoint Pod, whose source is elsewhere.
    Moves {
        movable: bool,
    },
    ContainerStarts,
    Publish {
        steps: usize,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let one = prop_oneof![
        2 => Just(Event::MountProcessDies),
        1 => any::<bool>().prop_map(|movable| Event::Moves { movable }),
        3 => Just(Event::ContainerStarts),
        3 => Just(Event::Publish { steps: usize::MAX }),
        1 => (0_usize..20).prop_map(|steps| Event::Publish { steps }),
    ];
    proptest::collection::vec(one, 0..120)
}

fn mounts() -> impl Strategy<Value = Vec<Mount>> {
    let one =
        (proptest::sample::select(&[SOURCE, TARGET, "/other"][..]), 1_u32..4, any::<bool>(), any::<bool>());
    let one = one
        .prop_map(|(point, device, read_only, bucket)| Mount { bucket, ..mount(point, device, read_only) });
    proptest::collection::vec(one, 0..6)
}

proptest! {
    /// Whatever a predecessor left, and in whatever order mount processes die, workloads move and containers start: the next
    /// publish that is not interrupted ends with one source mount, the same on top of the target, and in every container.
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
                Event::MountProcessDies => world.alive.clear(),
                Event::Moves { movable } => {
                    world.movable = movable;
                    world.table.0.retain(|mount| mount.point != Path::new(SOURCE));
                }
                Event::ContainerStarts => world.start_container(),
                Event::Publish { steps } => world.publish(read_only, steps),
            }
            prop_assert!(world.layers.len() <= MAX_LAYERS);
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
        prop_assert_eq!(world.at("/other").len(), others, "other mounts are not touched");
        prop_assert_eq!(world.steps(read_only), []);
    }
}
