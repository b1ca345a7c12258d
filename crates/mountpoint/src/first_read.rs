//! The request for the content of a small file, sent when the file is opened for reading. It says whether the object is still
//! the one that was looked up or listed, so that no other request has to ask that, and the first read finds its answer.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use mountpoint_s3_client::types::ETag;
use parking_lot::{Mutex, MutexGuard};

use crate::memory::SMALL_BUFFER;

/// Bytes of the first request of a reader: as many as the memory of an answer is counted with. A file with more takes a
/// request for what it is, this one, and one for the rest, one after the other. A reader that continues gets the rest in large
/// parts, and only then: the library sends the next request when more than half of this was read. Reads at random places
/// fetch what they need.
pub(crate) const FIRST_BYTES: usize = SMALL_BUFFER;
/// A program that has not read a file that long after it has opened it may never read it, and must not keep the others' files
/// from being fetched.
const SOON: Duration = Duration::from_secs(10);

/// Answers of type `A` that no read has taken yet.
#[derive(Debug)]
pub(crate) struct FirstReads<A> {
    kept: Mutex<Kept<A>>,
    /// The most answers that are kept or awaited at a time.
    most: usize,
}

#[derive(Debug)]
struct Kept<A> {
    /// By the library's handle.
    answers: HashMap<u64, Begun<A>>,
    awaited: usize,
}

#[derive(Debug)]
struct Begun<A> {
    key: String,
    etag: ETag,
    length: u64,
    since: Instant,
    answer: A,
}

/// Room for one answer.
#[derive(Debug)]
pub(crate) struct Room<'a, A>(&'a FirstReads<A>);

impl<A> FirstReads<A> {
    pub(crate) fn new(most: usize) -> Self {
        Self { kept: Mutex::new(Kept { answers: HashMap::new(), awaited: 0 }), most }
    }

    /// Room for the answer, if an object of this length is worth fetching when it is opened: it has bytes, one request is
    /// enough for them, and there is memory for the answer. Another answer is dropped for it only if its reader has not read
    /// it soon, because that reader would ask for the same bytes again.
    pub(crate) fn room(&self, length: usize, now: Instant) -> Option<Room<'_, A>> {
        if !(1..=FIRST_BYTES).contains(&length) {
            return None;
        }
        let mut kept = self.kept();
        if kept.answers.len() + kept.awaited >= self.most {
            let (oldest, begun) = kept.answers.iter().min_by_key(|(_, begun)| begun.since)?;
            if now.saturating_duration_since(begun.since) < SOON {
                return None;
            }
            let oldest = *oldest;
            kept.answers.remove(&oldest);
        }
        kept.awaited += 1;
        Some(Room(self))
    }

    fn kept(&self) -> MutexGuard<'_, Kept<A>> {
        self.kept.lock()
    }

    /// The answer for a request of all bytes of this object, if there is one.
    pub(crate) fn take(&self, key: &str, etag: Option<&ETag>, range: Option<&Range<u64>>) -> Option<A> {
        let (etag, range) = (etag?, range?);
        let answers = &mut self.kept().answers;
        let is_wanted =
            |it: &Begun<A>| it.key == key && it.etag == *etag && range.start == 0 && range.end == it.length;
        let handle = answers.iter().find_map(|(handle, it)| is_wanted(it).then_some(*handle))?;
        answers.remove(&handle).map(|it| it.answer)
    }

    /// The file was closed, perhaps without being read.
    pub(crate) fn end(&self, handle: u64) {
        self.kept().answers.remove(&handle);
    }
}

impl<A> Room<'_, A> {
    pub(crate) fn keep(self, handle: u64, key: &str, etag: ETag, length: u64, answer: A) {
        let begun = Begun { key: key.to_owned(), etag, length, since: Instant::now(), answer };
        self.0.kept().answers.insert(handle, begun);
    }
}

/// Runs also when there is no answer, or when the request was dropped.
impl<A> Drop for Room<'_, A> {
    fn drop(&mut self) {
        self.0.kept().awaited -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etag(etag: &str) -> ETag {
        etag.into()
    }

    fn keep<A>(reads: &FirstReads<A>, handle: u64, answer: A) {
        let room = reads.room(10, Instant::now()).unwrap();
        room.keep(handle, "key", etag("one"), 10, answer);
    }

    fn is_full(reads: &FirstReads<()>) -> bool {
        reads.room(10, Instant::now()).is_none()
    }

    #[test]
    fn an_answer_is_for_one_read_of_the_same_object() {
        let reads = FirstReads::new(1);
        keep(&reads, 7, "answer");
        assert_eq!(reads.take("other", Some(&etag("one")), Some(&(0..10))), None);
        assert_eq!(reads.take("key", Some(&etag("two")), Some(&(0..10))), None);
        assert_eq!(reads.take("key", Some(&etag("one")), Some(&(5..10))), None);
        assert_eq!(reads.take("key", Some(&etag("one")), Some(&(0..5))), None);
        assert_eq!(reads.take("key", None, Some(&(0..10))), None);
        assert_eq!(reads.take("key", Some(&etag("one")), Some(&(0..10))), Some("answer"));
        assert_eq!(reads.take("key", Some(&etag("one")), Some(&(0..10))), None);
    }

    #[test]
    fn an_answer_stays_until_it_is_read_or_its_file_is_closed() {
        let reads = FirstReads::new(2);
        keep(&reads, 7, ());
        keep(&reads, 8, ());
        assert!(is_full(&reads));
        reads.take("key", Some(&etag("one")), Some(&(0..10))).unwrap();
        assert!(!is_full(&reads));
        keep(&reads, 9, ());
        assert!(is_full(&reads));
        reads.end(9);
        assert!(!is_full(&reads));
    }

    #[test]
    fn an_answer_that_is_awaited_has_its_place() {
        let reads = FirstReads::new(1);
        let awaited = reads.room(10, Instant::now()).unwrap();
        assert!(is_full(&reads));
        drop(awaited);
        assert!(!is_full(&reads), "the request has failed");
    }

    #[test]
    fn what_is_not_read_soon_gives_way() {
        let reads = FirstReads::new(2);
        keep(&reads, 7, "first");
        keep(&reads, 8, "second");
        let later = reads.room(10, Instant::now() + SOON).unwrap();
        later.keep(9, "other", etag("two"), 10, "third");
        let take = |key, version: &str| reads.take(key, Some(&etag(version)), Some(&(0..10)));
        assert_eq!((take("key", "one"), take("key", "one")), (Some("second"), None));
        assert_eq!(take("other", "two"), Some("third"));
    }

    #[test]
    fn what_one_request_can_fetch_is_fetched_at_open() {
        let has_room = |most, length| FirstReads::<()>::new(most).room(length, Instant::now()).is_some();
        assert!(has_room(1, 1) && has_room(1, FIRST_BYTES));
        assert!(!has_room(1, 0) && !has_room(1, FIRST_BYTES + 1));
        assert!(!has_room(0, 1), "there is no memory for it");
    }
}
