//! What the driver's containers report on the S3 endpoint, and on their clocks.

use jiff::SignedDuration;

use super::finding::{Check, Finding, Level};
use crate::exec::Inside;
use crate::installation::{Installation, Role};
use crate::self_check::Verdict;
use crate::snapshot::Snapshot;

/// S3 refuses requests that are a quarter of an hour off; drift that has come so far goes on.
const CLOCKS_DIFFER_BY: SignedDuration = SignedDuration::from_mins(5);

const SKIPPED: &str = "nothing was run inside the driver's pods (--no-exec)";

pub(super) fn endpoint(snapshot: &Snapshot, inside: Option<&[Inside]>) -> Vec<Finding> {
    let Some(inside) = inside else {
        return vec![Finding::new(Check::Endpoint, Level::Skipped, "", SKIPPED)];
    };
    if inside.is_empty() {
        return vec![Finding::new(Check::Endpoint, Level::Skipped, "", "no pod of the driver is ready")];
    }
    let installation = Installation::of(&snapshot.deployments, &snapshot.daemon_sets);
    let has_identity = installation.is_some_and(|it| it.has_identity);
    let needed = !has_identity && snapshot.volumes.iter().any(crate::volume::VolumeFacts::uses_driver_keys);
    let mut found = Vec::new();
    for Inside { role, object, report } in inside {
        let finding = |level, message: String| Finding::new(Check::Endpoint, level, object.clone(), message);
        let report = match report {
            Ok(report) => report,
            Err(error) => {
                found.push(finding(Level::Skipped, format!("the self-check did not run: {error}")));
                continue;
            }
        };
        if report.answers.is_empty() {
            // A controller that makes no buckets has none.
            let level = if needed && *role == Role::Node { Level::Error } else { Level::Info };
            let message = format!("has no keys of the driver; {} was not asked", report.endpoint);
            found.push(finding(level, message).remedy("see `s3CredentialSecret` of the chart"));
        }
        for answer in &report.answers {
            let level = match answer.verdict {
                Verdict::Accepted => continue,
                // That bucket alone.
                Verdict::NoSuchBucket | Verdict::Denied => Level::Warning,
                Verdict::KeysRefused
                | Verdict::ClockSkew
                | Verdict::WrongRegion
                | Verdict::Unreachable
                | Verdict::Untrusted
                | Verdict::Failed => Level::Error,
            };
            found.push(finding(level, answer.message.clone()).remedy(remedy(answer.verdict)));
        }
    }
    found
}

fn remedy(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Accepted => "",
        Verdict::NoSuchBucket => "create the bucket, or correct `bucketName`",
        Verdict::Denied => "allow the driver's keys to list the bucket",
        Verdict::KeysRefused => "correct the keys in the driver's Secret",
        Verdict::ClockSkew => "set the clock of the node",
        Verdict::WrongRegion => "correct `s3.region` of the chart",
        Verdict::Unreachable => {
            "correct `s3.endpointUrl` of the chart, or the network between the node and the endpoint"
        }
        Verdict::Untrusted => {
            "give the certificate's authority to the driver: `tls.caCertConfigMap` of the chart"
        }
        Verdict::Failed => "see what the endpoint says",
    }
}

pub(super) fn clocks(inside: Option<&[Inside]>) -> Vec<Finding> {
    let Some(inside) = inside else { return vec![Finding::new(Check::Clock, Level::Skipped, "", SKIPPED)] };
    if !inside.iter().any(|inside| inside.report.is_ok()) {
        return vec![Finding::new(Check::Clock, Level::Skipped, "", "no self-check ran")];
    }
    let differ = inside.iter().filter_map(|Inside { object, report, .. }| {
        let off = report.as_ref().ok()?.off_by?;
        (off.abs() > CLOCKS_DIFFER_BY).then(|| {
            let message = format!("its clock differs from this machine's by {} s", off.as_secs());
            Finding::new(Check::Clock, Level::Warning, object.clone(), message)
                .remedy("set the clocks: S3 refuses requests that are 15 min off")
        })
    });
    differ.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::self_check::{Answer, SelfReport};
    use crate::why::scene::scene;

    fn report(verdicts: &[Verdict]) -> Inside {
        let answers = verdicts.iter().map(|verdict| Answer {
            bucket: "b".into(),
            verdict: *verdict,
            message: "said".into(),
        });
        let report =
            SelfReport { endpoint: "http://s3".into(), answers: answers.collect(), ..SelfReport::default() };
        Inside { role: Role::Node, object: "node n".into(), report: Ok(report) }
    }

    fn levels(inside: &[Inside]) -> Vec<Level> {
        endpoint(&scene(), Some(inside)).iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn every_verdict_has_its_level() {
        for (verdict, level) in [
            (Verdict::NoSuchBucket, Level::Warning),
            (Verdict::Denied, Level::Warning),
            (Verdict::KeysRefused, Level::Error),
            (Verdict::ClockSkew, Level::Error),
            (Verdict::WrongRegion, Level::Error),
            (Verdict::Unreachable, Level::Error),
            (Verdict::Untrusted, Level::Error),
            (Verdict::Failed, Level::Error),
        ] {
            assert_eq!(levels(&[report(&[verdict])]), [level], "{verdict:?}");
            assert!(!remedy(verdict).is_empty());
        }
        assert_eq!(levels(&[report(&[Verdict::Accepted])]), []);
        assert_eq!(levels(&[report(&[])]), [Level::Error], "a volume needs keys that are not there");
        assert_eq!(levels(&[]), [Level::Skipped]);
        let failed = Inside { role: Role::Node, object: "node n".into(), report: Err("no such file".into()) };
        assert_eq!(levels(&[failed]), [Level::Skipped]);
    }

    #[test]
    fn clocks_may_differ_a_little() {
        let off = |seconds| {
            let mut inside = report(&[]);
            inside.report.as_mut().unwrap().off_by = Some(SignedDuration::from_secs(seconds));
            clocks(Some(&[inside])).len()
        };
        assert_eq!((off(0), off(-299), off(301), off(-1000)), (0, 0, 1, 1));
    }
}
