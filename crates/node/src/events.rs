//! Kubernetes Events on the workload about the state of its mount.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use contract::names::mount_event;
use kube::runtime::events::EventType;
use parking_lot::Mutex;
use service::events::{self, Events, Notice, Repeat};

use crate::liveness::REPLACED_AFTER;
use crate::request::PublishRequest;

/// Which containers see a new mount at their target.
pub(crate) const VISIBILITY: &str = "running containers see the new mount at once if they mount the volume with \
    `mountPropagation: HostToContainer`, otherwise after a restart";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State<'a> {
    /// The mount process runs but does not answer.
    Unresponsive,
    /// The mount process is gone; why, if that is known.
    Lost(Option<&'a str>),
    /// Alive again after `Unresponsive`.
    Responsive,
    /// Remounted after `Lost`.
    Restored,
    /// The temporary keys have expired.
    Expired(&'a str),
    /// New keys after `Expired`.
    Renewed,
    /// The mount process died, and another one continues.
    Survived(&'a str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Unresponsive,
    Lost,
}

pub struct MountEvents {
    events: Events,
    /// The last failure reported for each target, so that publish and heal report it once between them.
    failures: Mutex<HashMap<PathBuf, Failure>>,
    /// Targets whose expired keys were reported.
    expired: Mutex<HashSet<PathBuf>>,
}

impl MountEvents {
    pub fn new(events: Events) -> Self {
        Self { events, failures: Mutex::default(), expired: Mutex::default() }
    }

    pub fn unresponsive(&self, request: &PublishRequest) {
        match self.failures.lock().entry(request.target.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(Failure::Unresponsive);
            }
            Entry::Occupied(_) => return,
        }
        self.record(request, State::Unresponsive);
    }

    /// `reason` is its mounter's, if that has reported one.
    pub fn lost(&self, request: &PublishRequest, reason: Option<&str>) {
        let before = self.failures.lock().insert(request.target.clone(), Failure::Lost);
        // The node service has ended it, which no mounter knows.
        let was_unresponsive = before == Some(Failure::Unresponsive);
        let reason = reason.or(was_unresponsive.then_some("it was not responding"));
        if before != Some(Failure::Lost) {
            self.record(request, State::Lost(reason));
        }
    }

    /// Reports the recovery of a target whose failure was reported.
    pub fn restored(&self, request: &PublishRequest) {
        let failure = self.failures.lock().remove(&request.target);
        if let Some(failure) = failure {
            let recovery = if failure == Failure::Unresponsive { State::Responsive } else { State::Restored };
            self.record(request, recovery);
        }
    }

    /// Reports once that the keys of a mount have expired, and once that they were renewed.
    pub fn keys(&self, request: &PublishRequest, expired: Option<&str>) {
        let changed = match expired {
            Some(why) => self.expired.lock().insert(request.target.clone()).then_some(State::Expired(why)),
            None => self.expired.lock().remove(&request.target).then_some(State::Renewed),
        };
        if let Some(state) = changed {
            self.record(request, state);
        }
    }

    pub fn survived(&self, request: &PublishRequest, reason: &str) {
        self.record(request, State::Survived(reason));
    }

    pub fn forget(&self, target: &Path) {
        self.failures.lock().remove(target);
        self.expired.lock().remove(target);
    }

    fn record(&self, request: &PublishRequest, state: State<'_>) {
        let PublishRequest { volume_id, pod_uid, pod_name, pod_namespace, .. } = request;
        tracing::info!(volume_id, pod_uid, trace_id = request.trace_id(), ?state, "mount state changed");
        self.events.publish(events::pod(pod_namespace, pod_name, Some(pod_uid)), notice(volume_id, state));
    }
}

fn notice(volume_id: &str, state: State<'_>) -> Notice {
    let (type_, reason, note) = match state {
        State::Unresponsive => (
            EventType::Warning,
            mount_event::UNRESPONSIVE,
            format!(
                "volume `{volume_id}` is not responding: I/O blocks because its mount process does not answer; it will \
                 be replaced if it does not answer for {} s",
                REPLACED_AFTER.as_secs()
            ),
        ),
        State::Lost(reason) => (
            EventType::Warning,
            mount_event::LOST,
            format!(
                "the mount process of volume `{volume_id}` died; I/O fails until the volume is remounted{}",
                reason.map(|reason| format!(": {reason}")).unwrap_or_default()
            ),
        ),
        State::Responsive => {
            (EventType::Normal, mount_event::RESPONSIVE, format!("volume `{volume_id}` is responding again"))
        }
        State::Restored => (
            EventType::Normal,
            mount_event::RESTORED,
            format!("volume `{volume_id}` is mounted again; {VISIBILITY}"),
        ),
        State::Expired(why) => (
            EventType::Warning,
            mount_event::KEYS_EXPIRED,
            format!("I/O on volume `{volume_id}` fails: {why}"),
        ),
        State::Renewed => (
            EventType::Normal,
            mount_event::KEYS_RENEWED,
            format!("volume `{volume_id}` has valid credentials again"),
        ),
        State::Survived(reason) => (
            EventType::Warning,
            mount_event::PROCESS_DIED,
            format!(
                "the mount process of volume `{volume_id}` died and another took over; I/O was only delayed, but files over \
                 8 MiB that were being written must be written again: {reason}"
            ),
        ),
    };
    Notice { type_, reason, note, action: "Mount", secondary: None, repeat: Repeat::Always }
}
