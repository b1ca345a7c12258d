//! What happens in a random history, and how often.

use proptest::prelude::*;

/// What can happen.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Arrive {
        node: usize,
        volume: usize,
    },
    Start {
        workload: usize,
    },
    Leave {
        workload: usize,
    },
    EditVolumes,
    /// From then on, controllers are of another version.
    Upgrade,
    /// By hand.
    AttachmentIsDeleted {
        attachment: usize,
    },
    Vanish {
        node: usize,
    },
    PodRuns {
        pod: usize,
    },
    PodFails {
        pod: usize,
    },
    PodIsDeleted {
        pod: usize,
    },
    PodIsRemoved {
        pod: usize,
    },
    /// The node has unmounted everything that is marked.
    NodesUnmount,
    /// A controller decides with a cache of `age` events ago, and stops after `steps` steps.
    Reconcile {
        group: usize,
        age: usize,
        steps: usize,
    },
    Sweep {
        age: usize,
        steps: usize,
    },
    /// A controller looks after the warm pods of a node.
    Warm {
        node: usize,
        age: usize,
        steps: usize,
    },
}

pub(super) fn event() -> impl Strategy<Value = Event> {
    let index = 0..6_usize;
    let (age, steps) = (0..6_usize, 0..5_usize);
    prop_oneof![
        3 => (0..2_usize, 0..2_usize).prop_map(|(node, volume)| Event::Arrive { node, volume }),
        2 => index.clone().prop_map(|workload| Event::Start { workload }),
        3 => index.clone().prop_map(|workload| Event::Leave { workload }),
        1 => Just(Event::EditVolumes),
        1 => Just(Event::Upgrade),
        1 => index.clone().prop_map(|attachment| Event::AttachmentIsDeleted { attachment }),
        1 => (0..2_usize).prop_map(|node| Event::Vanish { node }),
        2 => index.clone().prop_map(|pod| Event::PodRuns { pod }),
        1 => index.clone().prop_map(|pod| Event::PodFails { pod }),
        1 => index.clone().prop_map(|pod| Event::PodIsDeleted { pod }),
        1 => index.prop_map(|pod| Event::PodIsRemoved { pod }),
        1 => Just(Event::NodesUnmount),
        12 => (0..8_usize, age.clone(), steps.clone()).prop_map(|(group, age, steps)| Event::Reconcile { group, age, steps }),
        3 => (age.clone(), steps.clone()).prop_map(|(age, steps)| Event::Sweep { age, steps }),
        3 => (0..2_usize, age, steps).prop_map(|(node, age, steps)| Event::Warm { node, age, steps }),
    ]
}
