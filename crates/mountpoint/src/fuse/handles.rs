//! Every open file and directory. The kernel knows them by numbers of this table; the library's numbers change when a file is
//! continued.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::failure::Failure;
use super::writer::Writer;

#[derive(Clone)]
pub(super) enum Handle {
    /// Served by the library alone, under its own number: readers, and writers that append to objects in directory buckets.
    Plain(u64),
    Writer(Arc<Writer>),
    /// Under the library's number.
    Directory(u64),
}

#[derive(Default)]
pub(super) struct Handles {
    last: AtomicU64,
    open: RwLock<HashMap<u64, Handle>>,
}

impl Handles {
    pub(super) fn insert(&self, handle: Handle) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(number, handle);
        number
    }

    pub(super) fn get(&self, number: u64) -> Result<Handle, Failure> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.get(&number).cloned().ok_or(Failure::BadHandle)
    }

    pub(super) fn any(&self, is_wanted: impl FnMut(&Handle) -> bool) -> bool {
        self.open.read().unwrap_or_else(PoisonError::into_inner).values().any(is_wanted)
    }

    pub(super) fn remove(&self, number: u64) -> Result<Handle, Failure> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.remove(&number).ok_or(Failure::BadHandle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_one_open_file_until_its_end() {
        let handles = Handles::default();
        let (first, second) = (handles.insert(Handle::Plain(7)), handles.insert(Handle::Plain(7)));
        assert_ne!(first, second);
        assert!(matches!(handles.remove(first), Ok(Handle::Plain(7))));
        assert!(matches!(handles.get(first), Err(Failure::BadHandle)));
        assert!(matches!(handles.get(second), Ok(Handle::Plain(7))));
        assert!(handles.insert(Handle::Plain(8)) > second, "numbers are not used again");
    }
}
