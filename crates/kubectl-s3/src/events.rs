//! Events: the newest about an object, and what is inside the kubelet's sentences.

use contract::names::mount_event;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;

/// When it was last seen. Which of its times is set depends on who wrote it.
pub fn last_seen(event: &Event) -> Timestamp {
    let series =
        event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    let first = event.event_time.as_ref().map(|time| time.0);
    let created = event.metadata.creation_timestamp.as_ref().map(|time| time.0);
    series.max(last).or(first).or(created).unwrap_or_default()
}

/// The object that an event is about.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub kind: &'a str,
    pub namespace: Option<&'a str>,
    pub name: &'a str,
    /// A namesake that is gone may have left events.
    pub uid: Option<&'a str>,
}

impl Subject<'_> {
    fn is_of(&self, event: &Event) -> bool {
        let object = &event.involved_object;
        let same_uid = match (self.uid, object.uid.as_deref()) {
            (Some(mine), Some(its)) => mine == its,
            _ => true,
        };
        object.kind.as_deref() == Some(self.kind)
            && object.name.as_deref() == Some(self.name)
            && (self.namespace.is_none() || object.namespace.as_deref() == self.namespace)
            && same_uid
    }
}

/// The newest event about the object that has one of these reasons, or any Warning if there are none.
pub fn newest<'a>(events: &'a [Event], subject: Subject<'_>, reasons: &[&str]) -> Option<&'a Event> {
    let wanted = |event: &&Event| {
        let reason = event.reason.as_deref().unwrap_or_default();
        if reasons.is_empty() { event.type_.as_deref() == Some("Warning") } else { reasons.contains(&reason) }
    };
    events.iter().filter(|event| subject.is_of(event)).filter(wanted).max_by_key(|event| last_seen(event))
}

/// What the node service reported about the mounts of a pod, unless they have recovered since.
pub fn mount_trouble<'a>(events: &'a [Event], pod: Subject<'_>) -> Option<&'a Event> {
    let fails = |event: &&Event| event.type_.as_deref() == Some("Warning");
    let lists = mount_event::FAILURES_AND_RECOVERIES.into_iter();
    lists.filter_map(|reasons| newest(events, pod, reasons)).find(fails)
}

pub fn message(event: &Event) -> &str {
    event.message.as_deref().unwrap_or_default()
}

/// The kubelet's `FailedMount` about one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountFailure {
    /// gRPC's name of the code that the node service answered with, if it was asked at all.
    pub code: Option<String>,
    /// What the node service said, or the kubelet itself.
    pub message: String,
}

/// The newest about this volume: each volume of a pod fails with Events of its own.
pub fn mount_failure(events: &[Event], pod: Subject<'_>, volume: &str) -> Option<MountFailure> {
    let failed = events.iter().filter(|event| event.reason.as_deref() == Some("FailedMount"));
    let mine = failed.filter(|event| pod.is_of(event));
    let mine = mine.filter_map(|event| Some((last_seen(event), failure_of(message(event), volume)?)));
    mine.max_by_key(|(seen, _)| *seen).map(|(_, failure)| failure)
}

/// `MountVolume.SetUp failed for volume "PV" : rpc error: code = NotFound desc = there is no bucket …`
fn failure_of(text: &str, volume: &str) -> Option<MountFailure> {
    let (_, rest) = text.split_once(&format!("failed for volume \"{volume}\""))?;
    let rest = rest.trim_start_matches([' ', ':']);
    let answered =
        rest.split_once("rpc error: code = ").and_then(|(_, answer)| answer.split_once(" desc = "));
    Some(match answered {
        Some((code, said)) => MountFailure { code: Some(code.to_owned()), message: said.to_owned() },
        None => MountFailure { code: None, message: rest.to_owned() },
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// An event about an object in `ns`, seen at this second.
    pub(crate) fn event(kind: &str, name: &str, reason: &str, message: &str, second: i64) -> Event {
        let at = Timestamp::from_second(second).unwrap().to_string();
        serde_json::from_value(json!({
            "metadata": {"name": format!("{name}.{second}"), "namespace": "ns"},
            "involvedObject": {"kind": kind, "name": name, "namespace": "ns"},
            "reason": reason, "message": message, "type": "Warning", "lastTimestamp": at,
        }))
        .unwrap()
    }

    /// The same that reports a recovery.
    pub(crate) fn recovery(kind: &str, name: &str, reason: &str, message: &str, second: i64) -> Event {
        Event { type_: Some("Normal".to_owned()), ..event(kind, name, reason, message, second) }
    }

    #[test]
    fn the_newest_of_the_reasons_counts() {
        let events = [
            event("Pod", "web", "FailedMount", "old", 1),
            event("Pod", "web", "FailedMount", "new", 5),
            event("Pod", "web", "Other", "newest", 9),
            event("Pod", "db", "FailedMount", "another's", 10),
        ];
        let subject = Subject { kind: "Pod", namespace: Some("ns"), name: "web", uid: Some("u") };
        let said = |reasons: &[&str]| newest(&events, subject, reasons).map(message);
        assert_eq!(said(&["FailedMount"]), Some("new"));
        assert_eq!(said(&[]), Some("newest"));
        assert_eq!(said(&["Absent"]), None);
    }

    #[test]
    fn a_namesakes_events_are_not_taken_for_its_own() {
        let mut old = event("Pod", "web", "FailedMount", "of the first", 1);
        old.involved_object.uid = Some("first".into());
        let subject = Subject { kind: "Pod", namespace: Some("ns"), name: "web", uid: Some("second") };
        assert!(newest(&[old], subject, &[]).is_none());
    }

    #[test]
    fn the_node_services_answer_is_inside_the_kubelets_sentence() {
        let text = "MountVolume.SetUp failed for volume \"pv\" : rpc error: code = NotFound desc = there is no bucket `b`";
        let failure = failure_of(text, "pv").unwrap();
        assert_eq!(
            (failure.code.as_deref(), failure.message.as_str()),
            (Some("NotFound"), "there is no bucket `b`")
        );
        assert_eq!(failure_of(text, "other"), None);
        let own = failure_of(
            "MountVolume.SetUp failed for volume \"pv\" : fetching NodePublishSecretRef failed",
            "pv",
        );
        assert_eq!(
            own.unwrap(),
            MountFailure { code: None, message: "fetching NodePublishSecretRef failed".into() }
        );
    }
}
