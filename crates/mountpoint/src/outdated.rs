//! What is known of a file is known for less than a second. The library counts from when it gives out an entry of a listing, but
//! a program may take its time to read the listing, or write the file meanwhile: those names are noted here.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a lookup or a listing says about a file is kept this long, so that programs which list files and then open them
/// make one request for each file. Together with the request itself it is less than the second within which changes by other
/// clients become visible.
pub(crate) const KNOWN_FOR: Duration = Duration::from_millis(900);
/// What is given out this soon is not worth a note: kept for that long again, it becomes a second old.
const GIVEN_OUT_SOON: Duration = Duration::from_millis(100);

/// By folder, which is the library's inode, and name.
#[derive(Debug, Default)]
pub(crate) struct Outdated(Mutex<HashMap<(u64, String), Noted>>);

#[derive(Debug)]
struct Noted {
    /// When the listing has given it out.
    at: Instant,
    /// From when on it is outdated. The library keeps it for [`KNOWN_FOR`].
    outdated_from: Instant,
}

impl Noted {
    fn is_kept(&self, now: Instant) -> bool {
        now.duration_since(self.at) < KNOWN_FOR
    }
}

impl Outdated {
    fn names(&self) -> MutexGuard<'_, HashMap<(u64, String), Noted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A listing gives out an entry that the server has answered then, and that was changed here since or not. Returns how long
    /// it may be believed.
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
        if has_changed || age > GIVEN_OUT_SOON {
            let noted = Noted { at: now, outdated_from: now + left };
            self.names().insert((folder, name.to_owned()), noted);
        } else {
            self.clear(folder, name);
        }
        left
    }

    /// When a listing has given out what the library keeps of this name, if that is outdated.
    pub(crate) fn given_out(&self, folder: u64, name: &str, now: Instant) -> Option<Instant> {
        let names = self.names();
        if names.is_empty() {
            return None;
        }
        let noted = names.get(&(folder, name.to_owned()))?;
        (noted.outdated_from <= now && noted.is_kept(now)).then_some(noted.at)
    }

    /// The library knows better now.
    pub(crate) fn clear(&self, folder: u64, name: &str) {
        let mut names = self.names();
        if !names.is_empty() {
            names.remove(&(folder, name.to_owned()));
        }
    }

    /// What the library does not keep any more.
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
        let is_outdated = |name, at| outdated.given_out(1, name, after(at)).is_some();
        assert!(!is_outdated("soon", 905), "it is not kept any more when it is a second old");
        assert!(!is_outdated("late", 899) && is_outdated("late", 900) && !is_outdated("late", 1400));
        assert!(is_outdated("old", 5000) && is_outdated("written since", 10));
        assert_eq!(outdated.given_out(2, "old", after(5000)), None, "in another folder");
        outdated.forget(after(5000));
        assert_eq!(outdated.names().len(), 1);
        outdated.clear(1, "old");
        assert!(!is_outdated("old", 5000));
    }
}
