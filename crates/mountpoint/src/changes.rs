//! Objects that this mount uploaded or deleted a moment ago. An older answer of the server may still arrive after that.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Longer than the server usually takes to answer. A later answer may be wrong for as long as the library keeps it.
const REMEMBERED_FOR: Duration = Duration::from_secs(10);
/// The number of changes from which on old ones are removed.
const LEAST: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct Changes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    by_key: HashMap<String, Instant>,
    forget_at: usize,
}

impl Changes {
    pub(crate) fn note(&self, key: String, now: Instant) {
        let mut state = self.0.lock();
        state.by_key.insert(key, now);
        if state.by_key.len() > state.forget_at {
            state.by_key.retain(|_, at| now.duration_since(*at) < REMEMBERED_FOR);
            state.forget_at = LEAST.max(2 * state.by_key.len());
        }
    }

    pub(crate) fn is_changed_since(&self, key: &str, asked: Instant) -> bool {
        let state = self.0.lock();
        state.by_key.get(key).is_some_and(|changed| *changed >= asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_may_be_older_than_a_change() {
        let (changes, asked) = (Changes::default(), Instant::now());
        let later = |seconds| asked + Duration::from_secs(seconds);
        changes.note("key".to_owned(), later(1));
        assert!(changes.is_changed_since("key", asked) && changes.is_changed_since("key", later(1)));
        assert!(!changes.is_changed_since("key", later(2)) && !changes.is_changed_since("other", asked));
    }

    #[test]
    fn old_changes_are_forgotten() {
        let (changes, start) = (Changes::default(), Instant::now());
        for number in 0..20 * LEAST as u64 {
            changes
                .note(number.to_string(), start + REMEMBERED_FOR * 2 * u32::try_from(number / 1000).unwrap());
        }
        assert!(changes.0.lock().by_key.len() <= 3 * LEAST);
    }
}
