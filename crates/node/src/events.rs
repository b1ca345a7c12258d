//! Kubernetes Events on the workload about the state of its mount.

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
    /// The mount process is gone.
    Lost,
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

pub struct MountEvents {
    events: Events,
    /// The last failure reported for each target, so that publish and heal report it once between them.
    failures: Mutex<HashMap<PathBuf, State<'static>>>,
    /// Targets whose expired keys were reported.
    expired: Mutex<HashSet<PathBuf>>,
}

impl MountEvents {
    pub fn new(events: Events) -> Self {
        Self { events, failures: Mutex::default(), expired: Mutex::default() }
    }

    pub fn unresponsive(&self, request: &PublishRequest) {
        if !self.failures.lock().contains_key(&request.target) {
            self.failed(request, State::Unresponsive);
        }
    }

    pub fn lost(&self, request: &PublishRequest) {
        self.failed(request, State::Lost);
    }

    fn failed(&self, request: &PublishRequest, state: State<'static>) {
        let before = self.failures.lock().insert(request.target.clone(), state);
        if before != Some(state) {
            self.record(request, state);
        }
    }

    /// Reports the recovery of a target whose failure was reported.
    pub fn restored(&self, request: &PublishRequest) {
        let failure = self.failures.lock().remove(&request.target);
        if let Some(failure) = failure {
            let recovery = if failure == State::Unresponsive { State::Responsive } else { State::Restored };
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
        State::Lost => (
            EventType::Warning,
            mount_event::LOST,
            format!(
                "the mount process of volume `{volume_id}` died: I/O fails until the volume is remounted"
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
                "another mount process continues to serve volume `{volume_id}`; I/O only waited, but a file of more than 8 \
                 MiB that was being written must be written again: {reason}"
            ),
        ),
    };
    Notice { type_, reason, note, action: "Mount", secondary: None, repeat: Repeat::Always }
}
