//! The suites with real parts on one Kubernetes release, each in a cluster of its own.

use anyhow::Result;

use super::count::{Count, or_failed};
use super::evidence;
use super::suite::{Place, suite};
use super::wanted::{Suite, Wanted};
use crate::cache::Cache;
use crate::cargo::TestProgram;
use crate::cluster::{Cluster, Plan, Profile};
use crate::image;
use crate::programs::Kubernetes;

/// The first node runs the control plane, so that tests can stop the two others.
const NODES: u8 = 3;

/// The result of a suite on a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) kubernetes: Kubernetes,
    pub(super) suite: String,
    pub(super) count: Count,
}

/// Side by side: the suites mostly wait, for the kubelet, for deadlines and for each other's locks.
pub(super) fn run(
    cache: &Cache,
    wanted: &Wanted,
    kubernetes: Kubernetes,
    programs: &[TestProgram],
) -> Vec<Outcome> {
    println!("\nKubernetes {kubernetes}");
    let on = |suite: Suite, profile| {
        let name = format!("{suite:?}").to_lowercase();
        let run = || in_own_cluster(cache, wanted, programs, &name, plan(suite, profile, kubernetes));
        wanted.includes(suite).then(|| Outcome { kubernetes, count: run(), suite: name.clone() })
    };
    let control_plane = || vec![on(Suite::Api, Profile::Api), on(Suite::Claims, Profile::Control)];
    let nodes = || vec![on(Suite::Cluster, Profile::Node), on(Suite::Nodes, Profile::Node)];
    let identities = || {
        let mut outcomes = vec![on(Suite::Identities, Profile::Node)];
        // It uses no Kubernetes, so that one release is enough.
        if wanted.releases()[0] == kubernetes {
            outcomes.push(on(Suite::Kernel, Profile::Kernel));
        }
        outcomes
    };
    // The tests of the node itself make clusters of their own. They compile for minutes, so that they come last.
    let ground = || {
        let count = || or_failed("ground", suite(programs, "ground", Place::Machine(kubernetes), wanted));
        wanted.includes(Suite::Cluster).then(|| Outcome {
            kubernetes,
            suite: "ground".to_owned(),
            count: count(),
        })
    };
    let operations = || {
        let outcome = if wanted.includes(Suite::Operations)
            && let Err(error) = other_version(cache, wanted)
        {
            let count = or_failed("operations", Err(error));
            Some(Outcome { kubernetes, suite: "operations".to_owned(), count })
        } else {
            on(Suite::Operations, Profile::Node)
        };
        vec![outcome, ground()]
    };
    std::thread::scope(|scope| {
        let others = [scope.spawn(operations), scope.spawn(identities), scope.spawn(control_plane)];
        let mut outcomes = nodes();
        for lane in others {
            outcomes.extend(lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        outcomes.into_iter().flatten().collect()
    })
}

/// Which the driver is upgraded to, or from.
fn other_version(cache: &Cache, wanted: &Wanted) -> Result<()> {
    if wanted.released { image::released::build(cache) } else { image::next::build(cache) }
}

fn plan(suite: Suite, profile: Profile, kubernetes: Kubernetes) -> Plan {
    let nodes = if suite == Suite::Nodes { NODES } else { 1 };
    Plan { profile, kubernetes, nodes }
}

/// The cluster is made for the suite, so that a person's own is left as it is.
fn in_own_cluster(cache: &Cache, wanted: &Wanted, programs: &[TestProgram], name: &str, plan: Plan) -> Count {
    let cluster = Cluster::named(cache, &format!("test-{name}"));
    // What an earlier run left, on purpose or not, is not what a test expects to find.
    let up = cluster.down().and_then(|()| cluster.up(plan));
    let mut total = match up {
        Ok(()) => or_failed(name, suite(programs, name, Place::Inside(&cluster), wanted)),
        Err(error) => {
            evidence::keep(&cluster, name);
            or_failed(name, Err(error))
        }
    };
    if !wanted.keep {
        total += or_failed("down", cluster.down().map(|()| Count::default()));
    }
    total
}
