//! Which page of a folder's listing a name is on. A program that lists a folder and then opens its files takes longer than
//! the listing is kept, and many programs open files by names that they have from elsewhere. One request for a page says what
//! there is to know about up to a thousand files, where each lookup takes one or two.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use mountpoint_s3_client::types::ListObjectsResult;
use mountpoint_s3_fs::metablock::{InodeError, Metablock};
use parking_lot::{Mutex, MutexGuard};

use crate::listed::{Answered, Listed, Part, list_part};
use crate::outdated::KNOWN_FOR;

/// At most this many pages are remembered: those of a hundred thousand files, with some hundred bytes for each page.
const PAGES: usize = 100;
/// Names found on a page after which a request for all of it costs less than more lookups: a page takes the server longer
/// than a lookup.
const WORTH_A_PAGE: usize = 16;
/// How close to each other that many names of an unknown page must be found. Programs that open a file now and then gain nothing
/// by pages that are kept for as long as this.
const CLOSE: Duration = KNOWN_FOR;
/// The same for names of a known page, in times that a page is kept: while a program goes on, what it finds on a page that is
/// still kept counts, too.
const CLOSE_ON_A_PAGE: u32 = 2;
/// Lookups alone lead to at most this many pages of a folder. Names in a folder of more than ten thousand files are rarely
/// looked up so close to each other that a page, which is kept for less than a second, serves several of them.
const PAGES_BY_NAME: usize = 10;
/// At most this many names are on such pages of all folders that the library knows. It remembers each with some hundred bytes as
/// long as its folder, even if no program asks for it.
const LEARNED: usize = 100_000;

#[derive(Debug, Default)]
pub(crate) struct Listings(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pages: VecDeque<Page>,
    /// By folder: files that were found one by one, because no page has them.
    found: HashMap<u64, Found>,
    /// By folder: names on pages that lookups alone have led to.
    learned: HashMap<u64, usize>,
}

/// Files that lookups have found.
#[derive(Debug)]
struct Found {
    files: usize,
    since: Instant,
}

impl Found {
    fn none() -> Self {
        Self { files: 0, since: Instant::now() }
    }

    /// Counts from the beginning if it began longer ago than that.
    fn add(&mut self, within: Duration) {
        if self.since.elapsed() >= within {
            *self = Self::none();
        }
        self.files += 1;
    }
}

#[derive(Debug)]
struct Page {
    /// The library's inode of the folder.
    folder: u64,
    /// The continuation token of its request; `None` for the first page.
    token: Option<String>,
    /// The continuation token of the next page; `None` for the last page.
    next: Option<String>,
    /// A name between these two is on this page, or does not exist.
    first: String,
    last: String,
    asked: Instant,
    /// Names on it, since then at most.
    found: Found,
}

/// A page that is worth a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    folder: u64,
    token: Option<String>,
}

impl Listings {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    pub(crate) fn note(
        &self,
        listed: &Listed,
        token: Option<&str>,
        prefix: &str,
        page: &ListObjectsResult,
        asked: Instant,
    ) {
        let Some(folder) = listed.folder_of_pages() else { return };
        let objects = page.objects.iter().map(|object| object.key.as_str());
        let folders = page.common_prefixes.iter().map(|folder| folder.trim_end_matches('/'));
        let names = objects.chain(folders).filter_map(|key| key.strip_prefix(prefix));
        let next = page.next_continuation_token.as_deref();
        let state = &mut *self.state();
        if listed.is_one_page() {
            state.note_learned(folder, token, names.clone().count());
        }
        state.note_names(folder, (token, next), names, asked);
    }

    /// The page that this lookup makes worth a request, if what it says is older than `kept`, or than an outdated listing.
    pub(crate) fn due(
        &self,
        folder: u64,
        name: &str,
        kept: Duration,
        outdated: Option<Instant>,
    ) -> Option<Due> {
        let state = &mut *self.state();
        let Some(page) = state.page_of(folder, name) else {
            return state.next_page(folder);
        };
        let is_worth_it = page.found.files >= WORTH_A_PAGE && page.asked.elapsed() >= kept;
        if !is_worth_it && outdated.is_none_or(|listed_at| page.asked >= listed_at) {
            return None;
        }
        // Others that look up meanwhile do not ask for it, too.
        (page.asked, page.found) = (Instant::now(), Found::none());
        Some(Due { folder, token: page.token.clone() })
    }

    /// A lookup has found this name, and what a page says is kept for so long. Programs that create files look up names that do
    /// not exist, and gain nothing by a page.
    pub(crate) fn note_found(&self, folder: u64, name: &str, kept: Duration) {
        let state = &mut *self.state();
        if let Some(page) = state.page_of(folder, name) {
            page.found.add(kept.saturating_mul(CLOSE_ON_A_PAGE));
            return;
        }
        if state.found.len() >= PAGES {
            state.found.retain(|_, found| found.since.elapsed() < CLOSE);
        }
        state.found.entry(folder).or_insert_with(Found::none).add(CLOSE);
    }

    /// The library has forgotten the folder, and the names in it.
    pub(crate) fn forget(&self, folder: u64) {
        let state = &mut *self.state();
        state.learned.remove(&folder);
        state.found.remove(&folder);
        state.pages.retain(|page| page.folder != folder);
    }
}

impl State {
    fn note_names<'a>(
        &mut self,
        folder: u64,
        (token, next): (Option<&str>, Option<&str>),
        names: impl Iterator<Item = &'a str> + Clone,
        asked: Instant,
    ) {
        self.pages.retain(|page| page.folder != folder || page.token.as_deref() != token);
        let (Some(first), Some(last)) = (names.clone().min(), names.max()) else { return };
        if self.pages.len() >= PAGES {
            self.pages.pop_front();
        }
        let [token, next] = [token, next].map(|token| token.map(str::to_owned));
        let (first, last) = (first.to_owned(), last.to_owned());
        self.pages.push_back(Page { folder, token, next, first, last, asked, found: Found::none() });
    }

    /// Lookups alone have led to a page with this many names. A page counts once.
    fn note_learned(&mut self, folder: u64, token: Option<&str>, names: usize) {
        let is_page = |page: &Page| page.folder == folder && page.token.as_deref() == token;
        if !self.pages.iter().any(is_page) {
            *self.learned.entry(folder).or_default() += names;
        }
    }

    fn page_of(&mut self, folder: u64, name: &str) -> Option<&mut Page> {
        let mut of_folder = self.pages.iter_mut().filter(|page| page.folder == folder);
        of_folder.find(|page| page.first.as_str() <= name && name <= page.last.as_str())
    }

    /// The first page that is not known, if enough names were found one by one lately to make it worth a request.
    fn next_page(&mut self, folder: u64) -> Option<Due> {
        let found = self.found.get(&folder)?;
        if found.files < WORTH_A_PAGE || found.since.elapsed() >= CLOSE {
            return None;
        }
        self.found.remove(&folder);
        let of_folder = || self.pages.iter().filter(|page| page.folder == folder);
        if of_folder().count() >= PAGES_BY_NAME || self.learned.values().sum::<usize>() >= LEARNED {
            return None;
        }
        let token = match of_folder().max_by(|one, other| one.last.cmp(&other.last)) {
            Some(last) => Some(last.next.clone()?),
            None => None,
        };
        Some(Due { folder, token })
    }
}

/// Asks for the page; the library learns what is on it.
pub(crate) async fn renew(
    library: &impl Metablock,
    due: Due,
    learned: impl Fn(&str, &Answered) + Send + Sync,
) -> Result<(), InodeError> {
    list_part(library, due.folder, Part::Page(due.token), learned).await
}

#[cfg(test)]
mod tests;
