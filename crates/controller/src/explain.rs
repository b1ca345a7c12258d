//! What users are told, where they look first: Events on their pods, a condition on the attachment.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use contract::attachment::MountpointS3PodAttachment;
use contract::names::DRIVER;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client};
use serde_json::json;

use crate::confirm::read;
use crate::observed::{Attachment, Trouble, Workload};

/// Stable codes: alerts and scripts are built on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    InvalidVolumeAttributes,
    PersistentVolumeMissing,
    DuplicateVolumeHandle,
    MountOptionsIgnored,
    CacheSizeLimited,
    MountpointPodRejected,
    MountpointPodUnschedulable,
    MountpointPodImagePullFailed,
    MountpointPodCrashing,
    MountpointPodStartFailed,
    MountpointPodFailed,
    MountpointPodReplaced,
    ServiceAccountMissing,
    PodIdentityDisabled,
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidVolumeAttributes => "InvalidVolumeAttributes",
            Self::PersistentVolumeMissing => "PersistentVolumeMissing",
            Self::DuplicateVolumeHandle => "DuplicateVolumeHandle",
            Self::MountOptionsIgnored => "MountOptionsIgnored",
            Self::CacheSizeLimited => "CacheSizeLimited",
            Self::MountpointPodRejected => "MountpointPodRejected",
            Self::MountpointPodUnschedulable => "MountpointPodUnschedulable",
            Self::MountpointPodImagePullFailed => "MountpointPodImagePullFailed",
            Self::MountpointPodCrashing => "MountpointPodCrashing",
            Self::MountpointPodStartFailed => "MountpointPodStartFailed",
            Self::MountpointPodFailed => "MountpointPodFailed",
            Self::MountpointPodReplaced => "MountpointPodReplaced",
            Self::ServiceAccountMissing => "ServiceAccountMissing",
            Self::PodIdentityDisabled => "PodIdentityDisabled",
        }
    }

    /// The code for what keeps a Mountpoint Pod from running.
    pub fn of(trouble: &Trouble) -> Self {
        match trouble.reason.as_str() {
            "Unschedulable" | "SchedulerError" | "SchedulingGated" => Self::MountpointPodUnschedulable,
            "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" => {
                Self::MountpointPodImagePullFailed
            }
            "CrashLoopBackOff" => Self::MountpointPodCrashing,
            "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
                Self::MountpointPodStartFailed
            }
            _ => Self::MountpointPodFailed,
        }
    }
}

/// As long as something is wrong, it is told again after this long.
const REPEAT_AFTER: Duration = Duration::from_mins(10);
/// The API server takes notes of up to 1024 bytes.
const NOTE_BYTES: usize = 1000;

pub(crate) fn cut(message: &str) -> String {
    let mut end = message.len().min(NOTE_BYTES);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message[..end].to_owned()
}

/// The one condition: whether every Mountpoint Pod of the attachment can serve.
const CONDITION: &str = "Healthy";

/// What the condition should say, or nothing if nothing has to be written: while all is well and always was.
pub fn condition(attachment: &Attachment, wrong: Option<(Reason, String)>, now: &Time) -> Option<Condition> {
    let known = attachment.conditions.iter().find(|condition| condition.type_ == CONDITION);
    let (status, reason, message) = match wrong {
        Some((reason, message)) => ("False", reason.as_str(), message),
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

/// By workload, reason and what it was about.
type Told = HashMap<(String, Reason, Option<String>), Instant>;

pub struct Explainer {
    recorder: Recorder,
    attachments: Api<MountpointS3PodAttachment>,
    /// When something was told last: nobody wants to read it again at every retry.
    told: Mutex<Told>,
}

impl Explainer {
    pub fn new(client: &Client) -> Self {
        let reporter = Reporter { controller: DRIVER.to_owned(), instance: None };
        Self {
            recorder: Recorder::new(client.clone(), reporter),
            attachments: Api::all(client.clone()),
            told: Mutex::default(),
        }
    }

    /// An Event on each of the workloads that has not heard it lately. `about` is the volume or pod it is about.
    pub async fn tell(&self, workloads: &[Workload], reason: Reason, about: &ObjectReference, message: &str) {
        for workload in workloads {
            let what = (workload.uid.clone(), reason, about.name.clone());
            let lately = |at: &Instant| at.elapsed() < REPEAT_AFTER;
            if self.told().get(&what).is_some_and(lately) {
                continue;
            }
            self.told().insert(what.clone(), Instant::now());
            let event = Event {
                type_: EventType::Warning,
                reason: reason.as_str().to_owned(),
                note: Some(cut(message)),
                action: "Mount".to_owned(),
                secondary: Some(about.clone()),
            };
            let published =
                read("the answer to an event", self.recorder.publish(&event, &reference(workload))).await;
            if let Err(error) = published {
                tracing::warn!(pod_uid = workload.uid, reason = reason.as_str(), %error, "event not published");
                self.told().remove(&what);
            }
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().expect("nobody panics while noting")
    }

    /// Forgets what it told to those who are no more.
    pub fn forget(&self, is_there: impl Fn(&str) -> bool) {
        self.told().retain(|(uid, ..), _| is_there(uid));
    }

    pub async fn write(&self, attachment: &str, condition: &Condition) {
        let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
        let params = PatchParams::default();
        let write = self.attachments.patch_status(attachment, &params, &patch);
        if let Err(error) = read("the answer to a condition", write).await {
            tracing::warn!(attachment, %error, "condition not written");
        }
    }
}

pub fn volume(name: &str) -> ObjectReference {
    let (api_version, kind) = (Some("v1".to_owned()), Some("PersistentVolume".to_owned()));
    ObjectReference { api_version, kind, name: Some(name.to_owned()), ..ObjectReference::default() }
}

pub fn pod(namespace: &str, name: &str) -> ObjectReference {
    let (api_version, kind) = (Some("v1".to_owned()), Some("Pod".to_owned()));
    let (namespace, name) = (Some(namespace.to_owned()), Some(name.to_owned()));
    ObjectReference { api_version, kind, namespace, name, ..ObjectReference::default() }
}

fn reference(workload: &Workload) -> ObjectReference {
    ObjectReference { uid: Some(workload.uid.clone()), ..pod(&workload.namespace, &workload.name) }
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
    fn notes_are_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        let long = "ü".repeat(1000);
        assert_eq!(cut(&long).len(), 1000);
        assert_eq!(cut(&format!("x{long}")).len(), 999);
    }

    #[test]
    fn nothing_is_written_while_nothing_is_wrong() {
        assert_eq!(condition(&attachment(vec![]), None, &at(1)), None);
    }

    #[test]
    fn trouble_is_written_once_and_taken_back() {
        let wrong = || Some((Reason::MountpointPodUnschedulable, "full".to_owned()));
        let first = condition(&attachment(vec![]), wrong(), &at(1)).unwrap();
        assert_eq!((first.status.as_str(), first.reason.as_str()), ("False", "MountpointPodUnschedulable"));
        let troubled = attachment(vec![first.clone()]);
        assert_eq!(condition(&troubled, wrong(), &at(2)), None);
        let other =
            condition(&troubled, Some((Reason::MountpointPodCrashing, "again".into())), &at(2)).unwrap();
        assert_eq!(other.last_transition_time, at(1), "it has been false since then");
        let healed = condition(&troubled, None, &at(3)).unwrap();
        assert_eq!((healed.status.as_str(), healed.last_transition_time.clone()), ("True", at(3)));
        assert_eq!(condition(&attachment(vec![healed]), None, &at(4)), None);
    }
}
