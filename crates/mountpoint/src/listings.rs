//! Which page of a folder's listing a name is on. A program that lists a folder and then opens its files takes longer than the
//! listing is kept. One request for a page renews what is known about up to a thousand files, where each lookup takes two.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mountpoint_s3_client::types::ListObjectsResult;
use mountpoint_s3_fs::metablock::{AddDirEntryResult, InodeError, Metablock};

use crate::scoped::scoped;

/// Pages that are remembered, at most: those of a hundred thousand files, with some hundred bytes for each page.
const PAGES: usize = 100;
/// Lookups of names on a page after which a request for all of it costs less: a page takes the server longer than a lookup.
const WORTH_A_PAGE: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Listings(Mutex<VecDeque<Page>>);

#[derive(Debug)]
struct Page {
    /// The library's inode of the folder.
    folder: u64,
    /// Of the request; none for the first page.
    token: Option<String>,
    /// Names: those between them are on this page, or do not exist.
    first: String,
    last: String,
    asked: Instant,
    /// Lookups since then.
    lookups: usize,
}

/// A page that is worth a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Due {
    folder: u64,
    token: Option<String>,
    last: String,
}

/// The folder that is being listed, beginning with the page of this token.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    folder: u64,
    token: Option<String>,
    answered: Answered,
}

/// The answer of which a listing gives out the entries, once there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answered(Arc<Mutex<Option<Answer>>>);

#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) asked: Instant,
    pub(crate) answered: Instant,
    /// Of the keys.
    pub(crate) prefix: Arc<str>,
}

impl Answered {
    pub(crate) fn get(&self) -> Option<Answer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, answer: Answer) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
    }
}

thread_local! {
    static LISTED: RefCell<Option<Listed>> = const { RefCell::new(None) };
}

/// Lists a folder through the library.
pub(crate) async fn listing<T>(folder: u64, answered: Answered, list: impl Future<Output = T>) -> T {
    scoped(&LISTED, &Listed { folder, token: None, answered }, list).await
}

/// Inside of that, which one.
pub(crate) fn listed() -> Option<Listed> {
    LISTED.with_borrow(Clone::clone)
}

impl Listed {
    /// The token of the request, where the library wants the page of another one or the first.
    pub(crate) fn token<'a>(&'a self, wanted: Option<&'a str>) -> Option<&'a str> {
        wanted.or(self.token.as_deref())
    }

    pub(crate) fn note_answer(&self, asked: Instant, prefix: &str) {
        self.answered.set(Answer { asked, answered: Instant::now(), prefix: prefix.into() });
    }
}

impl Listings {
    fn pages(&self) -> MutexGuard<'_, VecDeque<Page>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(
        &self,
        listed: &Listed,
        token: Option<&str>,
        prefix: &str,
        page: &ListObjectsResult,
        asked: Instant,
    ) {
        let objects = page.objects.iter().map(|object| object.key.as_str());
        let folders = page.common_prefixes.iter().map(|folder| folder.trim_end_matches('/'));
        let names = objects.chain(folders).filter_map(|key| key.strip_prefix(prefix));
        self.note_names(listed.folder, token, names, asked);
    }

    fn note_names<'a>(
        &self,
        folder: u64,
        token: Option<&str>,
        names: impl Iterator<Item = &'a str> + Clone,
        asked: Instant,
    ) {
        let mut pages = self.pages();
        pages.retain(|page| page.folder != folder || page.token.as_deref() != token);
        let (Some(first), Some(last)) = (names.clone().min(), names.max()) else { return };
        if pages.len() >= PAGES {
            pages.pop_front();
        }
        let (token, first, last) = (token.map(str::to_owned), first.to_owned(), last.to_owned());
        pages.push_back(Page { folder, token, first, last, asked, lookups: 0 });
    }

    /// The page that this lookup makes worth a request, if what it says is older than `kept`, or than an outdated listing.
    pub(crate) fn due(
        &self,
        folder: u64,
        name: &str,
        kept: Duration,
        outdated: Option<Instant>,
    ) -> Option<Due> {
        let mut pages = self.pages();
        let mut of_folder = pages.iter_mut().filter(|page| page.folder == folder);
        let page = of_folder.find(|page| page.first.as_str() <= name && name <= page.last.as_str())?;
        page.lookups += 1;
        let is_worth_it = page.lookups >= WORTH_A_PAGE && page.asked.elapsed() >= kept;
        if !is_worth_it && outdated.is_none_or(|given_out| page.asked >= given_out) {
            return None;
        }
        // Others that look up meanwhile do not ask for it, too.
        (page.asked, page.lookups) = (Instant::now(), 0);
        Some(Due { folder, token: page.token.clone(), last: page.last.clone() })
    }
}

/// Asks for the page again; the library learns what is on it.
pub(crate) async fn renew(
    library: &impl Metablock,
    due: Due,
    learned: impl Fn(&str, &Answered) + Send + Sync,
) -> Result<(), InodeError> {
    let Due { folder, token, last } = due;
    let handle = library.new_readdir_handle(folder).await?;
    let listed = Listed { folder, token, answered: Answered::default() };
    let until_last = Box::new(|_, name: std::ffi::OsString, _, _| {
        // The first two are the folder itself and the one above.
        if name.as_encoded_bytes() > last.as_bytes() {
            return AddDirEntryResult::ReplyBufferFull;
        }
        learned(&name.to_string_lossy(), &listed.answered);
        AddDirEntryResult::EntryAdded
    });
    let renewed = scoped(&LISTED, &listed, library.readdir(folder, handle, 0, false, until_last)).await;
    library.releasedir(handle).await?;
    renewed
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Duration = Duration::from_secs(1);

    fn old() -> Instant {
        Instant::now().checked_sub(KEPT * 2).unwrap()
    }

    #[test]
    fn a_page_is_asked_for_again_when_many_of_its_names_are_looked_up() {
        let listings = Listings::default();
        listings.note_names(1, None, ["a", "m"].into_iter(), old());
        listings.note_names(1, Some("next"), ["n", "z"].into_iter(), old());
        let due = |name| listings.due(1, name, KEPT, None);
        for _ in 1..WORTH_A_PAGE {
            assert_eq!(due("o"), None);
        }
        assert_eq!(due("b"), None, "on another page");
        assert_eq!(listings.due(2, "o", KEPT, None), None, "in another folder");
        assert_eq!(due("o"), Some(Due { folder: 1, token: Some("next".into()), last: "z".into() }));
        for _ in 0..2 * WORTH_A_PAGE {
            assert_eq!(due("o"), None, "it has just been asked for");
        }
        listings.note_names(1, Some("next"), ["n", "z"].into_iter(), old());
        assert_eq!(due("o"), None, "and its answer counts from the beginning");
        assert_eq!(listings.pages().len(), 2);
        assert!(
            listings.due(1, "a", KEPT, Some(Instant::now())).is_some(),
            "a listing has said older things"
        );
        assert_eq!(listings.due(1, "a", KEPT, Some(old())), None, "and others do not ask for it, too");
    }

    #[test]
    fn the_oldest_pages_are_forgotten() {
        let listings = Listings::default();
        for folder in 0..2 * PAGES as u64 {
            listings.note_names(folder, None, ["a"].into_iter(), old());
        }
        assert_eq!(listings.pages().len(), PAGES);
        listings.note_names(7, None, [].into_iter(), old());
        assert_eq!(listings.pages().len(), PAGES, "an empty page has no names");
    }
}
