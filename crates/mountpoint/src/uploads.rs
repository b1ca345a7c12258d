//! What the library does not say about its uploads: which of its handles write, which object an upload has become, and which
//! object the next upload continues.

use std::collections::{HashMap, HashSet};

use mountpoint_s3_client::types::ETag;
use parking_lot::{Mutex, MutexGuard};

use crate::journal::{PublishedObject, Record, Version};

/// Keys that are remembered after a rename, at most. Few programs write on to a file that was renamed, and they do it soon.
const MOST_RENAMED: usize = 1000;

/// An object as an upload of this process has left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) bucket: String,
    pub(crate) key: String,
    pub(crate) etag: ETag,
}

impl Published {
    /// The record that the first `length` bytes of an open file are this object.
    pub(crate) fn record(&self, file: u64, length: u64) -> Record {
        let (bucket, key) = (self.bucket.clone(), self.key.clone());
        Record::Published(file, PublishedObject { bucket, key, etag: self.etag.as_str().to_owned(), length })
    }
}

/// The object that a handle reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadObject {
    pub(crate) key: String,
    pub(crate) etag: ETag,
    pub(crate) length: u64,
}

impl ReadObject {
    pub(crate) fn version(object: Option<&Self>) -> Version {
        Version::of(object.map(|object| object.etag.as_str()))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Uploads(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By the library's handle.
    writers: HashMap<u64, Writer>,
    /// The library's handles that read, by inode, and what they read.
    readers: HashMap<u64, HashMap<u64, Option<ReadObject>>>,
    /// Bytes of a continued file that the library counts a second time, by inode.
    replays: HashMap<u64, usize>,
    /// What the next upload to a key continues. The library has one writer for each key at a time.
    conditions: HashMap<String, Condition>,
    /// Keys of files that the server has not copied to the beginning of an upload.
    refused_copies: HashSet<String>,
    /// Keys from which files were renamed that may still be open for writing.
    renamed: HashSet<String>,
}

/// The object that an upload must replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) etag: ETag,
    /// It begins with all of that object, which the server copies. Otherwise everything is written again.
    pub(crate) copied: Option<u64>,
}

#[derive(Debug)]
struct Writer {
    /// As the kernel knows the file.
    ino: u64,
    bucket: String,
    key: String,
    /// There was no object when the file was opened.
    creates: bool,
    /// The object that there was.
    replaces: Version,
    /// Once the upload is complete.
    etag: Option<ETag>,
    /// What it has become without the library, which takes it for failed.
    continued: Option<ETag>,
    /// The open file as the kernel knows it, and how many bytes it has.
    file: Option<(u64, u64)>,
}

impl Uploads {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    pub(crate) fn begin(
        &self,
        handle: u64,
        ino: u64,
        bucket: &str,
        key: &str,
        creates: bool,
        replaces: Version,
    ) {
        let mut state = self.state();
        // An upload that failed before it began may have left its condition.
        state.conditions.remove(key);
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let writer = Writer { ino, bucket, key, creates, replaces, etag: None, continued: None, file: None };
        state.writers.insert(handle, writer);
    }

    /// The next upload to the key replaces this object and no other. It has `length` bytes, which are written again unless the
    /// server copies them.
    pub(crate) fn begin_continuation(
        &self,
        handle: u64,
        ino: u64,
        object: &Published,
        length: usize,
        is_copied: bool,
    ) {
        let replaces = Version::of(Some(object.etag.as_str()));
        self.begin(handle, ino, &object.bucket, &object.key, false, replaces);
        let mut state = self.state();
        let copied = is_copied.then_some(length as u64);
        state.conditions.insert(object.key.clone(), Condition { etag: object.etag.clone(), copied });
        if length > 0 && !is_copied {
            state.replays.insert(ino, length);
        }
    }

    /// The key to which a handle writes.
    pub(crate) fn key(&self, handle: u64) -> Option<String> {
        self.state().writers.get(&handle).map(|writer| writer.key.clone())
    }

    /// Whether the upload creates an object that did not exist.
    pub(crate) fn creates(&self, handle: u64) -> bool {
        self.state().writers.get(&handle).is_some_and(|writer| writer.creates)
    }

    /// The object that the upload replaces.
    pub(crate) fn replaces(&self, handle: u64) -> Version {
        self.state().writers.get(&handle).map(|writer| writer.replaces).unwrap_or_default()
    }

    /// Whether the upload creates an object that did not exist, by its key.
    pub(crate) fn creates_object(&self, key: &str) -> bool {
        self.is_written(key, |writer| writer.creates)
    }

    /// Whether the file is open for writing and not published.
    pub(crate) fn writes_object(&self, key: &str) -> bool {
        self.is_written(key, |_| true)
    }

    /// Whether a file whose key begins like this is open for writing and not published.
    pub(crate) fn writes_below(&self, prefix: &str) -> bool {
        let is_below = |writer: &Writer| writer.etag.is_none() && writer.key.starts_with(prefix);
        self.state().writers.values().any(is_below)
    }

    fn is_written(&self, key: &str, in_this_way: impl Fn(&Writer) -> bool) -> bool {
        let unpublished = |writer: &&Writer| writer.key == key && writer.etag.is_none();
        self.state().writers.values().filter(unpublished).any(in_this_way)
    }

    /// The newest handle that writes this key.
    pub(crate) fn writer(&self, key: &str) -> Option<u64> {
        let state = self.state();
        state.writers.iter().filter(|(_, writer)| writer.key == key).map(|(handle, _)| *handle).max()
    }

    /// The open file of which the upload has the first bytes, and how many these are.
    pub(crate) fn file(&self, handle: u64) -> Option<(u64, u64)> {
        self.state().writers.get(&handle)?.file
    }

    /// The upload has the first `length` bytes of this open file.
    pub(crate) fn has_bytes_of(&self, handle: u64, file: u64, length: u64) {
        if let Some(writer) = self.state().writers.get_mut(&handle) {
            writer.file = Some((file, length));
        }
    }

    /// Returns the open file, and how many of its bytes were published.
    pub(crate) fn publish(&self, handle: u64, etag: ETag) -> Option<(u64, u64)> {
        let mut state = self.state();
        let writer = state.writers.get_mut(&handle)?;
        writer.etag = Some(etag);
        let (file, key) = (writer.file, writer.key.clone());
        state.renamed.remove(&key);
        file
    }

    pub(crate) fn published(&self, handle: u64) -> Option<Published> {
        let state = self.state();
        let Writer { bucket, key, etag, .. } = state.writers.get(&handle)?;
        Some(Published { bucket: bucket.clone(), key: key.clone(), etag: etag.clone()? })
    }

    /// Whether a program that has the file open has left this object.
    pub(crate) fn has_published(&self, ino: u64, etag: &str) -> bool {
        let is_it = |writer: &Writer| writer.etag.as_ref().is_some_and(|left| left.as_str() == etag);
        self.state().writers.values().any(|writer| writer.ino == ino && is_it(writer))
    }

    pub(crate) fn end(&self, handle: u64) {
        self.state().writers.remove(&handle);
    }

    /// The server has completed the upload to this key, of which the library knows only a part.
    pub(crate) fn continued(&self, key: &str, etag: ETag) {
        let mut state = self.state();
        let of_key = |writer: &&mut Writer| writer.key == key && writer.etag.is_none();
        if let Some(writer) = state.writers.values_mut().find(of_key) {
            writer.continued = Some(etag);
        }
    }

    /// What the upload has become, although the library takes it for failed.
    pub(crate) fn became(&self, handle: u64) -> Option<ETag> {
        self.state().writers.get(&handle)?.continued.clone()
    }

    /// The object that the upload to this key must replace. Returned once for each upload.
    pub(crate) fn condition(&self, key: &str) -> Option<Condition> {
        self.state().conditions.remove(key)
    }

    /// The server does not copy what the file with this key begins with.
    pub(crate) fn refuse_copy(&self, key: &str) {
        self.state().refused_copies.insert(key.to_owned());
    }

    /// Whether that is why an upload has not begun. Returned once.
    pub(crate) fn take_refused_copy(&self, key: &str) -> bool {
        self.state().refused_copies.remove(key)
    }

    /// The file that was published under this key has been renamed.
    pub(crate) fn rename(&self, key: &str) {
        let mut state = self.state();
        if state.renamed.len() >= MOST_RENAMED {
            state.renamed.clear();
        }
        state.renamed.insert(key.to_owned());
    }

    /// Whether what was published under this key has been renamed since.
    pub(crate) fn is_renamed(&self, key: &str) -> bool {
        self.state().renamed.contains(key)
    }

    /// How many of these bytes the file's size does not have yet. The others are written again.
    pub(crate) fn added(&self, ino: u64, bytes: usize) -> usize {
        let mut state = self.state();
        let Some(left) = state.replays.get_mut(&ino) else { return bytes };
        let again = bytes.min(*left);
        *left -= again;
        if *left == 0 {
            state.replays.remove(&ino);
        }
        bytes - again
    }

    pub(crate) fn end_replay(&self, ino: u64) {
        self.state().replays.remove(&ino);
    }

    pub(crate) fn add_reader(&self, ino: u64, handle: u64, object: Option<ReadObject>) {
        self.state().readers.entry(ino).or_default().insert(handle, object);
    }

    pub(crate) fn read_by(&self, ino: u64, handle: u64) -> Option<ReadObject> {
        let state = self.state();
        state.readers.get(&ino)?.get(&handle)?.clone()
    }

    pub(crate) fn remove_reader(&self, ino: u64, handle: u64) {
        let mut state = self.state();
        if let Some(readers) = state.readers.get_mut(&ino) {
            readers.remove(&handle);
            if readers.is_empty() {
                state.readers.remove(&ino);
            }
        }
    }

    pub(crate) fn readers(&self, ino: u64) -> Vec<u64> {
        self.state().readers.get(&ino).into_iter().flat_map(HashMap::keys).copied().collect()
    }
}

#[cfg(test)]
mod tests;
