//! Every open file and directory, by the number that the kernel has for it. The library's numbers change when a file is
//! continued and when another mount process takes over.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::directory::Directory;
use super::failure::Failure;
use super::reader::Reader;
use super::writer::Writer;

#[derive(Clone)]
pub(super) enum Handle {
    Reader(Arc<Reader>),
    Writer(Arc<Writer>),
    /// Written by the library alone, under its own number: an object in a directory bucket, to which bytes are appended.
    Appender(u64),
    Directory(Arc<Directory>),
    /// A mount process died with bytes that were in no other place.
    Lost,
}

#[derive(Default)]
pub(super) struct Handles {
    last: AtomicU64,
    open: RwLock<HashMap<u64, Opened>>,
}

struct Opened {
    handle: Handle,
    /// The number of the request that opened it.
    unique: u64,
}

impl Handles {
    /// New numbers will be above those that were used before.
    pub(super) fn after(last: u64) -> Self {
        Self { last: AtomicU64::new(last), open: RwLock::default() }
    }

    pub(super) fn next_number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn insert(&self, number: u64, unique: u64, handle: Handle) {
        let opened = Opened { handle, unique };
        self.open.write().insert(number, opened);
    }

    pub(super) fn get(&self, number: u64) -> Result<Handle, Failure> {
        let open = self.open.read();
        open.get(&number).map(|opened| opened.handle.clone()).ok_or(Failure::BadHandle)
    }

    /// What the request has opened already: the mount process that did it died before the kernel got the answer.
    pub(super) fn opened_by(&self, unique: u64) -> Option<u64> {
        let open = self.open.read();
        open.iter().find(|(_, opened)| opened.unique == unique).map(|(number, _)| *number)
    }

    /// Whether a program has written more than this to the file.
    pub(super) fn is_longer_than(&self, ino: u64, length: u64) -> bool {
        let is_it = |handle: &Handle| matches!(handle, Handle::Writer(writer) if writer.ino == ino && writer.length() > length);
        self.open.read().values().any(|opened| is_it(&opened.handle))
    }

    /// All writers of the file.
    pub(super) fn writers(&self, ino: u64) -> Vec<Arc<Writer>> {
        self.writers_that(|writer| writer.ino == ino)
    }

    pub(super) fn writers_that(&self, are_wanted: impl Fn(&Writer) -> bool) -> Vec<Arc<Writer>> {
        let open = self.open.read();
        let writers = open.values().filter_map(|opened| match &opened.handle {
            Handle::Writer(writer) if are_wanted(writer) => Some(Arc::clone(writer)),
            _ => None,
        });
        writers.collect()
    }

    pub(super) fn remove(&self, number: u64) -> Result<Handle, Failure> {
        let mut open = self.open.write();
        open.remove(&number).map(|opened| opened.handle).ok_or(Failure::BadHandle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_one_open_file_until_its_end() {
        let handles = Handles::after(40);
        let (first, second) = (handles.next_number(), handles.next_number());
        assert_eq!((first, second), (41, 42));
        handles.insert(first, 8, Handle::Lost);
        handles.insert(second, 9, Handle::Appender(7));
        assert!(matches!(handles.get(second), Ok(Handle::Appender(7))));
        assert_eq!((handles.opened_by(9), handles.opened_by(10)), (Some(second), None));
        assert!(handles.remove(second).is_ok());
        assert!(matches!(handles.get(second), Err(Failure::BadHandle)));
        assert!(handles.get(first).is_ok());
    }
}
