//! What the driver's containers report on the S3 endpoint, and on their clocks.

use jiff::SignedDuration;

use super::finding::{Check, Finding, Level};
use super::keys::needed_by;
use crate::exec::Inside;
use crate::installation::{NODE_SERVICE, Provisioning, Role};
use crate::self_check::Verdict;
use crate::snapshot::Snapshot;
use crate::workload::is_ready;

/// S3 refuses requests that are a quarter of an hour off; a clock that has drifted this far keeps drifting.
const CLOCKS_DIFFER_BY: SignedDuration = SignedDuration::from_mins(5);

const SKIPPED: &str = "nothing was run inside the driver's pods (--no-exec)";

pub(super) fn endpoint(snapshot: &Snapshot, inside: Option<&[Inside]>) -> Vec<Finding> {
    let Some(inside) = inside else {
        return vec![Finding::new(Check::Endpoint, Level::Skipped, "", SKIPPED)];
    };
    let installation = snapshot.installation();
    let mut found = Vec::new();
    for role in [Role::Controller, Role::Node] {
        let mut of_role = inside.iter().filter(|inside| inside.role == role).peekable();
        if of_role.peek().is_none() {
            let message = "no pod of it was asked: none is ready, or --most-nodes is 0";
            found.push(Finding::new(Check::Endpoint, Level::Skipped, role.program(), message));
        }
        let without_keys = match (role, &installation) {
            (Role::Controller, Some(it)) if it.provisioning == Provisioning::Off => Level::Info,
            (_, Some(it)) if needed_by(snapshot, it, role) > 0 => Level::Error,
            _ => Level::Skipped,
        };
        found.extend(of_role.flat_map(|inside| answered(inside, without_keys)));
    }
    found.extend(unasked(snapshot, inside));
    found
}

/// An endpoint that serves some nodes may be closed to the others.
fn unasked(snapshot: &Snapshot, inside: &[Inside]) -> Option<Finding> {
    let asked = inside.iter().filter(|inside| inside.role == Role::Node).count();
    let ready = snapshot.node_services.iter().filter(|pod| is_ready(pod)).count();
    let message = format!("{asked} of {ready} node services were asked");
    let finding = Finding::new(Check::Endpoint, Level::Info, NODE_SERVICE, message);
    (0 < asked && asked < ready).then(|| finding.remedy("to ask more of them: --most-nodes"))
}

/// What one pod was answered. None is silent: that the endpoint serves one of them says nothing about the others.
fn answered(inside: &Inside, without_keys: Level) -> Vec<Finding> {
    let Inside { object, pod, report, .. } = inside;
    let finding = |level, said: &str| {
        Finding::new(Check::Endpoint, level, object.clone(), format!("pod {pod}: {said}"))
    };
    let report = match report {
        Ok(report) => report,
        Err(error) => return vec![finding(Level::Unknown, &format!("the self-check did not run: {error}"))],
    };
    let endpoint = &report.endpoint;
    if report.answers.is_empty() {
        let finding = finding(without_keys, &format!("has no keys of the driver; {endpoint} was not asked"));
        return vec![finding.remedy(
            "create the Secret that `s3CredentialSecret` of the chart names, or give the program an identity",
        )];
    }
    let mut found = Vec::new();
    for answer in &report.answers {
        let level = match answer.verdict {
            Verdict::Accepted => continue,
            // That bucket alone.
            Verdict::NoSuchBucket | Verdict::Denied => Level::Warning,
            Verdict::KeysRefused
            | Verdict::NoKeys
            | Verdict::ClockSkew
            | Verdict::WrongRegion
            | Verdict::Unreachable
            | Verdict::Untrusted
            | Verdict::Failed => Level::Error,
        };
        found.push(finding(level, &answer.message).remedy(remedy(answer.verdict)));
    }
    let accepted = report.answers.iter().filter(|answer| answer.verdict == Verdict::Accepted);
    let accepted: Vec<&str> = accepted.map(|answer| answer.bucket.as_str()).collect();
    if !accepted.is_empty() {
        let said = format!("{endpoint} accepts its keys; asked for {}", accepted.join(", "));
        found.push(finding(Level::Ok, &said));
    }
    found
}

fn remedy(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Accepted => "",
        Verdict::NoSuchBucket => "create the bucket, or correct `bucketName`",
        Verdict::Denied => "allow the driver's keys to list the bucket",
        Verdict::KeysRefused => "correct the keys in the driver's Secret, or its role",
        Verdict::NoKeys => "correct the driver's identity: its role, and who may assume it",
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
        let level = if inside.is_empty() { Level::Skipped } else { Level::Unknown };
        return vec![Finding::new(Check::Clock, level, "", "no self-check ran")];
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
    use crate::doctor::{Examined, examine};
    use crate::self_check::{Answer, SelfReport};
    use crate::why::scene::{driver_pod, scene};
    use contract::names::DRIVER;
    use serde_json::json;

    fn of(role: Role, verdicts: &[Verdict]) -> Inside {
        let answers = verdicts.iter().map(|verdict| Answer {
            bucket: "b".into(),
            verdict: *verdict,
            message: "said".into(),
        });
        let report =
            SelfReport { endpoint: "http://s3".into(), answers: answers.collect(), ..SelfReport::default() };
        let object = if role == Role::Node { "node n" } else { "controller c-1" };
        Inside { role, object: object.into(), pod: "kube-system/asked".into(), report: Ok(report) }
    }

    fn report(verdicts: &[Verdict]) -> Inside {
        of(Role::Node, verdicts)
    }

    /// Of these pods, and one of the controller that is served.
    fn levels(inside: &[Inside]) -> Vec<Level> {
        let all =
            inside.iter().cloned().chain([of(Role::Controller, &[Verdict::Accepted])]).collect::<Vec<_>>();
        let found = endpoint(&scene(), Some(&all));
        assert_eq!(found[0].level, Level::Ok);
        found.iter().skip(1).map(|finding| finding.level).collect()
    }

    #[test]
    fn every_verdict_has_its_level() {
        for (verdict, level) in [
            (Verdict::NoSuchBucket, Level::Warning),
            (Verdict::Denied, Level::Warning),
            (Verdict::KeysRefused, Level::Error),
            (Verdict::NoKeys, Level::Error),
            (Verdict::ClockSkew, Level::Error),
            (Verdict::WrongRegion, Level::Error),
            (Verdict::Unreachable, Level::Error),
            (Verdict::Untrusted, Level::Error),
            (Verdict::Failed, Level::Error),
        ] {
            assert_eq!(levels(&[report(&[verdict])]), [level], "{verdict:?}");
            assert!(!remedy(verdict).is_empty());
        }
        assert_eq!(levels(&[report(&[Verdict::Accepted])]), [Level::Ok]);
        assert_eq!(
            levels(&[report(&[Verdict::Denied, Verdict::Accepted])]),
            [Level::Warning, Level::Ok],
            "the keys are accepted, for another bucket"
        );
        assert_eq!(levels(&[report(&[])]), [Level::Error], "a volume needs keys that are not there");
        let failed = Inside { report: Err("no such file".into()), ..report(&[]) };
        assert_eq!(levels(&[failed]), [Level::Unknown]);
    }

    /// An endpoint that one of the two programs reaches may be closed to the other.
    #[test]
    fn each_program_is_asked_and_says_so_for_itself() {
        let lines = |inside: &[Inside]| -> Vec<String> {
            let examined = Examined { inside: Some(inside.to_vec()), ..Examined::default() };
            let findings = examine(&scene(), &examined).findings.into_iter();
            findings
                .filter(|finding| finding.check == Check::Endpoint)
                .map(|it| format!("{:?} {}: {}", it.level, it.object, it.message))
                .collect()
        };
        let served = "pod kube-system/asked: http://s3 accepts its keys; asked for b";
        let (controller, node) = (format!("Ok controller c-1: {served}"), format!("Ok node n: {served}"));
        let unasked = |program: &str| {
            format!("Skipped {program}: no pod of it was asked: none is ready, or --most-nodes is 0")
        };
        let [of_controller, of_node] =
            [Role::Controller, Role::Node].map(|role| of(role, &[Verdict::Accepted]));
        let both = [of_node.clone(), of_controller.clone()];
        assert_eq!(lines(&both), [controller.clone(), node.clone()], "and no line for all of it");
        assert_eq!(lines(&[of_controller]), [controller, unasked("s3-csi-node")]);
        assert_eq!(lines(&[of_node]), [unasked("s3-csi-controller"), node]);
        assert_eq!(lines(&[]), [unasked("s3-csi-controller"), unasked("s3-csi-node")]);
    }

    #[test]
    fn nodes_that_were_not_asked_are_counted() {
        let mut snapshot = scene();
        let said = |snapshot: &Snapshot| -> Vec<(Level, String)> {
            let inside = [Role::Controller, Role::Node].map(|role| of(role, &[Verdict::Accepted]));
            let found = endpoint(snapshot, Some(&inside)).into_iter();
            found.skip(2).map(|finding| (finding.level, finding.message)).collect()
        };
        assert_eq!(said(&snapshot), []);
        snapshot.node_services.push(driver_pod("s3-csi-node-2", false));
        assert_eq!(said(&snapshot), [], "it is not ready, and another check says so");
        snapshot.node_services.push(driver_pod("s3-csi-node-3", true));
        assert_eq!(said(&snapshot), [(Level::Info, "1 of 2 node services were asked".to_owned())]);
    }

    #[test]
    fn keys_are_missing_only_where_they_are_used() {
        let mut snapshot = scene();
        snapshot.volumes.clear();
        let levels = |snapshot: &Snapshot| -> Vec<Level> {
            let all = [of(Role::Controller, &[]), report(&[])];
            endpoint(snapshot, Some(&all)).iter().map(|finding| finding.level).collect()
        };
        assert_eq!(levels(&snapshot), [Level::Skipped, Level::Skipped]);
        let class = json!({"metadata": {"name": "c"}, "provisioner": DRIVER});
        snapshot.classes = vec![serde_json::from_value(class).unwrap()];
        assert_eq!(levels(&snapshot), [Level::Error, Level::Skipped], "its claims wait");
        let template = &mut snapshot.deployments[0].spec.as_mut().unwrap().template;
        template.spec.as_mut().unwrap().containers[0].env = None;
        assert_eq!(levels(&snapshot), [Level::Info, Level::Skipped], "a controller that makes no buckets");
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

    #[test]
    fn clocks_of_pods_that_did_not_answer_are_unknown() {
        let levels = |inside: Option<&[Inside]>| {
            clocks(inside).into_iter().map(|finding| finding.level).collect::<Vec<_>>()
        };
        let forbidden = Inside { report: Err("forbidden".into()), ..report(&[]) };
        assert_eq!(levels(Some(&[forbidden][..])), [Level::Unknown]);
        assert_eq!((levels(None), levels(Some(&[]))), (vec![Level::Skipped], vec![Level::Skipped]));
    }
}
