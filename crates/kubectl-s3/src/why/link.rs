//! The links of a chain, and how they are put together.

use serde::Serialize;
use strum::IntoStaticStr;

/// From the user's pod to its mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, IntoStaticStr)]
#[serde(rename_all = "camelCase")]
#[strum(const_into_str, serialize_all = "lowercase")]
pub enum Step {
    Claim,
    Class,
    Volume,
    Keys,
    Node,
    #[strum(serialize = "node service")]
    NodeService,
    Attachment,
    #[strum(serialize = "Mountpoint Pod")]
    MountpointPod,
    Mount,
    Workload,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    Ok,
    /// The chain ends here.
    Stops,
    /// Wrong, but what is mounted stays mounted.
    Warns,
    /// This user may not read it.
    Unknown,
    NotReached,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Link {
    pub step: Step,
    pub object: String,
    pub state: State,
    pub note: String,
}

/// The reason, and what helps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    pub step: Step,
    /// Stable: the reason of the driver's Event or of the condition where there is one.
    pub reason: String,
    pub message: String,
    pub remedy: String,
    /// What to try next.
    pub command: String,
}

/// What one step finds.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Passes { object: String, note: String },
    Unknown { object: String, note: String },
    Stops(Stop),
}

#[derive(Clone, Debug)]
pub(crate) struct Stop {
    pub(crate) object: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) remedy: String,
    pub(crate) command: String,
}

impl Outcome {
    pub(crate) fn pass(object: impl Into<String>, note: impl Into<String>) -> Self {
        Self::Passes { object: object.into(), note: note.into() }
    }

    pub(crate) fn stop(
        object: impl Into<String>,
        reason: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
        command: impl Into<String>,
    ) -> Self {
        Self::Stops(Stop {
            object: object.into(),
            reason: reason.into(),
            message: message.into(),
            remedy: remedy.into(),
            command: command.into(),
        })
    }

    pub(crate) fn unknown(object: impl Into<String>, note: impl Into<String>) -> Self {
        Self::Unknown { object: object.into(), note: note.into() }
    }
}

/// Takes the outcomes in order. The first that stops is the cause; what comes after it is not reached.
pub(crate) struct Walk {
    pub(crate) links: Vec<Link>,
    pub(crate) cause: Option<Cause>,
    is_mounted: bool,
}

impl Walk {
    pub(crate) fn new(is_mounted: bool) -> Self {
        Self { links: Vec::new(), cause: None, is_mounted }
    }

    pub(crate) fn take(&mut self, step: Step, outcome: Outcome) {
        let link = |object: String, state: State, note: String| Link { step, object, state, note };
        if self.cause.is_some() {
            return self.links.push(link(String::new(), State::NotReached, String::new()));
        }
        // What is mounted needs its Mountpoint Pod alone.
        let only_warns = self.is_mounted && step < Step::Attachment;
        self.links.push(match outcome {
            Outcome::Passes { object, note } => link(object, State::Ok, note),
            Outcome::Unknown { object, note } => link(object, State::Unknown, note),
            Outcome::Stops(Stop { object, message, .. }) if only_warns => link(object, State::Warns, message),
            Outcome::Stops(Stop { object, reason, message, remedy, command }) => {
                self.cause = Some(Cause { step, reason: reason.clone(), message, remedy, command });
                link(object, State::Stops, reason)
            }
        });
    }
}
