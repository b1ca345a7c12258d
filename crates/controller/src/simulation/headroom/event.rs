//! What happens in a random history, and how often.

use proptest::prelude::*;

/// What can happen.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Arrive {
        volumes: usize,
        bound: bool,
    },
    Bind {
        workload: usize,
    },
    Start {
        workload: usize,
    },
    End {
        workload: usize,
    },
    IsDeleted {
        workload: usize,
    },
    IsRemoved {
        workload: usize,
    },
    /// By the scheduler, or by hand.
    PodIsRemoved {
        pod: usize,
    },
    PodEnds {
        pod: usize,
    },
    /// Whether headroom pods of volume 1 are refused.
    Quota {
        refuses: bool,
    },
    /// A controller decides with a cache of `age` events ago, and stops after `steps` steps.
    Reconcile {
        workload: usize,
        age: usize,
        steps: usize,
    },
}

pub(super) fn event() -> impl Strategy<Value = Event> {
    let index = 0..6_usize;
    let of = |make: fn(usize) -> Event| index.clone().prop_map(make);
    prop_oneof![
        3 => (0..3_usize, any::<bool>()).prop_map(|(volumes, bound)| Event::Arrive { volumes, bound }),
        2 => of(|workload| Event::Bind { workload }),
        2 => of(|workload| Event::Start { workload }),
        1 => of(|workload| Event::End { workload }),
        1 => of(|workload| Event::IsDeleted { workload }),
        2 => of(|workload| Event::IsRemoved { workload }),
        2 => of(|pod| Event::PodIsRemoved { pod }),
        1 => of(|pod| Event::PodEnds { pod }),
        1 => any::<bool>().prop_map(|refuses| Event::Quota { refuses }),
        10 => (index.clone(), 0..6_usize, 0..5_usize)
            .prop_map(|(workload, age, steps)| Event::Reconcile { workload, age, steps }),
    ]
}
