//! Events on Kubernetes objects, without repeating what was published recently.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::names::DRIVER;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use parking_lot::Mutex;

/// As long as nothing changes, an Event is published again after this long: Kubernetes forgets Events after an hour.
const REPEAT_AFTER: Duration = Duration::from_mins(10);
/// An API server that does not answer must not collect Events in our memory.
const PUBLISH_WITHIN: Duration = Duration::from_secs(10);
/// The API server takes notes of up to 1024 bytes.
const NOTE_BYTES: usize = 1000;

/// What an Event says.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    pub type_: EventType,
    /// Stable: alerts and scripts match it.
    pub reason: &'static str,
    pub note: String,
    pub action: &'static str,
    /// The other object that it is about.
    pub secondary: Option<ObjectReference>,
    /// What may differ from one Event to the next.
    pub repeat: Repeat,
}

/// When an Event of the same reason about the same objects is published again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Only after a while: its note contains counters or times that change with every retry.
    Later,
    /// At once, if the note is another one.
    WithNewNote,
    /// Always: the caller publishes on changes only.
    Always,
}

/// Object's UID, reason and name of the other object.
type Topic = (String, &'static str, Option<String>);

#[derive(Clone)]
pub struct Events {
    client: Client,
    reporter: Reporter,
    recent: Arc<Mutex<Recent<Recorder>>>,
}

impl Events {
    /// `instance` is the node, if each has a publisher of its own.
    pub fn new(client: Client, instance: Option<&str>) -> Self {
        let reporter = Reporter { controller: DRIVER.to_owned(), instance: instance.map(str::to_owned) };
        Self { client, reporter, recent: Arc::default() }
    }

    /// In the background: neither mounts nor decisions wait for an Event.
    pub fn publish(&self, object: ObjectReference, notice: Notice) {
        let uid = object.uid.clone().unwrap_or_default();
        let topic = (uid, notice.reason, notice.secondary.as_ref().and_then(|other| other.name.clone()));
        let new = || Recorder::new(self.client.clone(), self.reporter.clone());
        let admitted = self.recent.lock().admit(topic.clone(), &notice, Instant::now(), new);
        let Some(recorder) = admitted else { return };
        let events = self.clone();
        tokio::spawn(async move {
            let Notice { type_, reason, note, action, secondary, .. } = notice;
            let event = Event {
                type_,
                reason: reason.to_owned(),
                note: Some(shorten(&note).to_owned()),
                action: action.to_owned(),
                secondary,
            };
            let publish = recorder.publish(&event, &object);
            let failure = match tokio::time::timeout(PUBLISH_WITHIN, publish).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {PUBLISH_WITHIN:?}"),
            };
            tracing::warn!(
                object = object.name,
                uid = object.uid,
                reason,
                error = failure,
                "event not published"
            );
            events.recent.lock().0.remove(&topic);
        });
    }

    /// Forgets what was published about objects that no longer exist.
    pub fn forget(&self, exists: impl Fn(&str) -> bool) {
        self.recent.lock().0.retain(|(uid, ..), _| exists(uid));
    }
}

/// When each Event was published last, with which note, and by which recorder. A recorder counts Events of the same reason
/// about the same object as one series, which shows the first note only: another note needs another recorder.
struct Recent<R>(HashMap<Topic, (Instant, String, R)>);

impl<R> Default for Recent<R> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<R: Clone> Recent<R> {
    /// The recorder to publish it with, unless it would repeat what was published.
    fn admit(&mut self, topic: Topic, notice: &Notice, now: Instant, new: impl FnOnce() -> R) -> Option<R> {
        self.0.retain(|_, (at, ..)| now.duration_since(*at) < REPEAT_AFTER);
        let published = self.0.get(&topic);
        let same = published.filter(|(_, note, _)| *note == notice.note);
        match notice.repeat {
            Repeat::Later if published.is_some() => return None,
            Repeat::WithNewNote if same.is_some() => return None,
            Repeat::Later | Repeat::WithNewNote | Repeat::Always => {}
        }
        let recorder = same.map_or_else(new, |(.., recorder)| recorder.clone());
        self.0.insert(topic, (now, notice.note.clone(), recorder.clone()));
        Some(recorder)
    }
}

/// To what the API server takes.
pub fn shorten(note: &str) -> &str {
    &note[..note.floor_char_boundary(NOTE_BYTES)]
}

pub fn volume(name: &str) -> ObjectReference {
    object("PersistentVolume", None, name, None)
}

pub fn pod(namespace: &str, name: &str, uid: Option<&str>) -> ObjectReference {
    object("Pod", Some(namespace), name, uid)
}

/// A reference to an object of the core API.
pub fn object(kind: &str, namespace: Option<&str>, name: &str, uid: Option<&str>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(kind.to_owned()),
        namespace: namespace.map(str::to_owned),
        name: Some(name.to_owned()),
        uid: uid.map(str::to_owned),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_shortened_between_characters() {
        assert_eq!(shorten("short"), "short");
        let long = "ü".repeat(1000);
        assert_eq!(shorten(&long).len(), 1000);
        assert_eq!(shorten(&format!("x{long}")).len(), 999);
    }

    #[test]
    fn an_event_is_repeated_after_a_while_or_when_it_says_something_new() {
        let now = Instant::now();
        let mut recent = Recent::default();
        let mut recorders = 0;
        let mut admit = |reason: &'static str, note: &str, repeat, at| {
            let (note, type_) = (note.to_owned(), EventType::Warning);
            let notice = Notice { type_, reason, note, action: "Mount", secondary: None, repeat };
            recent.admit(("u".to_owned(), reason, None), &notice, at, || {
                recorders += 1;
                recorders
            })
        };
        assert!(admit("A", "one", Repeat::Later, now).is_some());
        assert!(admit("A", "two", Repeat::Later, now).is_none());
        assert!(admit("A", "two", Repeat::Later, now + REPEAT_AFTER).is_some());
        assert!(admit("B", "one", Repeat::WithNewNote, now).is_some());
        assert!(admit("B", "one", Repeat::WithNewNote, now).is_none());
        assert!(admit("B", "two", Repeat::WithNewNote, now).is_some());
        let mut series = |note| admit("C", note, Repeat::Always, now).unwrap();
        let first = series("one");
        assert_eq!((series("one"), series("two")), (first, first + 1), "each note has its own");
    }
}
