//! A directory that is being listed. Whichever mount processes serve it, a program gets each of its entries once.

use std::collections::HashSet;
use std::ffi::OsString;

use futures::lock::Mutex;
use mountpoint_s3_fs::fs::{DirectoryEntry, DirectoryReplier};

use super::failure::Failure;
use super::storage::Storage;

/// No listing is that long.
const NOWHERE: i64 = i64::MAX;

pub(super) struct Directory {
    pub(super) ino: u64,
    flags: i32,
    state: Mutex<State>,
}

struct State {
    listing: Listing,
    /// The places from which the kernel may continue: before the first entry of the last answer, and after each of them. It
    /// asks again for entries that the program had no room for.
    places: Vec<Place>,
    /// Entries that the kernel had been given by a predecessor.
    given: HashSet<OsString>,
}

/// An offset of the kernel's, and the same place in the library's listing, which may have entries in between that the kernel
/// was given before.
#[derive(Clone, Copy)]
struct Place {
    kernel: i64,
    library: i64,
}

enum Listing {
    /// The library's handle.
    Open(u64),
    /// A predecessor has given these entries to the kernel.
    Inherited(Vec<String>),
}

/// What a part of a listing has added to the answer.
#[derive(Default)]
pub(super) struct Added {
    pub(super) names: Vec<String>,
    /// The kernel does not learn of these, although the library has counted them.
    skipped: Vec<u64>,
}

impl Directory {
    pub(super) fn new(ino: u64, flags: i32, library: u64) -> Self {
        Self::with(ino, flags, Listing::Open(library))
    }

    pub(super) fn inherit(ino: u64, flags: i32, given: Vec<String>) -> Self {
        Self::with(ino, flags, Listing::Inherited(given))
    }

    fn with(ino: u64, flags: i32, listing: Listing) -> Self {
        let state = State { listing, places: vec![Place { kernel: 0, library: 0 }], given: HashSet::new() };
        Self { ino, flags, state: Mutex::new(state) }
    }

    /// Adds entries to the answer until it is full.
    pub(super) async fn list(
        &self,
        storage: &Storage,
        offset: i64,
        with_attributes: bool,
        to: impl DirectoryReplier + Send + Sync,
    ) -> Result<Added, Failure> {
        let mut state = self.state.lock().await;
        let library = self.open(storage, &mut state, offset).await?;
        if offset == 0 {
            // The kernel begins again, and the library has to begin a new listing.
            state.places = vec![Place { kernel: 0, library: 0 }];
            state.given.clear();
        }
        let from = state.places.iter().copied().find(|place| place.kernel == offset);
        // The library refuses to continue from there.
        let from = from.unwrap_or(Place { kernel: offset, library: NOWHERE });
        let mut part = Part { to, given: &state.given, places: vec![from], added: Added::default() };
        if with_attributes {
            storage.files.readdirplus(self.ino, library, from.library, &mut part).await?;
        } else {
            storage.files.readdir(self.ino, library, from.library, &mut part).await?;
        }
        let Part { places, added, .. } = part;
        state.places = places;
        if with_attributes {
            for ino in &added.skipped {
                storage.files.forget(*ino, 1).await;
            }
        }
        Ok(added)
    }

    async fn open(&self, storage: &Storage, state: &mut State, offset: i64) -> Result<u64, Failure> {
        let given = match &state.listing {
            Listing::Open(library) => return Ok(*library),
            Listing::Inherited(given) => given,
        };
        // The kernel did not get this answer, so its entries were not given.
        let given = given.iter().take(usize::try_from(offset).unwrap_or(0)).map(OsString::from).collect();
        let library = storage.files.opendir(self.ino, self.flags).await?.fh;
        let places = vec![Place { kernel: offset, library: 0 }];
        *state = State { listing: Listing::Open(library), places, given };
        Ok(library)
    }

    pub(super) async fn close(&self, storage: &Storage) -> Result<(), Failure> {
        match self.state.lock().await.listing {
            Listing::Open(library) => Ok(storage.files.releasedir(self.ino, library, self.flags).await?),
            Listing::Inherited(_) => Ok(()),
        }
    }
}

struct Part<'a, R> {
    to: R,
    given: &'a HashSet<OsString>,
    places: Vec<Place>,
    added: Added,
}

impl<R: DirectoryReplier> DirectoryReplier for &mut Part<'_, R> {
    fn add(&mut self, entry: DirectoryEntry) -> bool {
        let (library, name, ino) = (entry.offset, entry.name.clone(), entry.ino);
        let Some(last) = self.places.last_mut() else { return true };
        if self.given.contains(&name) {
            if name != "." && name != ".." {
                self.added.skipped.push(ino);
            }
            last.library = library;
            return false;
        }
        let kernel = last.kernel + 1;
        if self.to.add(DirectoryEntry { offset: kernel, ..entry }) {
            return true;
        }
        self.added.names.push(name.to_string_lossy().into_owned());
        self.places.push(Place { kernel, library });
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuser::{FileAttr, FileType};
    use std::time::{Duration, UNIX_EPOCH};

    struct Names(Vec<OsString>);

    impl DirectoryReplier for &mut Names {
        fn add(&mut self, entry: DirectoryEntry) -> bool {
            self.0.push(entry.name);
            false
        }
    }

    fn entry(name: &str, offset: i64) -> DirectoryEntry {
        let attr = FileAttr {
            ino: 7,
            size: 0,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: FileType::RegularFile,
            perm: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 0,
            flags: 0,
        };
        DirectoryEntry { ino: 7, offset, name: name.into(), attr, generation: 0, ttl: Duration::ZERO }
    }

    /// Between those that were given before, another client has made new ones.
    #[test]
    fn the_kernel_may_continue_after_each_entry() {
        let (mut names, given) = (Names(Vec::new()), ["a", "c", "d"].map(OsString::from).into());
        let places = vec![Place { kernel: 3, library: 0 }];
        let mut part = &mut Part { to: &mut names, given: &given, places, added: Added::default() };
        for (name, offset) in ["a", "b", "c", "d", "e"].into_iter().zip(1..) {
            assert!(!part.add(entry(name, offset)));
        }
        let places: Vec<_> = part.places.iter().map(|place| (place.kernel, place.library)).collect();
        assert_eq!(places, [(3, 1), (4, 4), (5, 5)]);
        assert_eq!(
            (&part.added.names[..], part.added.skipped.len()),
            (&["b".to_owned(), "e".to_owned()][..], 3)
        );
        assert_eq!(names.0, ["b", "e"]);
    }
}
