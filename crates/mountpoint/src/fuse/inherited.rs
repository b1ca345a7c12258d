//! What a mount process that died had open and this one has not opened again yet. It does so when a file is used, or when it
//! matters to other programs: the library has to know of it to decide who may use a file, and to say how large a file is that
//! is being written.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt as _;
use futures::future::join_all;
use futures::lock::Mutex;
use futures::stream;

use super::handles::{Handle, Handles};
use super::storage::Storage;

/// How many files are opened again at the same time while no request waits for them. Few, because requests need connections,
/// too.
const AT_ONCE: usize = 8;

#[derive(Default)]
pub(super) struct Inherited {
    /// By inode. Most of them matter to no other program.
    readers: HashMap<u64, Mutex<Vec<u64>>>,
    written: Vec<Written>,
    /// How many of these are to be opened again.
    left: AtomicUsize,
}

/// A file that was open for writing.
struct Written {
    ino: u64,
    /// Its directory and its name. What is open for writing cannot be renamed.
    place: Option<(u64, String)>,
    writers: Mutex<Vec<u64>>,
}

/// Which of the files that were open for writing matter to a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Concerned<'a> {
    File(u64),
    /// Those in this directory.
    In(u64),
    Named(u64, &'a OsStr),
    All,
}

impl Inherited {
    pub(super) fn add_reader(&mut self, ino: u64, number: u64) {
        self.readers.entry(ino).or_default().get_mut().push(number);
    }

    pub(super) fn add_writer(&mut self, ino: u64, number: u64, place: Option<(u64, String)>) {
        if let Some(written) = self.written.iter_mut().find(|written| written.ino == ino) {
            return written.writers.get_mut().push(number);
        }
        self.written.push(Written { ino, place, writers: Mutex::new(vec![number]) });
        *self.left.get_mut() += 1;
    }

    pub(super) fn has_readers(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Whether a predecessor was writing the file.
    pub(super) fn has_written(&self, ino: u64) -> bool {
        self.written.iter().any(|written| written.ino == ino)
    }

    pub(super) fn has_writers(&self) -> bool {
        self.left.load(Ordering::Acquire) > 0
    }

    /// What cannot be opened now is tried again when it is used, and fails then.
    pub(super) async fn reopen_readers(&self, storage: &Storage, handles: &Handles, ino: u64) {
        let Some(readers) = self.readers.get(&ino) else { return };
        let mut readers = readers.lock().await;
        for number in readers.drain(..) {
            if let Ok(Handle::Reader(reader)) = handles.get(number) {
                let _ = reader.library(storage).await;
            }
        }
    }

    /// A request waits only for the files that it is about, because the server may be silent about another one or slow to
    /// take it.
    pub(super) async fn reopen_writers(&self, storage: &Storage, handles: &Handles, which: Concerned<'_>) {
        if self.has_writers() {
            let concerned = self.written.iter().filter(|written| which.has(written));
            join_all(concerned.map(|written| self.reopen(storage, handles, written))).await;
        }
    }

    /// Called while no request waits for them.
    pub(super) async fn reopen_all_writers(&self, storage: &Storage, handles: &Handles) {
        let all = self.written.iter().map(|written| self.reopen(storage, handles, written));
        stream::iter(all).buffer_unordered(AT_ONCE).collect::<()>().await;
    }

    /// A second caller waits for the first.
    async fn reopen(&self, storage: &Storage, handles: &Handles, written: &Written) {
        let mut writers = written.writers.lock().await;
        if writers.is_empty() {
            return;
        }
        let writers = writers.drain(..).filter_map(|number| match handles.get(number) {
            Ok(Handle::Writer(writer)) => Some(writer),
            _ => None,
        });
        join_all(writers.map(async |writer| drop(writer.reopen(storage).await))).await;
        self.left.fetch_sub(1, Ordering::Release);
    }
}

impl Concerned<'_> {
    fn has(self, Written { ino, place, .. }: &Written) -> bool {
        match (self, place) {
            (Self::All, _) => true,
            (Self::File(wanted), _) => wanted == *ino,
            (Self::In(directory), Some((parent, _))) => directory == *parent,
            (Self::Named(directory, wanted), Some((parent, name))) => {
                directory == *parent && wanted == OsStr::new(name)
            }
            (Self::In(_) | Self::Named(..), None) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_the_files_that_it_is_about() {
        let mut inherited = Inherited::default();
        let named = |parent, name: &str| Some((parent, name.to_owned()));
        let open = [
            (1, 5, named(1, "a")),
            (2, 6, named(2, "a")),
            (3, 7, named(2, "b")),
            (4, 6, named(2, "a")),
            (9, 8, None),
        ];
        for (number, ino, place) in open {
            inherited.add_writer(ino, number, place);
        }
        assert_eq!(inherited.left.load(Ordering::Relaxed), 4, "one file is open twice");
        let concerned = |which: Concerned<'_>| -> Vec<u64> {
            inherited.written.iter().filter(|written| which.has(written)).map(|it| it.ino).collect()
        };
        assert_eq!(concerned(Concerned::File(6)), [6]);
        assert_eq!(concerned(Concerned::File(1)), [0; 0], "the root");
        assert_eq!(concerned(Concerned::In(2)), [6, 7]);
        assert_eq!(concerned(Concerned::Named(1, OsStr::new("a"))), [5]);
        assert_eq!(concerned(Concerned::Named(1, OsStr::new("b"))), [0; 0]);
        assert_eq!(concerned(Concerned::All), [5, 6, 7, 8]);
    }
}
