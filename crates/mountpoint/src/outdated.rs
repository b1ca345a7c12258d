//! What is known of a file is used for less than a second. The library counts from when it returns an entry of a listing. If
//! a program reads the listing slowly, or writes the file meanwhile, the entry is outdated earlier: such names are noted
//! here.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// What a lookup or a listing says about a file is kept this long, so that programs which list files and then open them
/// make one request for each file. Together with the request itself it is less than the second within which changes by other
/// clients become visible.
pub(crate) const KNOWN_FOR: Duration = Duration::from_millis(900);
/// An entry that is returned this soon after the answer is not noted. When the library drops it, it is a second old at most.
const LISTED_SOON: Duration = Duration::from_millis(100);

/// By folder, which is the library's inode, and by name.
#[derive(Debug, Default)]
pub(crate) struct Outdated(Mutex<HashMap<(u64, String), Noted>>);

#[derive(Debug)]
struct Noted {
    /// When the listing returned the entry.
    at: Instant,
    /// When it becomes outdated. The library keeps it for [`KNOWN_FOR`].
    outdated_from: Instant,
}

impl Noted {
    fn is_kept(&self, now: Instant) -> bool {
        now.duration_since(self.at) < KNOWN_FOR
    }
}

impl Outdated {
    fn names(&self) -> MutexGuard<'_, HashMap<(u64, String), Noted>> {
        self.0.lock()
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
        let left = if has_changed { Duration::ZERO } else { KNOWN_FOR.saturating_sub(age) };
        if has_changed || age > LISTED_SOON {
            let noted = Noted { at: now, outdated_from: now + left };
            self.names().insert((folder, name.to_owned()), noted);
        } else {
            self.clear(folder, name);
        }
        left
    }

    /// If the entry that the library keeps of this name is outdated, when a listing returned it.
    pub(crate) fn listed_at(&self, folder: u64, name: &str, now: Instant) -> Option<Instant> {
        let names = self.names();
        if names.is_empty() {
            return None;
        }
        let noted = names.get(&(folder, name.to_owned()))?;
        (noted.outdated_from <= now && noted.is_kept(now)).then_some(noted.at)
    }

    /// The library has a newer entry now.
    pub(crate) fn clear(&self, folder: u64, name: &str) {
        let mut names = self.names();
        if !names.is_empty() {
            names.remove(&(folder, name.to_owned()));
        }
    }

    /// Forgets names that the library no longer keeps.
    pub(crate) fn forget(&self, now: Instant) {
        self.names().retain(|_, noted| noted.is_kept(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_believed_for_longer_than_a_second() {
        let (outdated, answered) = (Outdated::default(), Instant::now());
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
        outdated.forget(after(5000));
        assert_eq!(outdated.names().len(), 1);
        outdated.clear(1, "old");
        assert!(!is_outdated("old", 5000));
    }
}
