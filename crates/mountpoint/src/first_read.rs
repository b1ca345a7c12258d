//! The request for the content of a small file, sent when the file is opened for reading. It says whether the object is still
//! the one that was looked up or listed, so that no other request has to ask that, and the first read finds its answer.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mountpoint_s3_client::types::ETag;

/// Bytes of the first request of a reader. A reader that continues gets the rest in large parts, and only then: the library
/// sends the next request when more than half of this was read. So this is twice what programs read at random places at
/// once (256 KiB), and a small part of the library's default (1152 KiB).
pub(crate) const FIRST_BYTES: usize = 512 * 1024;

/// Answers of type `A` that no read has taken yet.
#[derive(Debug)]
pub(crate) struct FirstReads<A> {
    /// By the library's handle.
    begun: Mutex<HashMap<u64, Begun<A>>>,
    /// At most so many. A reader whose answer was dropped asks again.
    most: usize,
}

#[derive(Debug)]
struct Begun<A> {
    key: String,
    etag: ETag,
    length: u64,
    answer: A,
}

impl<A> FirstReads<A> {
    pub(crate) fn new(most: usize) -> Self {
        Self { begun: Mutex::default(), most }
    }

    /// Whether an object is fetched when it is opened: if one request is enough. An empty object has no bytes to ask for.
    pub(crate) fn is_fetched_at_open(&self, length: usize) -> bool {
        self.most > 0 && (1..=FIRST_BYTES).contains(&length)
    }

    fn begun(&self) -> MutexGuard<'_, HashMap<u64, Begun<A>>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn keep(&self, handle: u64, key: &str, etag: ETag, length: u64, answer: A) {
        let mut begun = self.begun();
        if begun.len() >= self.most
            && let Some(oldest) = begun.keys().min().copied()
        {
            begun.remove(&oldest);
        }
        begun.insert(handle, Begun { key: key.to_owned(), etag, length, answer });
    }

    /// The answer for a request of all bytes of this object, if there is one.
    pub(crate) fn take(&self, key: &str, etag: Option<&ETag>, range: Option<&Range<u64>>) -> Option<A> {
        let (etag, range) = (etag?, range?);
        let mut begun = self.begun();
        let is_wanted =
            |it: &Begun<A>| it.key == key && it.etag == *etag && range.start == 0 && range.end == it.length;
        let handle = begun.iter().find_map(|(handle, it)| is_wanted(it).then_some(*handle))?;
        begun.remove(&handle).map(|it| it.answer)
    }

    /// The file was closed, perhaps without being read.
    pub(crate) fn end(&self, handle: u64) {
        self.begun().remove(&handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etag(etag: &str) -> ETag {
        etag.into()
    }

    #[test]
    fn an_answer_is_for_one_read_of_the_same_object() {
        let reads = FirstReads::new(1);
        reads.keep(7, "key", etag("one"), 10, "answer");
        assert_eq!(reads.take("other", Some(&etag("one")), Some(&(0..10))), None);
        assert_eq!(reads.take("key", Some(&etag("two")), Some(&(0..10))), None);
        assert_eq!(reads.take("key", Some(&etag("one")), Some(&(5..10))), None);
        assert_eq!(reads.take("key", Some(&etag("one")), Some(&(0..5))), None);
        assert_eq!(reads.take("key", None, Some(&(0..10))), None);
        assert_eq!(reads.take("key", Some(&etag("one")), Some(&(0..10))), Some("answer"));
        assert_eq!(reads.take("key", Some(&etag("one")), Some(&(0..10))), None);
    }

    #[test]
    fn what_is_not_read_is_dropped() {
        let reads = FirstReads::new(32);
        reads.keep(7, "key", etag("one"), 10, ());
        reads.end(7);
        assert!(reads.begun().is_empty());
        for handle in 0..100 {
            reads.keep(handle, "key", etag("one"), 10, ());
        }
        assert_eq!(reads.begun().len(), 32);
        assert!(reads.begun().contains_key(&99) && !reads.begun().contains_key(&0));
    }

    #[test]
    fn what_one_request_can_fetch_is_fetched_at_open() {
        let reads = FirstReads::<()>::new(1);
        assert!(reads.is_fetched_at_open(1) && reads.is_fetched_at_open(FIRST_BYTES));
        assert!(!reads.is_fetched_at_open(0) && !reads.is_fetched_at_open(FIRST_BYTES + 1));
        assert!(!FirstReads::<()>::new(0).is_fetched_at_open(1), "there is no memory for it");
    }
}
