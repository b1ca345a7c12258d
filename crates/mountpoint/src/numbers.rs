//! The numbers by which the kernel knows inodes. They must mean the same in the next mount process, but the library counts
//! its own from the beginning in each. What the kernel learned from this process has the library's number, moved above all
//! that were used before; what it had learned from a predecessor keeps its number, and is found again by its name.
//!
//! The file is long because all of it is about the same few maps, which must agree at every moment.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::journal::{Access, Journal, Known, Node, Nodes, Record, Version};

/// The number of the root, for the kernel and for the library.
pub(crate) const ROOT: u64 = 1;

pub(crate) struct Numbers {
    journal: Arc<Journal>,
    /// Added to the library's numbers.
    base: u64,
    /// Inherited files that are open for writing. They keep their numbers, whatever another client does to the object.
    written: HashSet<u64>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How often the kernel has looked up what it learned from this process.
    lookups: HashMap<u64, u64>,
    /// What the kernel had learned from a predecessor.
    inherited: Nodes,
    /// Those of them that the library knows, and files of this process that the library has given another number.
    found: HashMap<u64, Found>,
    /// Their numbers, by the library's.
    by_library: HashMap<u64, u64>,
    /// Of a number by which a program writes a file, the one by which the kernel knows its name.
    twins: HashMap<u64, u64>,
    /// Numbers for which the kernel may know the size that a file had before it was written by another number.
    outdated: HashSet<u64>,
}

struct Found {
    library: u64,
    /// How often this process has looked it up in the library, which expects to be asked to forget it as often.
    lookups: u64,
}

/// What the library says of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) library: u64,
    pub(crate) is_directory: bool,
    pub(crate) version: Version,
    pub(crate) is_local: bool,
}

/// What is known of an inode's number in the library.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    Known(u64),
    /// The library has to be asked for this name in this directory.
    Named {
        parent: u64,
        node: Node,
    },
    /// Its name means something else by now.
    Stale,
}

impl Numbers {
    /// Takes what the kernel knows of files and folders from `known`: of a large mount, there is no room for it twice.
    pub(crate) fn new(journal: Arc<Journal>, known: Option<&mut Known>) -> Self {
        let Some(known) = known else {
            return Self { journal, base: 0, written: HashSet::new(), state: Mutex::default() };
        };
        let mut inherited = std::mem::take(&mut known.nodes);
        // A new file of which acknowledged bytes are lost must not come back as an empty one.
        for handle in known.handles.values() {
            let lost = handle.unspooled && handle.published.is_none();
            let is_local = inherited.get(handle.open.ino).is_some_and(|node| node.is_local);
            if matches!(handle.open.access, Access::Write | Access::Append) && lost && is_local {
                inherited.mark_stale(handle.open.ino);
                // When the handle is closed, no other process knows from it that bytes are lost.
                journal.record(&Record::Stale(handle.open.ino));
            }
        }
        let writers = known.handles.values().filter(|handle| handle.open.access == Access::Write);
        let written = writers.map(|handle| handle.open.ino).collect();
        let state = Mutex::new(State { inherited, ..State::default() });
        Self { journal, base: known.highest_inode.max(ROOT), written, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn meaning(&self, ino: u64) -> Meaning {
        if ino == ROOT {
            return Meaning::Known(ROOT);
        }
        let state = self.state();
        if let Some(found) = state.found.get(&ino) {
            return Meaning::Known(found.library);
        }
        if ino > self.base {
            return Meaning::Known(ino - self.base);
        }
        match state.inherited.get(ino) {
            Some(node) if !node.is_stale => Meaning::Named { parent: node.parent, node: node.clone() },
            _ => Meaning::Stale,
        }
    }

    /// The library knows an inherited inode as this one; `false` if it has another content by now, so that its number must
    /// not be used for it.
    pub(crate) fn find(&self, ino: u64, entry: &Entry) -> bool {
        let mut state = self.state();
        let Some(node) = state.inherited.get(ino) else { return false };
        let is_other = state.by_library.get(&entry.library).is_some_and(|other| *other != ino);
        if is_other || node.is_stale || !self.is_same(ino, node, entry) {
            state.inherited.mark_stale(ino);
            self.journal.record(&Record::Stale(ino));
            return false;
        }
        state.find(ino, entry.library);
        true
    }

    /// What stood for a new file is gone, so that it has to be created again. Returns what the library has to forget.
    pub(crate) fn lose(&self, ino: u64) -> Option<(u64, u64)> {
        let mut state = self.state();
        state.inherited.update(ino, |node| node.is_local = true);
        state.lose(ino)
    }

    /// The library has another number for a file that it knew, and was asked for it once. Returns what it has to forget.
    pub(crate) fn replace(&self, ino: u64, library: u64) -> Option<(u64, u64)> {
        let mut state = self.state();
        let replaced = self.set(&mut state, ino, library)?;
        let own = self.base + library;
        if !state.lookups.contains_key(&own) {
            state.by_library.insert(library, ino);
        } else if own != ino {
            state.twins.insert(ino, own);
        }
        Some(replaced)
    }

    /// The same after a rename: whatever number the kernel has for what had the name before, it forgets that now.
    pub(crate) fn take_over(&self, ino: u64, library: u64) -> Option<(u64, u64)> {
        let mut state = self.state();
        let replaced = self.set(&mut state, ino, library)?;
        state.by_library.insert(library, ino);
        Some(replaced)
    }

    fn set(&self, state: &mut State, ino: u64, library: u64) -> Option<(u64, u64)> {
        let replaced = match state.lose(ino) {
            Some(found) => found,
            None => (ino.checked_sub(self.base)?, *state.lookups.get(&ino)?),
        };
        state.found.insert(ino, Found { library, lookups: 1 });
        Some(replaced)
    }

    /// Returns the number by which the kernel is about to get the entry. The next commit records it.
    pub(crate) fn record_lookup(&self, parent: u64, name: &str, entry: &Entry) -> u64 {
        let mut state = self.state();
        if let Some(ino) = self.inherited(&mut state, parent, name, entry) {
            state.outdated.remove(&ino);
            state.find(ino, entry.library);
            match state.lookups.get_mut(&ino) {
                Some(lookups) => *lookups += 1,
                None => state.inherited.look_up(ino),
            }
            self.journal.note(&Record::LookedUp(ino));
            let is_new = state.inherited.get(ino).is_some_and(|node| node.version != entry.version);
            if is_new && self.written.contains(&ino) && entry.version != Version::default() {
                state.inherited.upload(ino, entry.version);
                self.journal.note(&Record::Uploaded(ino, entry.version));
            }
            return ino;
        }
        let ino = self.base + entry.library;
        state.outdated.remove(&ino);
        let lookups = state.lookups.entry(ino).or_default();
        *lookups += 1;
        if *lookups > 1 {
            self.journal.note(&Record::LookedUp(ino));
        } else {
            let Entry { is_directory, version, is_local, .. } = *entry;
            let (name, is_stale) = (name.to_owned(), false);
            let node = Node { parent, name, is_directory, version, is_local, is_stale, lookups: 1 };
            self.journal.note(&Record::Inode(ino, node));
        }
        ino
    }

    /// The number by which the kernel would get the entry.
    pub(crate) fn number(&self, parent: u64, name: &str, entry: &Entry) -> u64 {
        let inherited = self.inherited(&mut self.state(), parent, name, entry);
        inherited.unwrap_or(self.base + entry.library)
    }

    /// The number of an inode that the kernel knows.
    pub(crate) fn of_library(&self, library: u64) -> u64 {
        let inherited = self.state().by_library.get(&library).copied();
        inherited.unwrap_or(if library == ROOT { ROOT } else { self.base + library })
    }

    fn inherited(&self, state: &mut State, parent: u64, name: &str, entry: &Entry) -> Option<u64> {
        if let Some(ino) = state.by_library.get(&entry.library) {
            return Some(*ino);
        }
        let ino = state.inherited.named(parent, name)?;
        let node = state.inherited.get(ino)?;
        if !state.found.contains_key(&ino) && self.is_same(ino, node, entry) {
            return Some(ino);
        }
        state.inherited.mark_stale(ino);
        self.journal.note(&Record::Stale(ino));
        None
    }

    /// A folder may get any content. A file that was being created may have been completed.
    fn is_same(&self, ino: u64, node: &Node, entry: &Entry) -> bool {
        let any_version = node.is_directory || node.is_local || self.written.contains(&ino);
        node.is_directory == entry.is_directory && (any_version || node.version == entry.version)
    }

    /// Inherited files and folders in a directory, all or those of a name, that nothing in the bucket stands for and that the
    /// library does not know yet.
    pub(crate) fn unknown_locals(&self, parent: u64, name: Option<&OsStr>) -> Vec<u64> {
        let state = self.state();
        let children = state.inherited.children(parent);
        let unknown = children.filter(|(ino, node)| {
            let is_wanted = name.is_none_or(|name| name == OsStr::new(&node.name));
            is_wanted && node.is_local && !state.found.contains_key(ino)
        });
        unknown.map(|(ino, _)| ino).collect()
    }

    /// Directory and name of an inherited file or folder.
    pub(crate) fn place(&self, ino: u64) -> Option<(u64, String)> {
        self.state().inherited.get(ino).map(|node| (node.parent, node.name.clone()))
    }

    /// The number of an inherited file or folder by its name.
    pub(crate) fn named(&self, parent: u64, name: &OsStr) -> Option<u64> {
        self.state().inherited.named(parent, name.to_str()?)
    }

    /// Whether a predecessor has created the file or folder, and the bucket did not have it yet.
    pub(crate) fn is_local(&self, parent: u64, name: &OsStr) -> bool {
        let state = self.state();
        let named = name.to_str().and_then(|name| state.inherited.named(parent, name));
        named.and_then(|ino| state.inherited.get(ino)).is_some_and(|node| node.is_local)
    }

    /// Whether the kernel may know another size of the file than that of this version: the number stays the same, whatever another
    /// client does to the object, or the file was written by another number.
    pub(crate) fn is_outdated(&self, ino: u64, version: Version) -> bool {
        let state = self.state();
        let is_other = || state.inherited.get(ino).is_some_and(|node| node.version != version);
        state.outdated.contains(&ino) || (self.written.contains(&ino) && is_other())
    }

    /// Whether the file may have another name than this key ends with.
    pub(crate) fn is_renamed(&self, ino: u64, key: &str) -> bool {
        let name = key.rsplit('/').next().unwrap_or_default();
        self.state().inherited.get(ino).is_some_and(|node| node.name != name)
    }

    /// Whether a predecessor knew the name as this version of an object.
    pub(crate) fn is_version(&self, parent: u64, name: &OsStr, version: Version) -> bool {
        let state = self.state();
        let named = name.to_str().and_then(|name| state.inherited.named(parent, name));
        named.and_then(|ino| state.inherited.get(ino)).is_some_and(|node| node.version == version)
    }

    /// What the library has to forget: an inode, and how often.
    pub(crate) fn forget(&self, ino: u64, lookups: u64) -> Option<(u64, u64)> {
        if ino == ROOT {
            return None;
        }
        let mut state = self.state();
        self.journal.note(&Record::Forgotten(ino, lookups));
        let is_known = if ino > self.base {
            let left = state.lookups.get(&ino).map_or(0, |known| known.saturating_sub(lookups));
            if left > 0 {
                state.lookups.insert(ino, left);
            } else {
                state.lookups.remove(&ino);
                state.outdated.remove(&ino);
            }
            if !state.found.contains_key(&ino) {
                return Some((ino - self.base, lookups));
            }
            left > 0
        } else {
            !state.inherited.forget(ino, lookups)
        };
        if is_known { None } else { state.lose(ino) }
    }

    pub(crate) fn uploaded(&self, ino: u64, version: Version) {
        self.state().upload(ino, version);
        self.journal.record(&Record::Uploaded(ino, version));
    }

    pub(crate) fn record(&self, record: &Record) {
        self.journal.record(record);
    }

    /// The upload of a new file has failed, and the file with it, unless an earlier one has made it an object.
    pub(crate) fn not_uploaded(&self, ino: u64) {
        let mut state = self.state();
        if state.inherited.get(ino).is_some_and(|node| !node.is_local) {
            return;
        }
        state.inherited.mark_stale(ino);
        self.journal.record(&Record::Stale(ino));
    }

    pub(crate) fn removed(&self, parent: u64, name: &str) {
        self.state().inherited.remove_name(parent, name);
        self.journal.record(&Record::Removed(parent, name.to_owned()));
    }

    pub(crate) fn renamed(&self, parent: u64, name: &str, new_parent: u64, new_name: &str) {
        self.state().inherited.rename(parent, name, new_parent, new_name);
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        self.journal.record(&Record::Renamed(parent, name, new_parent, new_name));
    }

    pub(crate) fn commit(&self) {
        self.journal.commit();
    }
}

impl State {
    /// The number means nothing for the library any more. Returns what it meant.
    fn lose(&mut self, ino: u64) -> Option<(u64, u64)> {
        let Found { library, lookups } = self.found.remove(&ino)?;
        self.twins.remove(&ino);
        // Unless that has become another number's, by a rename.
        if self.by_library.get(&library) == Some(&ino) {
            self.by_library.remove(&library);
        }
        Some((library, lookups))
    }

    fn upload(&mut self, ino: u64, version: Version) {
        self.inherited.upload(ino, version);
        self.outdated.remove(&ino);
        if let Some(twin) = self.twins.get(&ino)
            && self.lookups.contains_key(twin)
        {
            self.outdated.insert(*twin);
        }
    }

    fn find(&mut self, ino: u64, library: u64) {
        self.found.entry(ino).or_insert(Found { library, lookups: 0 }).lookups += 1;
        self.by_library.insert(library, ino);
    }
}

#[cfg(test)]
mod tests;
