//! Which page of a folder's listing a name is on. A program that lists a folder and then opens its files takes longer than
//! the listing is kept, and many programs open files by names that they have from elsewhere. One request for a page says what
//! there is to know about up to a thousand files, where each lookup takes two.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mountpoint_s3_client::types::ListObjectsResult;
use mountpoint_s3_fs::metablock::{AddDirEntryResult, InodeError, Metablock};
use parking_lot::{Mutex, MutexGuard};

use crate::scoped::scoped;

/// At most this many pages are remembered: those of a hundred thousand files, with some hundred bytes for each page.
const PAGES: usize = 100;
/// Names found on a page after which a request for all of it costs less than more lookups: a page takes the server longer
/// than a lookup.
const WORTH_A_PAGE: usize = 16;
/// Lookups alone lead to at most this many pages of a folder. Names in a folder of more than ten thousand files are rarely
/// looked up so close to each other that a page, which is kept for less than a second, serves several of them.
const PAGES_BY_NAME: usize = 10;
/// At most this many names are on such pages in all folders. The library remembers each with some hundred bytes as long as
/// its folder, even if no program asks for it.
const LEARNED: usize = 100_000;

#[derive(Debug, Default)]
pub(crate) struct Listings(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pages: VecDeque<Page>,
    /// By folder: files that were found one by one, because no page has them.
    found: HashMap<u64, Found>,
    /// Names on pages that lookups alone have led to.
    learned: usize,
}

#[derive(Debug)]
struct Found {
    files: usize,
    since: Instant,
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
    /// Lookups that have found a name on it since then.
    found: usize,
}

/// A page that is worth a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    folder: u64,
    token: Option<String>,
}

/// The folder that is being listed.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    folder: u64,
    part: Part,
    answered: Answered,
}

/// What is listed of a folder.
#[derive(Clone, Debug)]
enum Part {
    Everything,
    /// The page with this continuation token.
    Page(Option<String>),
    /// This name.
    Name(String),
}

/// The answer whose entries a listing returns, once there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answered(Arc<Mutex<Option<Answer>>>);

#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) asked: Instant,
    pub(crate) answered: Instant,
    /// The prefix of the keys.
    pub(crate) prefix: Arc<str>,
}

impl Answered {
    pub(crate) fn get(&self) -> Option<Answer> {
        self.0.lock().clone()
    }

    fn set(&self, answer: Answer) {
        *self.0.lock() = Some(answer);
    }
}

thread_local! {
    static LISTED: RefCell<Option<Listed>> = const { RefCell::new(None) };
}

/// Lists a folder through the library.
pub(crate) async fn listing<T>(folder: u64, answered: Answered, list: impl Future<Output = T>) -> T {
    scoped(&LISTED, &Listed { folder, part: Part::Everything, answered }, list).await
}

/// Inside of [`listing`], the folder.
pub(crate) fn listed() -> Option<Listed> {
    LISTED.with_borrow(Clone::clone)
}

impl Listed {
    /// The token of the request, where the library wants the page of another one or the first.
    pub(crate) fn token<'a>(&'a self, wanted: Option<&'a str>) -> Option<&'a str> {
        let Part::Page(token) = &self.part else { return wanted };
        wanted.or(token.as_deref())
    }

    /// The prefix of the keys that are asked for, of those with the prefix of the folder.
    pub(crate) fn prefix<'a>(&self, folder: &'a str) -> Cow<'a, str> {
        match &self.part {
            Part::Name(name) => Cow::Owned(format!("{folder}{name}")),
            Part::Everything | Part::Page(_) => Cow::Borrowed(folder),
        }
    }

    /// Of what begins with a name, the name itself is the first.
    pub(crate) fn max_keys(&self, wanted: usize) -> usize {
        if matches!(self.part, Part::Name(_)) { 1 } else { wanted }
    }

    /// The library must not ask for the page after this one.
    pub(crate) fn is_one_page(&self) -> bool {
        !matches!(self.part, Part::Everything)
    }

    pub(crate) fn note_answer(&self, asked: Instant, prefix: &str) {
        self.answered.set(Answer { asked, answered: Instant::now(), prefix: prefix.into() });
    }
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
        if matches!(listed.part, Part::Name(_)) {
            return;
        }
        let objects = page.objects.iter().map(|object| object.key.as_str());
        let folders = page.common_prefixes.iter().map(|folder| folder.trim_end_matches('/'));
        let names = objects.chain(folders).filter_map(|key| key.strip_prefix(prefix));
        let next = page.next_continuation_token.as_deref();
        let state = &mut *self.state();
        if listed.is_one_page() {
            state.note_learned(listed.folder, token, names.clone().count());
        }
        state.note_names(listed.folder, (token, next), names, asked);
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
            return state.next_page(folder, kept);
        };
        let is_worth_it = page.found >= WORTH_A_PAGE && page.asked.elapsed() >= kept;
        if !is_worth_it && outdated.is_none_or(|listed_at| page.asked >= listed_at) {
            return None;
        }
        // Others that look up meanwhile do not ask for it, too.
        (page.asked, page.found) = (Instant::now(), 0);
        Some(Due { folder, token: page.token.clone() })
    }

    /// A lookup has found this name. Programs that create files look up names that do not exist, and gain nothing by a page.
    pub(crate) fn note_found(&self, folder: u64, name: &str, kept: Duration) {
        let state = &mut *self.state();
        if let Some(page) = state.page_of(folder, name) {
            page.found += 1;
            return;
        }
        if state.found.len() >= PAGES {
            state.found.retain(|_, found| found.since.elapsed() < kept);
        }
        let found = state.found.entry(folder).or_insert_with(|| Found { files: 0, since: Instant::now() });
        if found.since.elapsed() >= kept {
            *found = Found { files: 0, since: Instant::now() };
        }
        found.files += 1;
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
        self.pages.push_back(Page { folder, token, next, first, last, asked, found: 0 });
    }

    /// Lookups alone have led to a page with this many names. A page counts once.
    fn note_learned(&mut self, folder: u64, token: Option<&str>, names: usize) {
        let is_page = |page: &Page| page.folder == folder && page.token.as_deref() == token;
        if !self.pages.iter().any(is_page) {
            self.learned += names;
        }
    }

    fn page_of(&mut self, folder: u64, name: &str) -> Option<&mut Page> {
        let mut of_folder = self.pages.iter_mut().filter(|page| page.folder == folder);
        of_folder.find(|page| page.first.as_str() <= name && name <= page.last.as_str())
    }

    /// The first page that is not known, if enough names were found one by one lately to make it worth a request.
    fn next_page(&mut self, folder: u64, kept: Duration) -> Option<Due> {
        let found = self.found.get(&folder)?;
        if found.files < WORTH_A_PAGE || found.since.elapsed() >= kept {
            return None;
        }
        self.found.remove(&folder);
        let of_folder = || self.pages.iter().filter(|page| page.folder == folder);
        if of_folder().count() >= PAGES_BY_NAME || self.learned >= LEARNED {
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

/// Makes the library learn of a name that it takes for missing.
pub(crate) async fn list_name(library: &impl Metablock, folder: u64, name: &str) -> Result<(), InodeError> {
    list_part(library, folder, Part::Name(name.to_owned()), |_, _| {}).await
}

async fn list_part(
    library: &impl Metablock,
    folder: u64,
    part: Part,
    learned: impl Fn(&str, &Answered) + Send + Sync,
) -> Result<(), InodeError> {
    let handle = library.new_readdir_handle(folder).await?;
    let listed = Listed { folder, part, answered: Answered::default() };
    let learn = Box::new(|_, name: std::ffi::OsString, _, _| {
        learned(&name.to_string_lossy(), &listed.answered);
        AddDirEntryResult::EntryAdded
    });
    let list = library.readdir(folder, handle, 0, false, learn);
    let done = scoped(&LISTED, &listed, list).await;
    library.releasedir(handle).await?;
    done
}

#[cfg(test)]
mod tests;
