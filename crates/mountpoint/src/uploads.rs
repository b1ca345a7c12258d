//! What has to be known about uploads and the library does not return: which of its handles write, which object an upload has
//! become, and which object the next upload continues.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mountpoint_s3_client::types::ETag;

/// An object as an upload of this process has left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) bucket: String,
    pub(crate) key: String,
    pub(crate) etag: ETag,
}

#[derive(Debug, Default)]
pub(crate) struct Uploads(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By the library's handle.
    writers: HashMap<u64, Writer>,
    /// The library's handles that read, by inode.
    readers: HashMap<u64, HashSet<u64>>,
    /// Bytes of a continued file that the library counts a second time, by inode.
    replays: HashMap<u64, usize>,
    /// The object that the next upload to a key must replace. The library has one writer for each key at a time.
    conditions: HashMap<String, ETag>,
}

#[derive(Debug)]
struct Writer {
    bucket: String,
    key: String,
    /// There was no object when the file was opened.
    creates: bool,
    /// Once the upload is complete.
    etag: Option<ETag>,
}

impl Uploads {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, handle: u64, bucket: &str, key: &str, creates: bool) {
        let mut state = self.state();
        // Of an upload that failed before it began.
        state.conditions.remove(key);
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        state.writers.insert(handle, Writer { bucket, key, creates, etag: None });
    }

    /// The next upload to the key replaces this object and no other. Its first `length` bytes are written again.
    pub(crate) fn begin_continuation(&self, handle: u64, ino: u64, object: &Published, length: usize) {
        self.begin(handle, &object.bucket, &object.key, false);
        let mut state = self.state();
        state.conditions.insert(object.key.clone(), object.etag.clone());
        if length > 0 {
            state.replays.insert(ino, length);
        }
    }

    /// Whether the library has opened the file for writing.
    pub(crate) fn writes(&self, handle: u64) -> bool {
        self.state().writers.contains_key(&handle)
    }

    /// Whether the upload creates an object that did not exist.
    pub(crate) fn creates(&self, handle: u64) -> bool {
        self.state().writers.get(&handle).is_some_and(|writer| writer.creates)
    }

    pub(crate) fn publish(&self, handle: u64, etag: ETag) {
        if let Some(writer) = self.state().writers.get_mut(&handle) {
            writer.etag = Some(etag);
        }
    }

    pub(crate) fn published(&self, handle: u64) -> Option<Published> {
        let state = self.state();
        let Writer { bucket, key, etag, .. } = state.writers.get(&handle)?;
        Some(Published { bucket: bucket.clone(), key: key.clone(), etag: etag.clone()? })
    }

    pub(crate) fn end(&self, handle: u64) {
        self.state().writers.remove(&handle);
    }

    /// The object that this upload must replace, asked once for each upload.
    pub(crate) fn condition(&self, key: &str) -> Option<ETag> {
        self.state().conditions.remove(key)
    }

    /// Whether these bytes are written again, and are part of the file's size already.
    pub(crate) fn is_replayed(&self, ino: u64, bytes: usize) -> bool {
        let mut state = self.state();
        let Some(left) = state.replays.get_mut(&ino) else { return false };
        *left = left.saturating_sub(bytes);
        if *left == 0 {
            state.replays.remove(&ino);
        }
        true
    }

    pub(crate) fn end_replay(&self, ino: u64) {
        self.state().replays.remove(&ino);
    }

    pub(crate) fn add_reader(&self, ino: u64, handle: u64) {
        self.state().readers.entry(ino).or_default().insert(handle);
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
        self.state().readers.get(&ino).into_iter().flatten().copied().collect()
    }
}

thread_local! {
    static CONTINUED: RefCell<Option<Published>> = const { RefCell::new(None) };
}

/// Opens a file through the library, whose arguments have no room for the object that the new upload continues.
pub(crate) async fn continuing<T>(object: &Published, open: impl Future<Output = T>) -> T {
    let mut open = pin!(open);
    poll_fn(|context| {
        CONTINUED.set(Some(object.clone()));
        let polled = open.as_mut().poll(context);
        CONTINUED.set(None);
        polled
    })
    .await
}

/// Inside of [`continuing`], which object that is.
pub(crate) fn continued() -> Option<Published> {
    CONTINUED.with_borrow(Clone::clone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;

    fn object(etag: &str) -> Published {
        Published { bucket: "bucket".into(), key: "key".into(), etag: etag.into() }
    }

    #[test]
    fn an_upload_is_known_by_its_handle_until_it_ends() {
        let uploads = Uploads::default();
        uploads.begin(7, "bucket", "key", true);
        assert!(uploads.writes(7) && uploads.creates(7) && !uploads.writes(8));
        assert_eq!(uploads.published(7), None);
        uploads.publish(7, "one".into());
        assert_eq!(uploads.published(7), Some(object("one")));
        uploads.end(7);
        assert!(!uploads.writes(7) && uploads.published(7).is_none());
    }

    #[test]
    fn a_condition_is_for_one_upload() {
        let uploads = Uploads::default();
        uploads.begin_continuation(7, 1, &object("one"), 0);
        assert_eq!(uploads.condition("other"), None);
        assert_eq!(uploads.condition("key"), Some("one".into()));
        assert_eq!(uploads.condition("key"), None);
        uploads.begin_continuation(8, 1, &object("one"), 0);
        uploads.begin(9, "bucket", "key", false);
        assert_eq!(uploads.condition("key"), None, "another writer has begun since");
    }

    #[test]
    fn bytes_that_are_written_again_are_counted_once() {
        let uploads = Uploads::default();
        assert!(!uploads.is_replayed(1, 10));
        uploads.begin_continuation(7, 1, &object("one"), 10);
        assert!(uploads.is_replayed(1, 6) && uploads.is_replayed(1, 4) && !uploads.is_replayed(1, 1));
        uploads.begin_continuation(7, 1, &object("one"), 10);
        uploads.end_replay(1);
        assert!(!uploads.is_replayed(1, 10));
        uploads.begin_continuation(7, 1, &object("one"), 0);
        assert!(!uploads.is_replayed(1, 10), "nothing was published but an empty file");
    }

    #[test]
    fn only_the_continued_open_knows_the_object() {
        assert_eq!(continued(), None);
        assert_eq!(block_on(continuing(&object("one"), async { continued() })), Some(object("one")));
        assert_eq!(continued(), None);
    }
}
