//! Whether the installation is sound: checks are pure functions from what was seen to findings.

mod attachments;
mod endpoint;
mod finding;
mod installation;
mod keys;
mod leftovers;
pub mod rights;
pub mod rules;
mod volumes;

use serde::Serialize;

use crate::exec::Inside;
use crate::readable::Readable;
use crate::snapshot::Snapshot;
pub use finding::{Check, Finding, Level};
use rights::Reviewed;

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Of this plugin.
    pub version: &'static str,
    /// Whether there is no error.
    pub healthy: bool,
    /// Whether everything could be found out that was to be checked.
    pub complete: bool,
    pub findings: Vec<Finding>,
}

/// What is seen beside the objects.
#[derive(Clone, Debug, Default)]
pub struct Examined {
    /// Nothing, if it was not asked for.
    pub rights: Option<Reviewed>,
    /// What the driver's containers report on themselves; nothing, if they were not asked.
    pub inside: Option<Vec<Inside>>,
}

/// A check, what it needs to read, and what it finds wrong.
type Checked = (Check, &'static [Readable], fn(&Snapshot, &Examined) -> Vec<Finding>);

const CHECKS: &[Checked] = &[
    (Check::Definition, &[Readable::Definition], |seen, _| installation::definition(seen)),
    (Check::CsiDriver, &[Readable::CsiDrivers], |seen, _| installation::csi_driver(seen)),
    (Check::Controller, &[Readable::DriverWorkloads, Readable::DriverPods], |seen, _| {
        installation::controller(seen)
    }),
    (
        Check::NodeService,
        &[Readable::DriverWorkloads, Readable::DriverPods, Readable::Nodes, Readable::CsiNodes],
        |seen, _| installation::node_service(seen),
    ),
    (Check::Versions, &[Readable::DriverPods, Readable::MountpointPods], |seen, _| {
        installation::versions(seen)
    }),
    (Check::Permissions, &[Readable::DriverWorkloads], |_, examined| {
        rights::denied(examined.rights.as_ref())
    }),
    (Check::DriverKeys, &[Readable::DriverWorkloads], |seen, _| keys::driver_keys(seen)),
    (Check::Classes, &[Readable::Classes], |seen, _| volumes::classes(seen)),
    (Check::Volumes, &[Readable::Volumes], |seen, _| volumes::volumes(seen)),
    (Check::Claims, &[Readable::Claims, Readable::Events], |seen, _| volumes::claims(seen)),
    (Check::Attachments, &[Readable::Attachments, Readable::MountpointPods, Readable::Pods], |seen, _| {
        attachments::attachments(seen)
    }),
    (Check::Leftovers, &[Readable::Nodes, Readable::CsiDrivers], |seen, _| leftovers::leftovers(seen)),
    (Check::Kernel, &[Readable::Nodes], |seen, _| leftovers::kernels(seen)),
    (Check::Endpoint, &[Readable::DriverPods], |seen, examined| {
        endpoint::endpoint(seen, examined.inside.as_deref())
    }),
    (Check::Clock, &[Readable::DriverPods], |_, examined| endpoint::clocks(examined.inside.as_deref())),
];

/// Everything that was checked, in order, with one line for each check that found nothing.
pub fn examine(snapshot: &Snapshot, examined: &Examined) -> Report {
    let mut findings = Vec::new();
    for (check, needs, find) in CHECKS {
        let hidden = needs.iter().find_map(|what| Some((what, snapshot.unreadable.get(what)?)));
        if let Some((what, error)) = hidden {
            let message = format!("cannot read {}: {error}", what.into_str());
            findings.push(Finding::new(*check, Level::Unknown, "", message));
            continue;
        }
        let found = find(snapshot, examined);
        if found.iter().all(|finding| finding.level == Level::Info) {
            findings.push(Finding::new(*check, Level::Ok, "", ""));
        }
        findings.extend(found);
    }
    let healthy = findings.iter().all(|finding| finding.level != Level::Error);
    let complete = findings.iter().all(|finding| finding.level != Level::Unknown);
    Report { version: env!("CARGO_PKG_VERSION"), healthy, complete, findings }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::installation::Role;
    use crate::self_check::SelfReport;
    use crate::why::scene::scene;

    #[test]
    fn what_cannot_be_read_is_unknown_and_is_no_error() {
        let mut snapshot = scene();
        snapshot.unreadable.insert(Readable::Volumes, "forbidden".to_owned());
        let report = examine(&snapshot, &Examined::default());
        let volumes = report.findings.iter().find(|finding| finding.check == Check::Volumes).unwrap();
        assert_eq!(volumes.level, Level::Unknown);
        assert!(volumes.message.contains("forbidden"));
        assert!(!report.complete);
    }

    /// A user without the right to `exec` does not learn what the driver's pods would have said.
    #[test]
    fn a_report_is_complete_if_everything_that_was_asked_was_answered() {
        let complete = |inside: Option<Vec<Inside>>| {
            examine(&scene(), &Examined { inside, ..Examined::default() }).complete
        };
        assert!(complete(None), "nothing was to be run");
        let pod = |role, report| Inside { role, object: String::new(), pod: String::new(), report };
        let answered = |role| pod(role, Ok(SelfReport::default()));
        assert!(complete(Some(vec![answered(Role::Controller), answered(Role::Node)])));
        let forbidden = pod(Role::Node, Err("pods \"s3-csi-node-1\" is forbidden".to_owned()));
        assert!(!complete(Some(vec![answered(Role::Controller), forbidden])));
    }

    #[test]
    fn every_check_has_a_line() {
        let report = examine(&scene(), &Examined::default());
        for (check, ..) in CHECKS {
            assert!(report.findings.iter().any(|finding| finding.check == *check), "{check:?}");
        }
    }

    #[test]
    fn one_error_is_enough() {
        let mut snapshot = scene();
        snapshot.definition = None;
        assert!(!examine(&snapshot, &Examined::default()).healthy);
    }
}
