//! What is known of a file is used for less than a second, or for `metadata-ttl`. The library counts from when it returns an
//! entry of a listing. If a program reads the listing slowly, or writes the file meanwhile, the entry is outdated earlier: such
//! names are noted here.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// What a lookup or a listing says about a file is kept this long, so that programs which list files and then open them
/// make one request for each file. Together with the request itself it is less than the second within which changes by other
/// clients become visible.
pub(crate) const KNOWN_FOR: Duration = Duration::from_millis(900);
/// An entry that is returned this soon after the answer is not noted. When the library drops it, it is a second old at most.
const LISTED_SOON: Duration = Duration::from_millis(100);

/// The number of names from which on old ones are removed.
const LEAST: usize = 1000;

#[derive(Debug)]
pub(crate) struct Outdated {
    /// How long the library keeps an entry.
    kept_for: Duration,
    /// An entry that is returned this soon after the answer is as new as the answer.
    soon: Duration,
    noted: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By folder, which is the library's inode, and by name.
    names: HashMap<(u64, String), Noted>,
    forget_at: usize,
}

#[derive(Debug)]
struct Noted {
    /// When the listing returned the entry.
    at: Instant,
    outdated_from: Instant,
}

impl Noted {
    fn is_kept(&self, kept_for: Duration, now: Instant) -> bool {
        now.duration_since(self.at) < kept_for
    }
}

impl Outdated {
    /// A second more does not matter to what is kept for `metadata-ttl`.
    pub(crate) fn new(kept_for: Duration) -> Self {
        let soon = if kept_for > KNOWN_FOR { Duration::MAX } else { LISTED_SOON };
        Self { kept_for, soon, noted: Mutex::default() }
    }

    fn noted(&self) -> MutexGuard<'_, State> {
        self.noted.lock()
    }

    /// A listing returns an entry from an answer of the server at `answered`. `has_changed` says whether this mount has
    /// changed the file since. Returns how long the entry may be believed.
    pub(crate) fn note(
        &self,
        folder: u64,
        name: &str,
        answered: Instant,
        has_changed: bool,
        now: Instant,
    ) -> Duration {
        let age = now.duration_since(answered);
        let left = if has_changed { Duration::ZERO } else { self.kept_for.saturating_sub(age) };
        if has_changed || age > self.soon {
            let state = &mut *self.noted();
            state.names.insert((folder, name.to_owned()), Noted { at: now, outdated_from: now + left });
            if state.names.len() > state.forget_at {
                state.names.retain(|_, noted| noted.is_kept(self.kept_for, now));
                state.forget_at = LEAST.max(2 * state.names.len());
            }
        } else {
            self.clear(folder, name);
        }
        left
    }

    /// If the entry that the library keeps of this name is outdated, when a listing returned it.
    pub(crate) fn listed_at(&self, folder: u64, name: &str, now: Instant) -> Option<Instant> {
        let names = &self.noted().names;
        if names.is_empty() {
            return None;
        }
        let noted = names.get(&(folder, name.to_owned()))?;
        (noted.outdated_from <= now && noted.is_kept(self.kept_for, now)).then_some(noted.at)
    }

    /// The library has a newer entry now.
    pub(crate) fn clear(&self, folder: u64, name: &str) {
        let names = &mut self.noted().names;
        if !names.is_empty() {
            names.remove(&(folder, name.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_believed_for_longer_than_a_second() {
        let (outdated, answered) = (Outdated::new(KNOWN_FOR), Instant::now());
        let after = |milliseconds| answered + Duration::from_millis(milliseconds);
        let left =
            |name, has_changed, at| outdated.note(1, name, answered, has_changed, after(at)).as_millis();
        assert_eq!(
            (left("soon", false, 10), left("late", false, 500), left("old", false, 5000)),
            (890, 400, 0)
        );
        assert_eq!(left("written since", true, 10), 0);
        let is_outdated = |name, at| outdated.listed_at(1, name, after(at)).is_some();
        assert!(!is_outdated("soon", 905), "it is not kept any more when it is a second old");
        assert!(!is_outdated("late", 899) && is_outdated("late", 900) && !is_outdated("late", 1400));
        assert!(is_outdated("old", 5000) && is_outdated("written since", 10));
        assert_eq!(outdated.listed_at(2, "old", after(5000)), None, "in another folder");
        outdated.clear(1, "old");
        assert!(!is_outdated("old", 5000));
    }

    #[test]
    fn with_a_ttl_only_what_this_mount_has_changed_is_outdated() {
        let ttl = Duration::from_mins(1);
        let (outdated, answered) = (Outdated::new(ttl), Instant::now());
        let read = answered + Duration::from_secs(20);
        assert_eq!(outdated.note(1, "read slowly", answered, false, read), Duration::from_secs(40));
        assert_eq!(outdated.note(1, "changed", answered, true, read), Duration::ZERO);
        let is_outdated = |name, at| outdated.listed_at(1, name, read + Duration::from_secs(at)).is_some();
        assert!(!is_outdated("read slowly", 50) && is_outdated("changed", 50) && !is_outdated("changed", 60));
    }

    /// A program may only ever open files by name.
    #[test]
    fn what_the_library_no_longer_keeps_is_forgotten_without_a_listing() {
        let (outdated, start) = (Outdated::new(KNOWN_FOR), Instant::now());
        for number in 0..20 * LEAST as u64 {
            let now = start + KNOWN_FOR * u32::try_from(number / 1000).unwrap();
            outdated.note(1, &number.to_string(), start, true, now);
        }
        assert!(outdated.noted().names.len() <= 3 * LEAST);
    }
}
