//! The condition of an attachment. Pure.

use std::collections::BTreeMap;

use contract::mountpoint_pod::{MountpointPod, Phase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::events::Reason;
use crate::notices::start_failure_message;
use crate::observed::Attachment;
use crate::step::Step;

/// The one condition: whether every Mountpoint Pod of the attachment can serve.
const CONDITION: &str = "Healthy";

/// The condition as it should be, unless it already is. None is written while nothing was ever wrong, except that a warm pod
/// was claimed. That is read from the pod, and not remembered: the one write that says it may fail, or its controller may die
/// before it.
fn condition(
    attachment: &Attachment,
    failure: Option<(Reason, String)>,
    is_claimed: bool,
    now: &Time,
) -> Option<Condition> {
    let known = attachment.conditions.iter().find(|condition| condition.type_ == CONDITION);
    let (status, reason, message): (_, &str, _) = match failure {
        Some((reason, message)) => ("False", reason.into(), message),
        None if is_claimed => {
            let message = "a Mountpoint Pod that was already running was claimed".to_owned();
            ("True", "WarmMountpointPodClaimed", message)
        }
        None => {
            known.filter(|known| known.status != "True")?;
            ("True", "MountpointPodHealthy", String::new())
        }
    };
    if known.is_some_and(|known| known.status == status && known.reason == reason && known.message == message)
    {
        return None;
    }
    let since = known.filter(|known| known.status == status).map(|known| known.last_transition_time.clone());
    Some(Condition {
        type_: CONDITION.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: since.unwrap_or_else(|| now.clone()),
        observed_generation: None,
    })
}

/// What has to be written; `failure` is why there are no Mountpoint Pods at all.
pub fn changes(
    namespace: &str,
    attachments: &[Attachment],
    pods: &BTreeMap<String, MountpointPod>,
    failure: Option<&(Reason, String)>,
    now: &Time,
) -> Vec<Step> {
    let changed = attachments.iter().filter_map(|attachment| {
        let named = attachment.spec.mountpoint_pods.keys();
        let mut start_failures = named.clone().filter_map(|name| {
            let failure = pods.get(name)?.start_failure.as_ref()?;
            Some((failure.into(), start_failure_message(namespace, name, failure)))
        });
        let failure = failure.cloned().or_else(|| start_failures.next());
        let serves = |pod: &MountpointPod| pod.phase == Phase::Running && !pod.is_ending();
        let all_serve = named.clone().all(|name| pods.get(name).is_some_and(serves));
        if failure.is_none() && !all_serve {
            // Starting: what the condition says stays true until all of them run.
            return None;
        }
        let is_claimed = named.filter_map(|name| pods.get(name)).any(|pod| pod.claimed);
        let condition = Box::new(condition(attachment, failure, is_claimed, now)?);
        Some(Step::SetCondition { attachment: attachment.name.clone(), condition })
    });
    changed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn attachment(conditions: Vec<Condition>) -> Attachment {
        let spec = contract::attachment::AttachmentSpec::default();
        Attachment {
            name: "a".into(),
            uid: "u".into(),
            resource_version: 1,
            spec,
            conditions,
            terminating: false,
        }
    }

    #[test]
    fn nothing_is_written_while_nothing_is_wrong() {
        assert_eq!(condition(&attachment(vec![]), None, false, &at(1)), None);
    }

    #[test]
    fn a_claim_is_written_once_and_replaced_by_trouble() {
        let claimed = condition(&attachment(vec![]), None, true, &at(1)).unwrap();
        assert_eq!((claimed.status.as_str(), claimed.reason.as_str()), ("True", "WarmMountpointPodClaimed"));
        let served = attachment(vec![claimed]);
        assert_eq!(condition(&served, None, true, &at(2)), None);
        assert_eq!(condition(&served, None, false, &at(2)), None, "another pod has taken its place");
        let wrong = Some((Reason::MountpointPodFailed, "evicted".to_owned()));
        assert_eq!(condition(&served, wrong, false, &at(3)).unwrap().status, "False");
    }

    #[test]
    fn trouble_is_written_once_and_taken_back() {
        let wrong = || Some((Reason::MountpointPodUnschedulable, "full".to_owned()));
        let first = condition(&attachment(vec![]), wrong(), false, &at(1)).unwrap();
        assert_eq!((first.status.as_str(), first.reason.as_str()), ("False", "MountpointPodUnschedulable"));
        let troubled = attachment(vec![first.clone()]);
        assert_eq!(condition(&troubled, wrong(), false, &at(2)), None);
        let other =
            condition(&troubled, Some((Reason::MountpointPodCrashing, "again".into())), false, &at(2))
                .unwrap();
        assert_eq!(other.last_transition_time, at(1), "it has been false since then");
        let healed = condition(&troubled, None, false, &at(3)).unwrap();
        assert_eq!((healed.status.as_str(), healed.last_transition_time.clone()), ("True", at(3)));
        assert_eq!(condition(&attachment(vec![healed]), None, false, &at(4)), None);
    }
}
